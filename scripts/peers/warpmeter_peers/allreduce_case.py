"""Rows of all_reduce in PyTorch: ranks started here, one process each. As tools/allreduce_bench."""

from .machine import MIB
from .options import Option, Preset
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
from .sweep import Predicted, Tool
from .tables import Layout

OPS = ("sum", "avg", "max", "min")
ROW_KEYS = ("target", "collective", "op", "dtype", "world_size", "bytes", "tensor_size", "in_place", "buffers")
ELEMENT = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


class AllreduceCase(RankCase):
    def __init__(self, backend, world_size, op, dtype, size, groups):
        super().__init__(backend, world_size, groups)
        self.op, self.dtype, self.bytes = op, dtype, size

    def configuration(self):
        return dict(zip(ROW_KEYS, (f"pytorch-{self.backend}-{BACKENDS[self.backend]}", "all_reduce", self.op,
                                   self.dtype, self.world_size, self.bytes, exact_size(self.bytes), True, "plain")))

    def option_values(self):
        return {"--backend": self.backend, "--world-size": str(self.world_size), "--op": self.op,
                "--dtype": self.dtype, "--sizes": str(self.bytes)}

    def unsupported(self, settings):
        if self.backend == "gloo" and self.op == "avg":
            return "PyTorch's gloo has no avg"
        return super().unsupported(settings)

    def predict(self):
        peak = self.bytes * (1 if self.backend == "nccl" else self.world_size)
        return Predicted(peak, peak, {"rank_mem_mib": self.bytes / MIB})

    def run(self, session, row):
        what = f"all_reduce {self.op} of {self.bytes // ELEMENT[self.dtype]} {self.dtype} ({exact_size(self.bytes)})"
        answers = self.answers(session, row, what, {"dtype": self.dtype, "op": self.op, "bytes": self.bytes})
        if answers is None:
            return
        figures = answers[0]
        wrong = figures.get("wrong")
        if wrong:
            row.figures["wrong"] = wrong
            row.end("mismatch", f"{wrong} elements of all ranks are wrong")
            return
        figures.pop("wrong")
        row.figures.update(figures)
        row.figures.update(self._rates(figures["median_ms"]))
        row.figures["wrong"] = wrong

    def _rates(self, median_ms):
        n, seconds = self.world_size, median_ms * 1e-3
        factor = 2 * (n - 1) / n
        return {"algo_GiBps": factor * self.bytes / seconds / 2**30 if factor else None,
                "algbw_gbps": self.bytes / seconds / 1e9,
                "busbw_gbps": factor * self.bytes / seconds / 1e9 if factor else None}


class AllreduceTool(Tool):
    name = "pytorch_allreduce"
    summary = "Time, bandwidth and correctness of torch.distributed.all_reduce over the same sweeps as allreduce_bench."
    row_keys = ROW_KEYS
    flushes = False

    def __init__(self):
        self.layout = Layout(
            [], ["target", "world_size", "tensor_size", "median_ms", "mean_ms", "algo_GiBps"],
            ["collective", "op", "dtype", "in_place", "buffers", "min_ms", "p95_ms", "p99_ms", "stdev_ms", "noise", "n",
             "stop", "skew_mean_ms", "algbw_gbps", "busbw_gbps", "wrong", "status"])
        self._groups = None

    def add_options(self, table):
        rows = "Configurations"
        table.add(
            backend_option(rows), world_size_option(rows),
            Option("--sizes", "Bytes of a rank's array.", "LIST", "1MiB,10MiB,100MiB,1GiB",
                   "sizes that are whole numbers of elements: bytes, or KiB MiB GiB, KB MB GB; lists and ranges", rows,
                   row_option=True),
            Option("--op", "How elements are combined.", "NAMES", "sum", ", ".join(OPS) + ", or all", rows,
                   row_option=True),
            *rank_options())
        table.add_presets(
            Preset("notes", "the notes' table: sum of fp32, 2 to 8 ranks, 1 MiB to 1 GiB",
                   {"--world-size": "2,4,6,8", "--sizes": "1MiB,10MiB,100MiB,1GiB", "--op": "sum", "--dtype": "fp32"}))
        table.examples = ["pytorch_allreduce --backend gloo --world-size 2,4 -o pytorch.json",
                          "pytorch_allreduce --device cuda --backend nccl --sizes 8:1GiB:x4"]

    def cases(self, table, settings):
        backends = backends_of(table, settings)
        worlds = table.integers("--world-size", 1, 64)
        ops = table.words("--op", OPS, True)
        sizes = sizes_of(table, "--sizes")
        for dtype in settings.dtypes:
            for size in sizes:
                if size % ELEMENT[dtype]:
                    raise table.error("--sizes", f"{size} is not a whole number of {dtype} elements, which take "
                                                 f"{ELEMENT[dtype]} bytes")
        self._groups = groups_of(table, settings, "allreduce_rank")
        return [AllreduceCase(backend, world, op, dtype, size, self._groups)
                for backend in backends for world in worlds for op in ops for dtype in settings.dtypes
                for size in sizes]

    def list_text(self):
        return "".join(f"  {name:8}torch.distributed's, on {'GPUs' if kind == 'cuda' else 'the CPU'}\n"
                       for name, kind in BACKENDS.items())
