"""Rows of data-parallel training in PyTorch: ranks started here, one process each. As e2e_bench --data-parallel."""

from . import e2e_problem
from .e2e_problem import ROW_KEYS
from .machine import MIB
from .options import Option
from .rank_case import (
    BACKENDS,
    RankCase,
    backend_option,
    backends_of,
    exact_size,
    groups_of,
    rank_options,
    sizes_of,
    world_size_option,
)
from .samples import summarize
from .sweep import Predicted, Tool
from .tables import Layout

STRATEGIES = ("ddp", "naive", "flat", "overlap", "bucketed")
BUCKETED = ("ddp", "bucketed")
DEFAULT_BUCKET = 25 * 2**20


class DdpCase(RankCase):
    def __init__(self, configuration, backend, world_size, strategy, bucket, groups):
        super().__init__(backend, world_size, groups)
        self._model, self.strategy, self.bucket = configuration, strategy, bucket

    def configuration(self):
        return {**self._model.fields(), "backend": self.backend, "world_size": self.world_size,
                "strategy": self.strategy, "bucket": exact_size(self.bucket) if self.bucket else None}

    def option_values(self):
        return {**self._model.option_values(), "--backend": self.backend, "--world-size": str(self.world_size),
                "--data-parallel": self.strategy, "--bucket-size": exact_size(self.bucket) if self.bucket else "",
                "--mode": ""}

    def unsupported(self, settings):
        if reason := super().unsupported(settings):
            return reason
        if BACKENDS[self.backend] == "cpu" and settings.is_cuda:
            return "gloo works on the CPU here, and --device is cuda"
        if self._model.precision == "tf32" and not settings.is_cuda:
            return "tf32 is a CUDA compute mode"
        return None

    def predict(self):
        """Least bytes of a rank: fp32 weights, gradients and both moments."""
        m = self._model.model
        peak = 16 * m.parameters
        return Predicted(peak, peak * (1 if self.backend == "nccl" else self.world_size),
                         {"parameters": m.parameters, "predicted_rank_peak_mem_mib": peak / MIB})

    def run(self, session, row):
        c = self._model
        bucket = f" ({exact_size(self.bucket)})" if self.bucket else ""
        answers = self.answers(session, row,
                               f"{self.strategy}{bucket} over {self.world_size} ranks of {self.backend}",
                               {"precision": c.precision, "structure": c.structure, "attention": c.attention,
                                "batch": c.batch, "context": c.context, "model": vars(c.model),
                                "strategy": self.strategy, "bucket_bytes": self.bucket})
        if answers is None:
            return
        figures = answers[0]
        if len({answer["weights"] for answer in answers}) != 1:
            row.end("mismatch", "the ranks' weights differ after the steps")
            return
        figures.pop("weights")
        peaks = [answer["peak_mem_mib"] for answer in answers]
        figures["peak_mem_mib"] = None if None in peaks else max(peaks)
        figures["local_step_ms_of_ranks"] = [answer["own_local_step_ms"] for answer in answers]
        figures.update(exposed(self.strategy, figures, [answer["waited_ms"] for answer in answers]))
        del figures["own_local_step_ms"], figures["waited_ms"]
        samples = c.batch * self.world_size
        seconds = figures["step_ms"] / 1e3
        flops = 3 * self.world_size * c.model.forward_flops(c.batch, c.context)
        figures.update(step_s=seconds, local_share=figures["local_step_ms"] / figures["step_ms"], step_flops=flops,
                       step_tflops=flops / seconds / 1e12, samples_per_s=samples / seconds,
                       tokens_per_s=samples * c.context / seconds)
        row.figures.update(figures)


def exposed(strategy, figures, waited):
    """What of the communication nothing hid, and what ranks waited beside that. `waited`: ms by rank, then by step."""
    if strategy == "ddp":
        # What DDP waits for is within its backward: told by the step without communication.
        return {"exposed_ms": max(0.0, figures["step_ms"] - figures["local_step_ms"]), "rank_skew_ms": None,
                "exposed_by": "difference"}
    # The rank that came last to a step's end waited for communication alone; the others for it, too.
    steps = list(zip(*waited))
    return {"exposed_ms": summarize([min(step) for step in steps])["ms"],
            "rank_skew_ms": summarize([max(step) - min(step) for step in steps])["ms"], "exposed_by": "events"}


class DdpTool(Tool):
    name = "pytorch_ddp"
    summary = "A training step of e2e_bench's models on several ranks: PyTorch's DDP, and the same strategies by hand."
    row_keys = [*ROW_KEYS, "backend", "world_size", "strategy", "bucket"]
    takes_dtypes = False
    flushes = False

    def __init__(self):
        self.layout = Layout(
            ["size", "precision", "structure", "attention", "context", "backend"],
            ["strategy", "world_size", "bucket", "step_s", "comm_ms", "exposed_ms", "peak_mem_mib", "status"],
            ["batch", "parameters", "rank_skew_ms", "local_step_ms", "local_share", "comm_calls", "comm_bytes",
             "step_tflops", "tokens_per_s", "samples_per_s", "step_mean_ms", "step_min_ms", "step_p95_ms",
             "step_stdev_ms", "step_noise", "step_n", "step_stop", "predicted_rank_peak_mem_mib", "loss"])
        self._groups = None

    def add_options(self, table):
        e2e_problem.add_options(table)
        rows = "Data parallel"
        table.add(
            Option("--data-parallel", "ddp is torch.nn.parallel.DistributedDataParallel with gradients as views of "
                   "buckets; the others are made by hand, their buckets by flattening.", "NAMES", "all",
                   ", ".join(STRATEGIES) + ", or all", rows, row_option=True),
            backend_option(rows), world_size_option(rows, " --batch is a rank's."),
            Option("--bucket-size", "ddp and bucketed: DDP's cap, and most bytes of a bucket made by hand.", "LIST", "",
                   "sizes such as 1MiB,25MiB", rows, row_option=True, default_note="25MiB"),
            *rank_options())
        table.examples = ["pytorch_ddp --device cpu --size tiny --world-size 2,4 -o pytorch.json",
                          "pytorch_ddp --size xl --precision bf16 --context 1024 --structure pytorch_compiled_blocks "
                          "--attention sdpa --bucket-size 1MiB,10MiB,25MiB,100MiB"]

    def cases(self, table, settings):
        backends = backends_of(table, settings)
        buckets = sizes_of(table, "--bucket-size") if table.has("--bucket-size") else [DEFAULT_BUCKET]
        self._groups = groups_of(table, settings, "ddp_rank")
        models = e2e_problem.expand(table, settings)
        return [DdpCase(model, backend, world, strategy, bucket, self._groups)
                for model in models for backend in backends for world in table.integers("--world-size", 1, 64)
                for strategy in table.words("--data-parallel", STRATEGIES, True)
                for bucket in (buckets if strategy in BUCKETED else [None])]

    def list_text(self):
        return "".join(f"  {name}\n" for name in STRATEGIES)
