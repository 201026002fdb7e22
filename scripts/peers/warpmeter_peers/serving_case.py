"""One row of the serving modes in PyTorch: decoding over keys that are there, and a prompt at once and in chunks. As
tools/attn_bench/decode_case.cpp and prefill_case.cpp."""

import contextlib
import math
import warnings

from . import serving_problem
from .attention_problem import ELEMENT_BYTES
from .attention_reference import UNIT_ROUNDOFF, Checker
from .attention_row import CHECK_WORK, STATISTICS, AttentionRow
from .attention_torch import SCORES, explained, implementations
from .ceilings import Ceilings, add_rates
from .machine import MIB
from .serving_problem import ROW_KEYS
from .sweep import Predicted, Tool, is_out_of_memory
from .tables import Layout
from .timing import Phase
from .torch_row import Memory, element_type, precision, seeded


class _Case(AttentionRow):
    def run(self, session, row):
        torch, p = session.torch, self._configuration.problem
        if session.ceilings is None:
            session.ceilings = Ceilings(torch, session.settings, lambda dtype: precision(torch, dtype))
        session.ceilings.matmul_tflops(p.dtype)
        session.ceilings.copy_gbps()
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.no_grad())
            stack.enter_context(precision(torch, p.dtype))
            stack.enter_context(self._implementation.context(torch))
            self._measure(session, row)

    def _values(self, torch, settings, generator, shape, value_range=0, scale=1.0):
        """The same for every implementation of a problem."""
        if value_range:
            values = (torch.rand(shape, device=settings.device, generator=generator) * 2 - 1) * value_range
        else:
            values = torch.randn(shape, device=settings.device, generator=generator) * scale
        return values.to(element_type(torch, self._configuration.problem.dtype))


class DecodeCase(_Case):
    def predict(self):
        p = self._configuration.problem
        size = ELEMENT_BYTES[p.dtype]
        scores = 2 * p.score_elements * size if self._implementation.keeps == SCORES else 0
        peak = 2 * (p.query_elements + p.kv_elements) * size + scores
        return Predicted(peak, peak, {"decode_flops": p.forward_flops, "decode_bytes": float(p.forward_bytes),
                                      "decode_predicted_peak_mem_mib": peak / MIB})

    def _measure(self, session, row):
        torch, settings, c = session.torch, session.settings, self._configuration
        p, figures = c.problem, row.figures
        memory = Memory(torch, settings.is_cuda)
        generator = seeded(torch, settings)
        q, k, v = (self._values(torch, settings, generator, (p.batch, heads, rows, p.head_dim), c.value_range)
                   for heads, rows in ((p.num_heads, p.seq_len), *2 * ((p.num_kv_heads, p.kv_len),)))
        call = self._implementation.make(torch, p, settings.device)
        figures["kernel"] = self._implementation.kernel
        memory.reset_peak()
        with explained():
            o = call(q, k, v)
            if settings.is_cuda:
                torch.cuda.synchronize()
        figures["decode_peak_mem_mib"] = memory.peak()
        figures["nan_count"], figures["inf_count"] = int(o.isnan().sum()), int(o.isinf().sum())
        if settings.check:
            checker = Checker(torch, p, q, k, v, False, settings.seed, CHECK_WORK[settings.is_cuda])
            error, failure = checker.check(o)
            figures["check"] = "sampled rows" if checker.sampled else "every element"
            figures["max_rel_error"] = error
            if failure:
                row.end("mismatch", failure)
                return
        kept = {"o": o}
        del o

        def decode():
            kept["o"] = None
            kept["o"] = call(q, k, v)

        session.sampler.measure(Phase(decode)).add_to(figures, "decode")
        add_rates(figures, "decode", p.forward_flops, p.forward_bytes, p.dtype, session.ceilings)
        figures["tokens_per_s"] = p.batch * p.seq_len / (figures["decode_ms"] * 1e-3)


class PrefillCase(_Case):
    def predict(self):
        peak = self._bytes(self._configuration.problem.seq_len)
        chunked = self._bytes(min(self._configuration.chunk, self._configuration.problem.seq_len))
        return Predicted(chunked, chunked, {"prefill_flops": self._configuration.flops,
                                            "chunked_predicted_peak_mem_mib": chunked / MIB,
                                            "oneshot_predicted_peak_mem_mib": peak / MIB})

    def _bytes(self, tokens):
        """Operands, the cache and results; the scores of one chunk where they are kept."""
        p = self._configuration.problem
        size = ELEMENT_BYTES[p.dtype]
        scores = 2 * p.batch * p.num_heads * tokens * p.kv_len * size if self._implementation.keeps == SCORES else 0
        return (2 * p.query_elements + 2 * p.kv_elements) * size + scores

    def _measure(self, session, row):
        torch, settings, c = session.torch, session.settings, self._configuration
        p, figures, dtype = c.problem, row.figures, c.problem.dtype
        memory = Memory(torch, settings.is_cuda)
        generator = seeded(torch, settings)
        width, kv_width = p.num_heads * p.head_dim, p.num_kv_heads * p.head_dim
        weights = x = None
        if c.projections:
            weights = [self._values(torch, settings, generator, shape, scale=1 / math.sqrt(width))
                       for shape in ((width, width), (kv_width, width), (kv_width, width), (width, width))]
            x = self._values(torch, settings, generator, (p.batch, p.seq_len, width))
        else:
            whole = [self._values(torch, settings, generator, (p.batch, heads, p.seq_len, p.head_dim))
                     for heads in (p.num_heads, p.num_kv_heads, p.num_kv_heads)]
        figures["kernel"] = self._implementation.kernel

        def heads_of(rows, heads):
            return rows.view(p.batch, rows.shape[1], heads, p.head_dim).transpose(1, 2)

        def prefill_in(chunks):
            """A function that works the prompt through and gives its outputs; keys and values go to a cache."""
            linear = torch.nn.functional.linear
            calls = [self._implementation.make(torch, c.problem_of(*chunk), settings.device) for chunk in chunks]
            cache = [torch.zeros(p.batch, p.num_kv_heads, p.seq_len, p.head_dim, dtype=element_type(torch, dtype),
                                 device=settings.device) for _ in range(2)]
            shape = (p.batch, p.seq_len, width) if c.projections else (p.batch, p.num_heads, p.seq_len, p.head_dim)
            out = torch.empty(shape, dtype=element_type(torch, dtype), device=settings.device)

            def prefill():
                for (first, tokens), call in zip(chunks, calls):
                    rows = slice(first, first + tokens)
                    if c.projections:
                        piece = x[:, rows]
                        q, *new = (heads_of(linear(piece, weight), heads) for weight, heads in
                                   zip(weights, (p.num_heads, p.num_kv_heads, p.num_kv_heads)))
                    else:
                        q, *new = (tensor[:, :, rows] for tensor in whole)
                    for held, values in zip(cache, new):
                        held[:, :, rows] = values
                    o = call(q, *(held[:, :, :first + tokens] for held in cache))
                    if c.projections:
                        out[:, rows] = linear(o.transpose(1, 2).reshape(p.batch, tokens, width), weights[3])
                    else:
                        out[:, :, rows] = o
                return out

            return prefill

        def measure(phase, chunks):
            memory.reset_peak()
            prefill = prefill_in(chunks)
            with explained():
                outputs = prefill().clone()
            session.sampler.measure(Phase(prefill)).add_to(figures, phase)
            add_rates(figures, phase, c.flops, self._least_bytes(), dtype, session.ceilings)
            figures[f"{phase}_tokens_per_s"] = p.batch * p.seq_len / (figures[f"{phase}_ms"] * 1e-3)
            figures[f"{phase}_peak_mem_mib"] = memory.peak()
            return outputs

        chunked = measure("chunked", c.chunks)
        session.checkpoint(row)
        try:
            oneshot = measure("oneshot", [(0, p.seq_len)])
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(torch, error):
                raise
            figures["oneshot"] = "oom"
            return
        figures["oneshot"] = "ok"
        difference = (oneshot.double() - chunked.double()).abs()
        largest = float(oneshot.abs().max())
        most = float(difference.max())
        allowed = 1e-5 * max(1.0, largest) if dtype == "fp32" else 4 * UNIT_ROUNDOFF[dtype] * largest
        figures["max_diff"], figures["mean_diff"] = most, float(difference.mean())
        figures["equal"] = most <= allowed
        if not most <= allowed:
            row.end("mismatch", f"chunked and one-shot outputs differ by {most:.3g}, allowed {allowed:.3g}")
            return
        figures["speedup"] = figures["oneshot_ms"] / figures["chunked_ms"]
        figures["overhead_ratio"] = figures["chunked_ms"] / figures["oneshot_ms"]
        if figures["oneshot_peak_mem_mib"]:
            figures["memory_saved_share"] = 1 - figures["chunked_peak_mem_mib"] / figures["oneshot_peak_mem_mib"]

    def _least_bytes(self):
        c, p = self._configuration, self._configuration.problem
        if not c.projections:
            return p.forward_bytes
        rows, width, kv_width = p.batch * p.seq_len, p.num_heads * p.head_dim, p.num_kv_heads * p.head_dim
        return ELEMENT_BYTES[p.dtype] * (2 * rows * width + width * (2 * width + 2 * kv_width) + 2 * rows * kv_width)


def _layouts():
    decode_wide = ["batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "tokens", "kernel", "value_range",
                   "nan_count", "inf_count", *("decode" + figure for figure in STATISTICS), "decode_tflops",
                   "decode_bound", "decode_bound_share", "decode_peak_mem_mib", "check"]
    prefill_wide = ["batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "projections", "kernel", "oneshot"]
    for phase in ("oneshot", "chunked"):
        prefill_wide += [phase + figure for figure in (*STATISTICS, "_gbps", "_bound", "_bound_share")]
    return {
        "decode": Layout(["impl", "dtype"], ["kv_len", "decode_ms", "tokens_per_s", "decode_gbps", "max_rel_error",
                                             "status"], decode_wide),
        "prefill": Layout(["impl", "dtype"], ["seq_len", "chunk", "oneshot_ms", "chunked_ms", "speedup",
                                              "overhead_ratio", "oneshot_tokens_per_s", "chunked_tokens_per_s",
                                              "oneshot_tflops", "chunked_tflops", "oneshot_peak_mem_mib",
                                              "chunked_peak_mem_mib", "memory_saved_share", "max_diff", "mean_diff",
                                              "equal", "status"], prefill_wide),
    }


class ServingTool(Tool):
    name = "pytorch_serving"
    summary = "PyTorch's attention in attn_bench's serving modes, over the same sweeps."
    row_keys = ROW_KEYS["decode"]
    layout = _layouts()["decode"]

    def add_options(self, table):
        serving_problem.add_options(table)
        table.examples = [
            "pytorch_serving",
            "pytorch_serving --preset decode_grid --against ours.json",
            "pytorch_serving --mode prefill --seq-len 2048,8192 --chunk 512 --dtype bf16 -o pytorch.json",
        ]

    def default_preset(self, is_cuda):
        return "decode"

    def cases(self, table, settings):
        mode = serving_problem.mode_of(table)
        self.row_keys, self.layout = ROW_KEYS[mode], _layouts()[mode]
        kind = DecodeCase if mode == "decode" else PrefillCase
        return [kind(configuration) for configuration in serving_problem.expand(table, settings)]

    def list_text(self):
        return "".join(f"  {name:24}{found.description}\n" for name, found in implementations().items()
                       if name in serving_problem.IMPLEMENTATIONS)
