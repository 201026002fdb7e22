"""PyTorch's ways of computing attention, as a user would call them."""

import contextlib
import math
import warnings

SCORES, TILED = "scores", "tiled"  # what an implementation keeps in memory


class Unsupported(Exception):
    """PyTorch has no kernel for this here; the text says why."""


def formula(torch, q, k, v, hidden, group_size):
    """Eager attention: scores, scale, mask, softmax, product. `hidden` marks what a query must not see, or is None."""
    if group_size > 1:
        k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def hidden_pairs(torch, problem, device):
    """(seq_len, kv_len), true where the causal mask hides the key; made once a row, outside any timing."""
    if problem.sees_everything:
        return None
    everything = torch.ones(problem.seq_len, problem.kv_len, dtype=torch.bool, device=device)
    return everything.triu_(1 + problem.kv_len - problem.seq_len)


class Implementation:
    keeps, compiles = SCORES, False

    def __init__(self, name, kernel, description):
        self.name, self.kernel, self.description = name, kernel, description

    def unsupported(self, problem, is_cuda):
        """Why not, as far as it is known without trying; None when it may work."""
        if problem.dtype == "tf32" and not is_cuda:
            return "tf32 is a CUDA compute mode"
        if problem.causal and problem.seq_len > problem.kv_len:
            return "PyTorch gives NaN for queries that see no key (causal, seq_len above kv_len)"
        return None

    def context(self, torch):
        """Held while a row is measured."""
        return contextlib.nullcontext()

    def make(self, torch, problem, device):
        """A function of q, k, v."""
        raise NotImplementedError


class Eager(Implementation):
    def make(self, torch, problem, device):
        hidden = hidden_pairs(torch, problem, device)
        return lambda q, k, v: formula(torch, q, k, v, hidden, problem.group_size)


class Compiled(Implementation):
    compiles = True

    def make(self, torch, problem, device):
        import torch._dynamo

        torch._dynamo.reset()  # a fresh compilation for each shape: none that was made for several
        hidden = hidden_pairs(torch, problem, device)
        group_size = problem.group_size
        compiled = torch.compile(lambda q, k, v, mask: formula(torch, q, k, v, mask, group_size), dynamic=False)
        return lambda q, k, v: compiled(q, k, v, hidden)


class Sdpa(Implementation):
    def __init__(self, name, backend, description, dtypes=None, on_cpu=False, keeps=TILED):
        super().__init__(name, "torch_" + name[len("pytorch_"):], description)
        self.backend, self.dtypes, self.on_cpu, self.keeps = backend, dtypes, on_cpu, keeps

    def unsupported(self, problem, is_cuda):
        if not is_cuda and not self.on_cpu:
            return "SDPA has this backend on CUDA only"
        if is_cuda and self.dtypes and problem.dtype not in self.dtypes:
            return f"this backend of SDPA takes {' and '.join(self.dtypes)}, not {problem.dtype}"
        return super().unsupported(problem, is_cuda)

    def context(self, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, self.backend, None)
        if backend is None:
            raise Unsupported(f"PyTorch {torch.__version__} has no SDPA backend {self.backend}")
        return sdpa_kernel(backend)

    def make(self, torch, problem, device):
        sdpa = torch.nn.functional.scaled_dot_product_attention
        options = {"enable_gqa": True} if problem.group_size > 1 else {}
        if problem.sees_everything:
            pass
        elif problem.seq_len == problem.kv_len:
            options["is_causal"] = True
        elif self.backend == "FLASH_ATTENTION" and str(device).startswith("cuda"):
            from torch.nn.attention.bias import causal_lower_right

            options["attn_mask"] = causal_lower_right(problem.seq_len, problem.kv_len)
        else:
            options["attn_mask"] = ~hidden_pairs(torch, problem, device)
        return lambda q, k, v: sdpa(q, k, v, **options)


def implementations():
    half = ("bf16", "fp16")
    table = (
        Eager("pytorch_eager", "torch_eager",
              "the formula, one operation at a time: matmul, scale, mask, softmax, matmul"),
        Compiled("pytorch_compiled", "torch_inductor", "torch.compile of the formula, compiled anew for each shape"),
        Sdpa("pytorch_sdpa_flash", "FLASH_ATTENTION",
             "scaled_dot_product_attention, FlashAttention (on the CPU: its own flash kernel)", half, on_cpu=True),
        Sdpa("pytorch_sdpa_cudnn", "CUDNN_ATTENTION", "scaled_dot_product_attention, cuDNN", half),
        Sdpa("pytorch_sdpa_efficient", "EFFICIENT_ATTENTION",
             "scaled_dot_product_attention, memory-efficient (CUTLASS)"),
        Sdpa("pytorch_sdpa_math", "MATH", "scaled_dot_product_attention, plain operations", on_cpu=True, keeps=SCORES),
    )
    return {implementation.name: implementation for implementation in table}


def is_no_kernel(error):
    """True for what SDPA says when its one allowed backend does not take the problem."""
    return isinstance(error, NotImplementedError) or any(part in str(error) for part in (
        "No available kernel", "No viable backend", "not supported by", "does not support",
        "does not have a deterministic", "working triton installation", "No working C++ compiler"))


@contextlib.contextmanager
def explained():
    """Runs a first call; where no kernel takes it, raises Unsupported with the reasons that PyTorch warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            if not is_no_kernel(error):
                raise
            reasons = [str(warning.message).splitlines()[0].partition(" (Triggered internally")[0].strip()
                       for warning in said]
            # A kernel that was not allowed is no reason.
            reasons = [text for text in dict.fromkeys(reasons)
                       if "runtime disabled" not in text and not text.endswith("not used because:")]
            raise Unsupported("; ".join(reasons) or str(error).splitlines()[0]) from None
