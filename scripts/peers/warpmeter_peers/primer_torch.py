"""The primer's kernels as a user of PyTorch writes them, and the formulas that results are held against."""


def _nibbles(torch, words, count):
    """(rows, count) of 4-bit numbers, eight a word, lowest bits first."""
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts & 0xF).flatten(1)[:, :count]


def dequantized(torch, problem, w, s, o):
    group = torch.arange(problem.inner, device=w.device) // problem.group_size
    offsets = _nibbles(torch, o, problem.groups)
    return s[:, group] * (_nibbles(torch, w, problem.inner) - offsets[:, group]).to(s.dtype)


def functions(torch, problem):
    """{kernel: function of its operands}. In fp64 they are the reference."""
    functional = torch.nn.functional

    def softmax(x):
        return torch.softmax(x, dim=-1)

    def attention(q, k, v):
        return torch.softmax(torch.outer(q, k), dim=-1) @ v

    def conv2d(x, w):
        size = problem.kernel_size - 1
        return functional.conv2d(functional.pad(x.unsqueeze(1), (0, size, 0, size)), w[None, None]).squeeze(1)

    def relu_backward(x, y, dz):
        y = y.unsqueeze(1)
        return torch.where(x * y > 0, dz * y, 0)

    return {
        "add": lambda x: x + 10,
        "outer_add": lambda x, y: y.unsqueeze(1) + x,
        "outer_mul_relu": lambda x, y: torch.relu(y.unsqueeze(1) * x),
        "outer_mul_relu_backward": relu_backward,
        "weighted_sum": torch.mv,
        "weighted_sum_backward": lambda x, w, g: (torch.outer(g, w), torch.mv(x.t(), g)),
        "row_sum": lambda x: x.sum(dim=-1),
        "softmax_three_pass": softmax,
        "softmax_online": softmax,
        "softmax_one_read": softmax,
        "scalar_attention": attention,
        "conv2d": conv2d,
        "batched_matmul": torch.matmul,
        "int4_matmul": lambda w, s, o, y: dequantized(torch, problem, w, s, o) @ y,
    }


def results_of(function, operands):
    found = function(*operands)
    return found if isinstance(found, tuple) else (found,)


def check(torch, problem, operands, results, matrix_product):
    """(largest error over largest reference, failure or ""): bounds as in kernels/primer/verify.hpp."""
    wide = [x.double() if x.is_floating_point() else x for x in operands]
    references = results_of(functions(torch, problem)[problem.kernel], wide)
    roundoff = {"bf16": 2.0**-8, "fp16": 2.0**-11}.get(problem.dtype, 0.0)
    largest_error, failure = 0.0, ""
    for index, (result, reference) in enumerate(zip(results, references)):
        if not torch.isfinite(result).all():
            return float("inf"), f"result {index} has elements that are not finite"
        error = (result.double() - reference).abs()
        largest = reference.abs().max().item()
        allowed = (1e-5 + (roundoff if matrix_product else 0.0)) * largest + roundoff * reference.abs()
        if problem.dtype == "fp16":
            allowed = allowed.clamp(min=1e-5 * largest + 2.0**-25)
        if (error > allowed).any():
            worst = int((error - allowed).argmax())
            failure = failure or (f"result {index}, element {worst} is {result.flatten()[worst].item():.9g}, should be "
                                  f"{reference.flatten()[worst].item():.9g}")
        largest_error = max(largest_error, error.max().item() / largest if largest else error.max().item())
    return largest_error, failure
