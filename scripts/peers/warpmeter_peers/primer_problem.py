"""The primer's kernels and the sweep that options stand for. As kernels/primer and
tools/kernel_bench/configuration.cpp."""

from dataclasses import dataclass, replace

from .grammar import UsageError
from .options import Option, Preset

MAX_SIZE = 2**40
SIZES = ("batch", "rows", "cols", "inner", "kernel_size", "group_size")
ROW_KEYS = ["kernel", "impl", "dtype", *SIZES]
DTYPES = ("fp32", "bf16", "fp16")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
IMPLEMENTATIONS = ("triton", "pytorch", "pytorch_compiled")
INT32, POSITIVE, NORMAL = "int32", "positive", "normal"  # what an operand is filled with


@dataclass(frozen=True)
class Problem:
    kernel: str
    dtype: str = "fp32"
    batch: int = 1
    rows: int = 1
    cols: int = 1
    inner: int = 1
    kernel_size: int = 1
    group_size: int = 1

    @property
    def groups(self):
        return -(-self.inner // self.group_size)

    def describe(self):
        sizes = ", ".join(f"{size} {getattr(self, size)}" for size in KERNELS[self.kernel].sizes)
        return f"{sizes}, {self.dtype}"


class Kernel:
    """Sizes that it has, its operands [(shape, fill)] and the shapes of its results, FLOPs."""

    def __init__(self, formula, operands, results, flops, bench=None, notes=None, sizes=("rows", "cols"), phase="fwd",
                 matrix_product=False):
        self.formula, self.operands, self.results, self.flops = formula, operands, results, flops
        self.bench = {"rows": 4096, "cols": 4096, **(bench or {})}
        self.notes = notes or {"rows": 90, "cols": 100}
        self.sizes, self.phase, self.matrix_product = sizes, phase, matrix_product

    def bytes(self, problem):
        """Least traffic: every operand once, every result once."""
        size = ELEMENT_BYTES[problem.dtype]
        total = 0
        for shape, fill in self.operands(problem):
            total += elements(shape) * (4 if fill == INT32 else size)
        return total + sum(elements(shape) * size for shape in self.results(problem))


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def _matrix(p):
    return (p.rows, p.cols)


def _softmax():
    return Kernel("y[i,j] = exp(x[i,j] - m[i]) / sum_k exp(x[i,k] - m[i]), m[i] = max_k x[i,k]",
                  lambda p: [(_matrix(p), NORMAL)], lambda p: [_matrix(p)], lambda p: 5.0 * p.rows * p.cols,
                  notes={"rows": 4, "cols": 200})


KERNELS = {
    "add": Kernel("y[i,j] = x[i,j] + 10", lambda p: [(_matrix(p), NORMAL)], lambda p: [_matrix(p)],
                  lambda p: 1.0 * p.rows * p.cols, notes={"rows": 1, "cols": 200}),
    "outer_add": Kernel("z[i,j] = x[j] + y[i]", lambda p: [((p.cols,), NORMAL), ((p.rows,), NORMAL)],
                        lambda p: [_matrix(p)], lambda p: 1.0 * p.rows * p.cols),
    "outer_mul_relu": Kernel("z[i,j] = max(x[j] * y[i], 0)", lambda p: [((p.cols,), NORMAL), ((p.rows,), NORMAL)],
                             lambda p: [_matrix(p)], lambda p: 2.0 * p.rows * p.cols),
    "weighted_sum": Kernel("y[i] = sum_j w[j] * x[i,j]", lambda p: [(_matrix(p), NORMAL), ((p.cols,), NORMAL)],
                           lambda p: [(p.rows,)], lambda p: 2.0 * p.rows * p.cols),
    "row_sum": Kernel("y[i] = sum_j x[i,j]", lambda p: [(_matrix(p), NORMAL)], lambda p: [(p.rows,)],
                      lambda p: 1.0 * p.rows * p.cols, notes={"rows": 4, "cols": 200}),
    "softmax_three_pass": _softmax(),
    "softmax_online": _softmax(),
    "softmax_one_read": _softmax(),
    "scalar_attention": Kernel("y[i] = sum_j p[i,j] * v[j], p[i,j] = exp(q[i] * k[j]) / sum_l exp(q[i] * k[l])",
                               lambda p: [((p.rows,), NORMAL), ((p.cols,), NORMAL), ((p.cols,), NORMAL)],
                               lambda p: [(p.rows,)], lambda p: 4.0 * p.rows * p.cols,
                               notes={"rows": 200, "cols": 200}),
    "conv2d": Kernel("z[b,i,j] = sum_di,dj w[di,dj] * x[b,i+di,j+dj], 0 beyond the ends",
                     lambda p: [((p.batch, p.rows, p.cols), NORMAL), ((p.kernel_size, p.kernel_size), NORMAL)],
                     lambda p: [(p.batch, p.rows, p.cols)],
                     lambda p: 2.0 * p.batch * p.rows * p.cols * p.kernel_size**2, {"kernel_size": 3},
                     {"batch": 4, "rows": 8, "cols": 8, "kernel_size": 4}, ("batch", "rows", "cols", "kernel_size")),
    "batched_matmul": Kernel("z[b,i,j] = sum_k x[b,i,k] * y[b,k,j]",
                             lambda p: [((p.batch, p.rows, p.inner), NORMAL), ((p.batch, p.inner, p.cols), NORMAL)],
                             lambda p: [(p.batch, p.rows, p.cols)],
                             lambda p: 2.0 * p.batch * p.rows * p.cols * p.inner, {"inner": 4096},
                             {"batch": 4, "rows": 32, "cols": 32, "inner": 32}, ("batch", "rows", "cols", "inner"),
                             matrix_product=True),
    "int4_matmul": Kernel("z[i,j] = sum_k s[i,k/g] * (w[i,k] - o[i,k/g]) * y[k,j], w and o in 4 bits, g = group_size",
                          lambda p: [((p.rows, -(-p.inner // 8)), INT32), ((p.rows, p.groups), POSITIVE),
                                     ((p.rows, -(-p.groups // 8)), INT32), ((p.inner, p.cols), NORMAL)],
                          lambda p: [_matrix(p)], lambda p: 2.0 * p.rows * p.cols * p.inner,
                          {"inner": 4096, "group_size": 128}, {"rows": 32, "cols": 32, "inner": 64, "group_size": 8},
                          ("rows", "cols", "inner", "group_size"), matrix_product=True),
    "outer_mul_relu_backward": Kernel("dx[i,j] = dz[i,j] * y[i] where x[i,j] * y[i] > 0, else 0",
                                      lambda p: [(_matrix(p), NORMAL), ((p.rows,), NORMAL), (_matrix(p), NORMAL)],
                                      lambda p: [_matrix(p)], lambda p: 2.0 * p.rows * p.cols, phase="bwd"),
    "weighted_sum_backward": Kernel("dx[i,j] = w[j] * g[i], dw[j] = sum_i g[i] * x[i,j]",
                                    lambda p: [(_matrix(p), NORMAL), ((p.cols,), NORMAL), ((p.rows,), NORMAL)],
                                    lambda p: [_matrix(p), (p.cols,)], lambda p: 3.0 * p.rows * p.cols, phase="bwd"),
}


@dataclass(frozen=True)
class Configuration:
    impl: str
    problem: Problem

    def fields(self):
        p, has = self.problem, KERNELS[self.problem.kernel].sizes
        return {"kernel": p.kernel, "impl": self.impl, "dtype": p.dtype,
                **{size: getattr(p, size) if size in has else None for size in SIZES}}

    def option_values(self):
        p, has = self.problem, KERNELS[self.problem.kernel].sizes
        return {"--kernel": p.kernel, "--impl": self.impl, "--dtype": p.dtype,
                **{_option_of(size): str(getattr(p, size)) if size in has else "" for size in SIZES}, "--sizes": ""}


def _option_of(size):
    return "--" + size.replace("_", "-")


def add_options(table):
    def option(name, metavar, default, accepted, text, **more):
        table.add(Option(name, text, metavar, default, accepted, "Configurations", row_option=True, **more))

    option("--kernel", "NAMES", "all", ", ".join(KERNELS) + ", or all", "Kernels to measure; --list prints them.")
    option("--impl", "NAMES", "triton,pytorch", ", ".join(IMPLEMENTATIONS) + ", or all", "How they are computed.")
    lengths = "whole numbers from 1: a list or range such as 256,1024 or 256:16384:x2"
    for size, text in (("rows", "Rows of the result."), ("cols", "Columns of the result."),
                       ("batch", "Independent problems (conv2d, batched_matmul)."),
                       ("inner", "What a matrix product sums over (batched_matmul, int4_matmul)."),
                       ("kernel_size", "Height and width of the convolution's kernel (conv2d)."),
                       ("group_size", "Weights that share a scale and an offset (int4_matmul).")):
        option(_option_of(size), "LIST", "", lengths, text, default_note="as --sizes has it")
    option("--sizes", "NAME", "bench", "bench, notes", "Where a kernel's sizes come from that no option gives: as for "
           "kernel_bench.")
    table.add_presets(
        Preset("widths", "every kernel over widths from 1024 to 16384, 4096 rows, fp32 and bf16",
               {"--kernel": "all", "--dtype": "fp32,bf16", "--rows": "4096", "--cols": "1024:16384:x2"}),
        Preset("notes", "the notes' puzzles at their own small sizes, checked",
               {"--kernel": "all", "--dtype": "fp32", "--sizes": "notes", "--max-time": "0.2"}),
        Preset("quick", "every kernel at two widths", {
            "--kernel": "all", "--dtype": "fp32", "--rows": "1024", "--cols": "1024,8192", "--inner": "512",
            "--warmup": "3", "--max-time": "0.2"}))


def expand(table, settings):
    """In kernel_bench's order, implementations outermost. Raises UsageError."""
    kernels = table.words("--kernel", tuple(KERNELS), allow_all=True)
    impls = table.words("--impl", IMPLEMENTATIONS, allow_all=True)
    of_notes = table.word("--sizes", ("bench", "notes")) == "notes"
    for dtype in settings.dtypes:
        if dtype not in DTYPES:
            raise UsageError("--dtype", dtype, "none of these kernels has it", ", ".join(DTYPES))
    for size in SIZES:
        if table.text(_option_of(size)) and table.given(_option_of(size)) and not any(
                size in KERNELS[name].sizes for name in kernels):
            raise table.error(_option_of(size), "no kernel of --kernel has this size")
    found = []
    for impl in impls:
        for name in kernels:
            kernel = KERNELS[name]
            sizes = kernel.notes if of_notes else {size: kernel.bench[size] for size in kernel.sizes
                                                   if size in kernel.bench}
            problems = [Problem(name, **sizes)]
            for size in SIZES:
                if size in kernel.sizes and table.text(_option_of(size)):
                    values = table.integers(_option_of(size), 1, MAX_SIZE)
                    problems = [replace(problem, **{size: value}) for problem in problems for value in values]
            for dtype in settings.dtypes:
                for problem in problems:
                    product = 8
                    for size in kernel.sizes:
                        product *= getattr(problem, size)
                    if product > 2**60:
                        raise UsageError(f"{name} of {problem.describe()}: more elements than can be counted")
                    found.append(Configuration(impl, replace(problem, dtype=dtype)))
    return found
