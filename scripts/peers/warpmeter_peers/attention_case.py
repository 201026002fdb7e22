"""One row of attention in PyTorch: operands, check, forwards, backwards. As tools/attn_bench/attention_case.cpp."""

import contextlib
import os
import time
import warnings

from . import attention_problem
from .attention_problem import ELEMENT_BYTES, ROW_KEYS
from .attention_reference import Checker
from .attention_row import CHECK_WORK, STATISTICS, AttentionRow
from .attention_torch import SCORES, explained, implementations
from .ceilings import Ceilings, add_rates
from .machine import MIB
from .sweep import Predicted, Tool
from .tables import Layout
from .timing import Phase
from .torch_row import Memory, element_type, larger, precision, seeded


@contextlib.contextmanager
def deterministic(torch, wanted):
    if not wanted:
        yield
        return
    settings = torch.utils.deterministic
    before, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False  # filling takes time
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = before


def laid_out_as(torch, o, values):
    """The values in the output's own order of dimensions in memory, as the rest of a model gives its gradient: some
    backends would otherwise copy it within the timed backward."""
    return torch.empty_like(o, requires_grad=False).copy_(values)


class AttentionCase(AttentionRow):
    def predict(self):
        """Least bytes: what the formula's operations hold at once, or operands and results alone."""
        p, c = self._configuration.problem, self._configuration
        size = ELEMENT_BYTES[p.dtype]
        query, kv = p.query_elements * size, p.kv_elements * size
        scores = p.score_elements * size if self._implementation.keeps == SCORES else 0
        mask = p.seq_len * p.kv_len if scores and not p.sees_everything else 0
        first = 2 * query + 2 * kv + mask + (2 * scores or p.lse_bytes)
        details = {"fwd_flops": p.forward_flops, "fwd_bytes": p.forward_bytes,
                   "fwd_predicted_peak_mem_mib": first / MIB}
        peak = first
        if c.backward:
            backward = 4 * query + 4 * kv + mask + (2 * scores or p.lse_bytes)
            peak = max(first, backward)
            details.update(bwd_flops=p.backward_flops, bwd_bytes=p.backward_bytes,
                           bwd_predicted_peak_mem_mib=backward / MIB)
        return Predicted(first, peak, details)

    def run(self, session, row):
        torch, p = session.torch, self._configuration.problem
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(precision(torch, p.dtype))
            stack.enter_context(deterministic(torch, p.deterministic))
            stack.enter_context(self._implementation.context(torch))
            _Run(session, self._configuration, self._implementation, row).run()


class _Run:
    def __init__(self, session, configuration, implementation, row):
        self._session, self._torch, self._settings = session, session.torch, session.settings
        self._configuration, self._problem = configuration, configuration.problem
        self._implementation, self._row, self._figures = implementation, row, row.figures
        if session.ceilings is None:
            session.ceilings = Ceilings(self._torch, self._settings, lambda dtype: precision(self._torch, dtype))
            _load_libraries(self._torch, self._settings)
        self._memory = None  # once what is allocated only once is there
        self._max_error = 0.0

    def run(self):
        c, torch, figures = self._configuration, self._torch, self._figures
        self._warm_ceilings()
        self._memory = Memory(torch, self._settings.is_cuda)
        generator = seeded(self._torch, self._settings)  # the same values for every implementation
        q, k, v = self._operands(generator)
        call = self._implementation.make(torch, self._problem, self._settings.device)
        checker = None
        if self._settings.check:
            checker = Checker(torch, self._problem, q, k, v, c.backward, self._settings.seed,
                              CHECK_WORK[self._settings.is_cuda])

        # Forward. What the previous call kept is given back first, as a training loop does.
        figures["kernel"] = self._implementation.kernel
        kept = {"o": None}

        def forward():
            kept["o"] = None
            kept["o"] = call(q, k, v)

        self._memory.reset_peak()
        with explained():
            self._first_call(forward, "fwd")
        peak = self._memory.peak()
        figures["fwd_peak_mem_mib"] = peak
        if checker and not self._accept(checker, kept["o"].detach()):
            return
        if c.forward:
            self._memory.reset_peak()
            self._measure("fwd", Phase(forward), self._problem.forward_flops, self._problem.forward_bytes)
            peak = larger(peak, self._memory.peak())
        figures["fwd_peak_mem_mib"] = peak
        if not c.backward:
            return

        # Backward: what is held when it starts is the operands and whatever the forward kept.
        d_o = laid_out_as(torch, kept["o"], self._normal(generator, self._problem.num_heads, self._problem.seq_len))
        self._synchronize()
        figures["bwd_kernel"] = self._implementation.kernel
        figures["bwd_mem_before_backward_mib"] = self._memory.current()
        gradients = {"all": None}
        # A compiled backward may write over what the forward kept, so it runs once for each forward.
        keep = not self._implementation.compiles

        def backward():
            gradients["all"] = None
            gradients["all"] = torch.autograd.grad(kept["o"], (q, k, v), d_o, retain_graph=keep)

        peaks = [None]

        def fresh_forward():
            peaks[0] = larger(peaks[0], self._memory.peak())
            gradients["all"] = None
            forward()
            self._memory.reset_peak()

        self._memory.reset_peak()
        with explained():
            self._first_call(backward, "bwd")
        peaks[0] = self._memory.peak()
        figures["bwd_peak_mem_mib"] = peaks[0]
        if checker and not self._accept(checker, kept["o"].detach(), d_o, gradients["all"]):
            return
        self._memory.reset_peak()
        self._measure("bwd", Phase(backward, None if keep else fresh_forward), self._problem.backward_flops,
                      self._problem.backward_bytes)
        figures["bwd_peak_mem_mib"] = larger(peaks[0], self._memory.peak())

    def _normal(self, generator, heads, rows):
        torch, p = self._torch, self._problem
        values = torch.randn(p.batch, heads, rows, p.head_dim, device=self._settings.device, generator=generator)
        return values.to(element_type(torch, p.dtype))

    def _operands(self, generator):
        p = self._problem
        shapes = ((p.num_heads, p.seq_len), (p.num_kv_heads, p.kv_len), (p.num_kv_heads, p.kv_len))
        return tuple(self._normal(generator, *shape).requires_grad_(self._configuration.backward) for shape in shapes)

    def _synchronize(self):
        if self._settings.is_cuda:
            self._torch.cuda.synchronize()

    def _warm_ceilings(self):
        self._session.ceilings.matmul_tflops(self._problem.dtype)
        self._session.ceilings.copy_gbps()

    def _first_call(self, work, phase):
        """Untimed but for what it compiles."""
        begin = time.perf_counter()
        work()
        self._synchronize()
        if self._implementation.compiles:
            self._figures[f"{phase}_compile_s"] = time.perf_counter() - begin

    def _accept(self, checker, o, d_o=None, gradients=None):
        """Records the comparison; False ends the row as a mismatch."""
        with _whole_memory(self._session):
            error, failure = checker.check(o, d_o, gradients)
        self._max_error = max(self._max_error, error)
        self._figures["check"] = "sampled rows" if checker.sampled else "every element"
        self._figures["max_rel_error"] = self._max_error
        if failure:
            self._row.end("mismatch", failure)
        return not failure

    def _measure(self, name, phase, flops, least_bytes):
        self._session.sampler.measure(phase).add_to(self._figures, name)
        add_rates(self._figures, name, flops, least_bytes, self._problem.dtype, self._session.ceilings)


@contextlib.contextmanager
def _whole_memory(session):
    """The check's own buffers are not under --memory-limit."""
    session.limit_memory(False)
    try:
        yield
    finally:
        if session.settings.is_cuda and session.settings.memory_limit:
            session.torch.cuda.empty_cache()
        session.limit_memory()


def _load_libraries(torch, settings):
    """cuBLAS allocates a workspace for each thread that calls it: done before any row's memory is looked at, once from
    here and once from autograd's thread."""
    if not settings.is_cuda:
        return
    for kind in (torch.float32, torch.bfloat16):
        a = torch.randn(2, 64, 64, device=settings.device, dtype=kind, requires_grad=True)
        torch.matmul(a, a.detach()).sum().backward()
    torch.cuda.synchronize()


class AttentionTool(Tool):
    name = "pytorch_attention"
    summary = "Time, memory and correctness of PyTorch's attention over the same sweeps as attn_bench."
    row_keys = ROW_KEYS

    def __init__(self):
        wide = ["batch", "num_heads", "num_kv_heads", "head_dim", "kv_len", "causal", "deterministic", "pass"]
        for phase, kernel in (("fwd", "kernel"), ("bwd", "bwd_kernel")):
            wide.append(kernel)
            wide += [phase + figure for figure in (*STATISTICS, "_tflops", "_gbps", "_bound", "_bound_share",
                                                   "_compile_s")]
        self.layout = Layout(
            ["impl", "dtype"],
            ["d_model", "seq_len", "fwd_ms", "bwd_ms", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
             "bwd_peak_mem_mib", "status"], wide + ["max_rel_error", "check"])

    def add_options(self, table):
        attention_problem.add_options(table)
        table.examples = [
            "pytorch_attention",
            "pytorch_attention --impl pytorch_eager,pytorch_sdpa_flash --seq-len 256:4096:x2 -o pytorch.json",
            "pytorch_attention --preset fa_grid --impl pytorch_sdpa_flash --against ours.json",
            "pytorch_attention --device cpu --threads 4 --preset quick --format jsonl",
        ]

    def default_preset(self, is_cuda):
        return "notes" if is_cuda else "quick"

    def before_torch(self, table):
        if table.flag("--deterministic"):
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS refuses

    def cases(self, table, settings):
        return [AttentionCase(configuration) for configuration in attention_problem.expand(table, settings)]

    def list_text(self):
        return "".join(f"  {name:24}{found.description}\n" for name, found in implementations().items())
