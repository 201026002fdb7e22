"""One row of a primer kernel in Triton or PyTorch: operands, check, calls. As tools/kernel_bench/kernel_case.cpp."""

import contextlib
import os
import time
import warnings

from . import primer_problem, primer_torch
from .ceilings import Ceilings, add_rates
from .machine import MIB
from .primer_problem import INT32, KERNELS, POSITIVE, ROW_KEYS
from .sweep import Predicted, Tool
from .tables import Layout
from .timing import Phase
from .torch_row import Memory, precision


def torch_type(torch, dtype):
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)


def make_operands(torch, problem, device, seed):
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    operands = []
    for shape, fill in KERNELS[problem.kernel].operands(problem):
        if fill == INT32:
            operands.append(torch.randint(-2**31, 2**31, shape, dtype=torch.int32, device=device, generator=generator))
        elif fill == POSITIVE:
            values = torch.rand(shape, device=device, generator=generator) / 16 + 1 / 16
            operands.append(values.to(torch_type(torch, problem.dtype)))
        else:
            values = torch.randn(shape, device=device, generator=generator)
            operands.append(values.to(torch_type(torch, problem.dtype)))
    return operands


class PrimerCase:
    def __init__(self, configuration):
        self._configuration, self._problem = configuration, configuration.problem
        self._kernel = KERNELS[configuration.problem.kernel]

    def configuration(self):
        return self._configuration.fields()

    def option_values(self):
        return self._configuration.option_values()

    def unsupported(self, settings):
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if self._configuration.impl == "triton" and not settings.is_cuda and not interpreted:
            return "Triton compiles for GPUs (TRITON_INTERPRET=1 runs its interpreter, for testing)"
        return None

    def predict(self):
        phase, size = self._kernel.phase, self._kernel.bytes(self._problem)
        details = {f"{phase}_flops": self._kernel.flops(self._problem), f"{phase}_bytes": float(size),
                   f"{phase}_predicted_peak_mem_mib": size / MIB}
        return Predicted(size, size, details)

    def run(self, session, row):
        torch, settings, p, kernel = session.torch, session.settings, self._problem, self._kernel
        if session.ceilings is None:
            session.ceilings = Ceilings(torch, settings, lambda dtype: precision(torch, dtype))
        session.ceilings.matmul_tflops(p.dtype if kernel.matrix_product else "fp32")
        session.ceilings.copy_gbps()
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.no_grad())
            stack.enter_context(precision(torch, p.dtype))
            self._measure(session, row, torch, settings, p, kernel)

    def _measure(self, session, row, torch, settings, p, kernel):
        memory = Memory(torch, settings.is_cuda)
        memory.reset_peak()
        operands = make_operands(torch, p, settings.device, settings.seed)
        function = self._function(torch)
        figures, phase = row.figures, kernel.phase
        begin = time.perf_counter()
        results = primer_torch.results_of(function, operands)
        if settings.is_cuda:
            torch.cuda.synchronize()
        if self._configuration.impl != "pytorch":
            figures[f"{phase}_compile_s"] = time.perf_counter() - begin
        if settings.check:
            error, failure = primer_torch.check(torch, p, operands, results, kernel.matrix_product)
            figures["check"], figures["max_rel_error"] = "every element", error
            if failure:
                row.end("mismatch", failure)
                return
        kept = {"results": results}
        del results

        def call():
            kept["results"] = None  # what the previous call gave is given back first
            kept["results"] = function(*operands)

        memory.reset_peak()
        session.sampler.measure(Phase(call)).add_to(figures, phase)
        add_rates(figures, phase, kernel.flops(p), kernel.bytes(p), p.dtype if kernel.matrix_product else "fp32",
                  session.ceilings)
        figures[f"{phase}_peak_mem_mib"] = memory.peak()

    def _function(self, torch):
        impl, p = self._configuration.impl, self._problem
        if impl == "triton":
            from .primer_triton import functions as in_triton

            return in_triton(p)[p.kernel]
        function = primer_torch.functions(torch, p)[p.kernel]
        if impl == "pytorch_compiled":
            import torch._dynamo

            torch._dynamo.reset()  # a fresh compilation for each shape
            function = torch.compile(function, dynamic=False)
        return function


class PrimerTool(Tool):
    name = "triton_primer"
    summary = "The primer's kernels in Triton and PyTorch over the same sweeps as kernel_bench."
    row_keys = ROW_KEYS

    def __init__(self):
        columns, wide = ["dtype", "rows", "cols"], ["batch", "inner", "kernel_size", "group_size"]
        for phase in ("fwd", "bwd"):
            columns += [phase + figure for figure in ("_ms", "_gbps", "_tflops", "_bound", "_bound_share")]
            wide += [phase + figure for figure in ("_mean_ms", "_min_ms", "_p95_ms", "_p99_ms", "_stdev_ms", "_noise",
                                                   "_n", "_stop", "_peak_mem_mib", "_compile_s")]
        self.layout = Layout(["kernel", "impl"], columns + ["max_rel_error", "status"], wide + ["check"])

    def add_options(self, table):
        primer_problem.add_options(table)
        table.examples = [
            "triton_primer",
            "triton_primer --kernel softmax_online --cols 256:65536:x2 --against ours.json",
            "triton_primer --preset notes --impl all -o peers.json",
        ]

    def default_preset(self, is_cuda):
        return "widths" if is_cuda else "quick"

    def cases(self, table, settings):
        return [PrimerCase(configuration) for configuration in primer_problem.expand(table, settings)]

    def list_text(self):
        return "".join(f"{name}\n  {kernel.formula}\n" for name, kernel in KERNELS.items())
