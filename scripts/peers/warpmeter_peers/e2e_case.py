"""One row of a model in PyTorch: forward, forward and backward, training step. As tools/e2e_bench/model_case.cpp."""

import contextlib
import math
import time
import warnings

from . import e2e_model, e2e_problem
from .e2e_problem import ROW_KEYS
from .machine import MIB
from .sweep import Predicted, Tool
from .tables import Layout
from .timing import Phase
from .torch_row import Memory, larger, precision

MAX_NORM, LEARNING_RATE = 1.0, 1e-3


class ModelCase:
    def __init__(self, configuration):
        self._configuration = configuration

    def configuration(self):
        return self._configuration.fields()

    def option_values(self):
        return self._configuration.option_values()

    def unsupported(self, settings):
        if self._configuration.precision == "tf32" and not settings.is_cuda:
            return "tf32 is a CUDA compute mode"
        if self._configuration.structure == "pytorch_compiled_graph":
            if not settings.is_cuda:
                return "there are no CUDA graphs on the CPU"
            if self._configuration.precision == "fp16" and self._configuration.training:
                return "GradScaler decides on the host whether to step: no graph"
        return None

    def predict(self):
        """Least bytes: fp32 weights, and with training gradients and both moments."""
        c = self._configuration
        weights = 4 * c.model.parameters
        flops = c.model.forward_flops(c.batch, c.context)
        details = {"parameters": c.model.parameters}
        if "forward" in c.modes:
            details.update(fwd_flops=flops, fwd_predicted_peak_mem_mib=weights / MIB)
        if c.training:
            details.update(train_step_flops=3 * flops, train_predicted_peak_mem_mib=4 * weights / MIB)
        return Predicted(weights if "forward" in c.modes else 4 * weights, 4 * weights if c.training else weights,
                         details)

    def run(self, session, row):
        with warnings.catch_warnings(), precision(session.torch, self._configuration.precision):
            warnings.simplefilter("ignore")
            _Run(session, self._configuration, row).run()


class _Run:
    def __init__(self, session, configuration, row):
        self._session, self._torch, self._settings = session, session.torch, session.settings
        self._configuration, self._row, self._figures = configuration, row, row.figures

    def run(self):
        torch, c, settings = self._torch, self._configuration, self._settings
        if settings.is_cuda:  # cuBLAS's workspace is in no figure
            torch.matmul(*(torch.ones(64, 64, device=settings.device) for _ in range(2)))
        self._memory = Memory(torch, settings.is_cuda)
        torch.manual_seed(settings.seed)
        model = e2e_model.build(torch, c.model, c.context, settings.device, c.attention)
        tokens, targets = (torch.randint(c.model.vocab, (c.batch, c.context), device=settings.device)
                           for _ in range(2))
        self._figures["parameters"] = sum(p.numel() for p in model.parameters())
        compiled = c.structure != "pytorch_eager"
        call = model
        if compiled:
            import torch._dynamo

            torch._dynamo.reset()
            if c.structure == "pytorch_compiled":
                call = torch.compile(model, dynamic=False)
            else:
                for part in (*model.layers, model.ln_final):
                    part.compile(dynamic=False)
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        device = "cuda" if settings.is_cuda else "cpu"

        def autocast():
            if c.precision not in kinds:
                return contextlib.nullcontext()
            return torch.autocast(device, dtype=kinds[c.precision])

        kept = {}

        def forward():
            kept.clear()
            with torch.no_grad(), autocast():
                kept["logits"] = call(tokens)

        flops = c.model.forward_flops(c.batch, c.context)
        if "forward" in c.modes:
            if not self._measure("fwd", forward, flops, "fwd_peak_mem_mib",
                                 lambda: bool(torch.isfinite(kept["logits"]).all())):
                return
            kept.clear()
        if not c.training:
            return

        graphed = c.structure == "pytorch_compiled_graph"
        more = {"fused": True, "capturable": graphed} if compiled else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **more)
        scaler = torch.amp.GradScaler(device, enabled=c.precision == "fp16")

        def forward_backward():
            optimizer.zero_grad(set_to_none=True)
            with autocast():
                logits = call(tokens)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            kept["loss"] = loss.detach()

        def train_step():
            forward_backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            scaler.step(optimizer)
            scaler.update()

        forward_backward()
        first_loss = kept["loss"].item()
        train_step()  # the optimizer's state is resident from here on
        self._figures["loss"], self._figures["loss_expected"] = first_loss, _expected_loss(c)
        if settings.check and not abs(first_loss - _expected_loss(c)) < 0.5:
            self._row.end("mismatch", f"loss {first_loss} on random weights and tokens, expected {_expected_loss(c)}")
            return
        for mode, name, work in (("forward_backward", "fwd_bwd", forward_backward), ("train_step", "train_step",
                                                                                     train_step)):
            if mode in c.modes:
                self._measure(name, work, 3 * flops, "train_peak_mem_mib", None)

    def _measure(self, name, work, flops, peak, check):
        figures, c = self._figures, self._configuration
        self._memory.reset_peak()
        begin = time.perf_counter()
        work()
        self._synchronize()
        figures[f"{name}_first_ms"] = (time.perf_counter() - begin) * 1e3
        figures[peak] = larger(figures.get(peak), self._memory.peak())
        if self._settings.check and check and not check():
            self._row.end("mismatch", "logits are not finite")
            return False
        # What the first call of a compiled model took is no phase's.
        self._memory.reset_peak()
        if c.structure == "pytorch_compiled_graph":
            work()
            figures[peak] = larger(figures.get(peak), self._memory.peak())
            graph = self._record(work)  # whose own pool of memory is no peak of the model's
            self._session.sampler.measure(Phase(graph.replay)).add_to(figures, name)
        else:
            self._session.sampler.measure(Phase(work)).add_to(figures, name)
            figures[peak] = larger(figures.get(peak), self._memory.peak())
        seconds = figures[f"{name}_ms"] / 1e3
        figures[f"{name}_s"] = seconds
        figures[f"{name}_flops"] = flops
        figures[f"{name}_tflops"] = flops / seconds / 1e12
        if name != "fwd_bwd":
            figures["fwd_tokens_per_s" if name == "fwd" else "tokens_per_s"] = c.tokens / seconds
        self._session.checkpoint(self._row)
        return True

    def _record(self, work):
        """`work` as a graph, after a few runs in a stream of its own, as PyTorch's documentation has it."""
        cuda = self._torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                work()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            work()
        return graph

    def _synchronize(self):
        if self._settings.is_cuda:
            self._torch.cuda.synchronize()


def _expected_loss(c):
    variance = 2 * c.model.d_model / (c.model.vocab + c.model.d_model)
    return math.log(c.model.vocab) + variance / 2


class ModelTool(Tool):
    name = "pytorch_e2e"
    summary = "Time and memory of e2e_bench's models in PyTorch: eager, compiled, with SDPA."
    row_keys = ROW_KEYS
    takes_dtypes = False

    def __init__(self):
        wide = ["batch", "vocab", "train_step_s", "tokens_per_s"]
        for phase in ("fwd", "fwd_bwd", "train_step"):
            wide += [phase + figure for figure in ("_first_ms", "_ms", "_mean_ms", "_min_ms", "_p95_ms", "_stdev_ms",
                                                   "_noise", "_n", "_stop", "_flops", "_tflops")]
        self.layout = Layout(
            ["precision", "structure", "attention", "context"],
            ["size", "d_model", "d_ff", "num_layers", "num_heads", "parameters", "fwd_s", "fwd_bwd_s",
             "fwd_peak_mem_mib", "train_peak_mem_mib", "status"], wide + ["loss", "loss_expected"])

    def add_options(self, table):
        e2e_problem.add_options(table)
        table.examples = [
            "pytorch_e2e --size tiny --device cpu",
            "pytorch_e2e --preset compiled -o pytorch.json",
            "pytorch_e2e --size xl --precision bf16 --structure pytorch_compiled --attention sdpa --context 1024",
        ]

    def default_preset(self, is_cuda):
        return "notes" if is_cuda else "quick"

    def cases(self, table, settings):
        modes = table.words("--mode", e2e_problem.MODES)
        if "train_step" in modes and "forward_backward" not in modes and "train_step_s" not in self.layout.columns:
            at = self.layout.columns.index("fwd_peak_mem_mib")
            self.layout.columns.insert(at, "train_step_s")
        return [ModelCase(configuration) for configuration in e2e_problem.expand(table, settings)]

    def list_text(self):
        return "".join(f"  {name:8}{model.parameters:>14}\n" for name, model in e2e_model.SIZES.items())
