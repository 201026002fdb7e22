"""Rows of all_reduce in PyTorch: ranks started here, one process each. As tools/allreduce_bench."""

import atexit
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import grammar, meeting
from .grammar import GrammarError
from .isolation import signal_text
from .machine import MIB
from .options import Option, Preset
from .sweep import Predicted, Tool
from .tables import Layout

BACKENDS = {"gloo": "cpu", "nccl": "cuda"}
OPS = ("sum", "avg", "max", "min")
ROW_KEYS = ("target", "collective", "op", "dtype", "world_size", "bytes", "tensor_size", "in_place", "buffers")
ELEMENT = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
FORM_SECONDS = 120  # importing PyTorch in many processes takes its time


class GroupLost(RuntimeError):
    """A rank has died, failed or hangs."""


def parse_sizes(text):
    """`1MiB,10MiB`, `8:1GiB:x4`, as allreduce_bench reads them."""
    values = []
    for item in text.split(","):
        parts = item.split(":")
        if len(parts) == 1:
            values.append(grammar.parse_size(item))
            continue
        if len(parts) != 3 or parts[2][:1] not in ("x", "+"):
            raise GrammarError("a range is first:last:xN or first:last:+N")
        first, last = grammar.parse_size(parts[0]), grammar.parse_size(parts[1])
        if parts[2][0] == "x":
            step = grammar.parse_integer(parts[2][1:], 2, 2**31)
        else:
            step = grammar.parse_size(parts[2][1:])
        while first <= last:
            values.append(first)
            first = first * step if parts[2][0] == "x" else first + step
    return list(dict.fromkeys(values))


def exact_size(size):
    """The shortest text that reads back to the same bytes."""
    if size % 1024:
        return f"{size}B"
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % scale == 0:
            return f"{size // scale}{unit}"
    return f"{size}B"


class Group:
    """The ranks of one backend and size."""

    def __init__(self, backend, world_size, setup, module):
        self.backend, self.world_size, self._timeout_s = backend, world_size, setup["timeout_s"]
        self._folder = tempfile.mkdtemp(prefix="warpmeter-allreduce-")
        atexit.register(self.close)
        meeting_file = os.path.join(self._folder, "meeting")
        meeting.Meeting.create(meeting_file, world_size)
        folder = pathlib.Path(__file__).resolve().parents[1]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), str(folder.parent / "lib"),
                                                                   os.environ.get("PYTHONPATH", "")]))
        self._ranks = []
        for rank in range(world_size):
            process = subprocess.Popen([sys.executable, "-m", f"warpmeter_peers.{module}"], env=environment,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       start_new_session=True)
            self._ranks.append(process)
            self._tell(rank, {**setup, "backend": backend, "rank": rank, "world_size": world_size,
                              "store": os.path.join(self._folder, "store"), "meeting": meeting_file})
        self._answers("forming the group", FORM_SECONDS, lambda: False)

    def _tell(self, rank, what):
        try:
            self._ranks[rank].stdin.write(json.dumps(what).encode() + b"\n")
            self._ranks[rank].stdin.flush()
        except OSError:
            pass  # it has ended: seen when it should answer

    def measure(self, order, interrupted):
        for rank in range(self.world_size):
            self._tell(rank, order)
        return self._answers(order["what"], None, interrupted)

    def _answers(self, what, seconds, interrupted):
        """A line of every rank. Raises GroupLost."""
        answers, pending = [None] * self.world_size, [b""] * self.world_size
        begin = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._ranks):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while None in answers:
                for key, _ in selector.select(0.1):
                    rank = key.data
                    piece = os.read(key.fileobj.fileno(), 65536)
                    if not piece:
                        self._lost(rank, what)
                    pending[rank] += piece
                    if pending[rank].endswith(b"\n"):
                        answers[rank] = json.loads(pending[rank])
                        if "error" in answers[rank]:
                            self.close()
                            raise GroupLost(f"rank {rank}: {answers[rank]['error']}, in {what}")
                if interrupted():
                    self.close()
                    return None
                if seconds and time.monotonic() - begin > seconds:
                    late = [rank for rank, answer in enumerate(answers) if answer is None]
                    self.close()
                    raise GroupLost(f"ranks {late} did not answer within {seconds:g} s, {what}")
        return answers

    def _lost(self, rank, what):
        process = self._ranks[rank]
        status = process.wait()
        words = process.stderr.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by {signal_text(-status)}" if status < 0 else f"exited with status {status}"
        self.close()
        raise GroupLost(f"rank {rank} {how}, in {what}" + (f": {words[-1]}" if words and status > 0 else ""))

    def close(self):
        atexit.unregister(self.close)
        for rank in range(len(self._ranks)):
            self._tell(rank, {"quit": True})
        until = time.monotonic() + 0.5
        for process in self._ranks:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close() if pipe is not process.stdin else _close(pipe)
        self._ranks = []
        shutil.rmtree(self._folder, ignore_errors=True)


def _close(pipe):
    try:
        pipe.close()
    except OSError:
        pass  # what was left to write has no reader


class Groups:
    """One group at a time: formed for the first row that needs it. `module`: the ranks' program."""

    def __init__(self, setup, module="allreduce_rank"):
        self._setup, self._module, self._group, self._failed = setup, module, None, {}

    def get(self, backend, world_size):
        group = self._group
        if group and (group.backend, group.world_size) == (backend, world_size):
            return group
        self.close()
        if (backend, world_size) in self._failed:
            raise GroupLost(self._failed[backend, world_size])
        try:
            self._group = Group(backend, world_size, self._setup, self._module)
        except GroupLost as error:
            self._failed[backend, world_size] = str(error)
            raise
        return self._group

    def close(self):
        if self._group:
            self._group.close()
        self._group = None


class AllreduceCase:
    def __init__(self, backend, world_size, op, dtype, size, groups):
        self.backend, self.world_size, self.op, self.dtype, self.bytes = backend, world_size, op, dtype, size
        self._groups = groups

    def configuration(self):
        return dict(zip(ROW_KEYS, (f"pytorch-{self.backend}-{BACKENDS[self.backend]}", "all_reduce", self.op,
                                   self.dtype, self.world_size, self.bytes, exact_size(self.bytes), True, "plain")))

    def option_values(self):
        return {"--backend": self.backend, "--world-size": str(self.world_size), "--op": self.op,
                "--dtype": self.dtype, "--sizes": str(self.bytes)}

    def unsupported(self, settings):
        if BACKENDS[self.backend] == "cuda" and not settings.is_cuda:
            return "nccl works on GPUs, and --device is cpu"
        if self.backend == "gloo" and self.op == "avg":
            return "PyTorch's gloo has no avg"
        return None

    def predict(self):
        peak = self.bytes * (1 if self.backend == "nccl" else self.world_size)
        return Predicted(peak, peak, {"rank_mem_mib": self.bytes / MIB})

    def run(self, session, row):
        settings = session.settings
        try:
            group = self._groups.get(self.backend, self.world_size)
            answers = group.measure({
                "what": f"all_reduce {self.op} of {self.bytes // ELEMENT[self.dtype]} {self.dtype} "
                        f"({exact_size(self.bytes)})",
                "device": BACKENDS[self.backend], "dtype": self.dtype, "op": self.op, "bytes": self.bytes,
                "seed": settings.seed, "check": settings.check, "timer": settings.timer, "warmup": settings.warmup,
                "steps": settings.steps, "max_noise": settings.max_noise, "max_time_s": settings.max_time_s,
                "duty_cycle": settings.duty_cycle},
                session.interrupted)
        except GroupLost as error:
            self._groups.close()
            row.end("crashed" if "killed" in str(error) else "error", str(error))
            return
        if answers is None:
            self._groups.close()
            row.end("interrupted", "Ctrl-C")
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

    def __init__(self):
        self.layout = Layout(
            [], ["target", "world_size", "tensor_size", "median_ms", "mean_ms", "algo_GiBps"],
            ["collective", "op", "dtype", "in_place", "buffers", "min_ms", "p95_ms", "p99_ms", "stdev_ms", "noise", "n",
             "stop", "skew_mean_ms", "algbw_gbps", "busbw_gbps", "wrong", "status"])
        self._groups = None

    def add_options(self, table):
        rows, ranks = "Configurations", "Ranks"
        table.add(
            Option("--backend", "PyTorch's backends.", "NAMES", "", ", ".join(BACKENDS) + ", or all", rows,
                   row_option=True, default_note="gloo on the CPU, nccl on GPUs"),
            Option("--world-size", "Ranks, started on this host.", "LIST", "2",
                   "whole numbers from 1 to 64, lists and ranges", rows, row_option=True),
            Option("--sizes", "Bytes of a rank's array.", "LIST", "1MiB,10MiB,100MiB,1GiB",
                   "sizes that are whole numbers of elements: bytes, or KiB MiB GiB, KB MB GB; lists and ranges", rows,
                   row_option=True),
            Option("--op", "How elements are combined.", "NAMES", "sum", ", ".join(OPS) + ", or all", rows,
                   row_option=True),
            Option("--timeout", "Longest that the ranks wait for each other.", "SECONDS", "60",
                   "seconds from 1 to 86400", ranks),
            Option("--interface", "gloo: a network interface.", "NAME", "", "the name of an interface", ranks,
                   default_note="PyTorch's choice"))
        table.add_presets(
            Preset("notes", "the notes' table: sum of fp32, 2 to 8 ranks, 1 MiB to 1 GiB",
                   {"--world-size": "2,4,6,8", "--sizes": "1MiB,10MiB,100MiB,1GiB", "--op": "sum", "--dtype": "fp32"}))
        table.examples = ["pytorch_allreduce --backend gloo --world-size 2,4 -o pytorch.json",
                          "pytorch_allreduce --device cuda --backend nccl --sizes 8:1GiB:x4"]

    def cases(self, table, settings):
        words = table.words("--backend", list(BACKENDS), True) if table.text("--backend") else [
            "nccl" if settings.is_cuda else "gloo"]
        worlds = table.integers("--world-size", 1, 64)
        ops = table.words("--op", OPS, True)
        try:
            sizes = parse_sizes(table.text("--sizes"))
        except GrammarError as problem:
            raise table.error("--sizes", str(problem)) from None
        for dtype in settings.dtypes:
            for size in sizes:
                if size % ELEMENT[dtype]:
                    raise table.error("--sizes", f"{size} is not a whole number of {dtype} elements, which take "
                                                 f"{ELEMENT[dtype]} bytes")
        self._groups = Groups({"threads": settings.threads, "timeout_s": table.number("--timeout", 1, 86_400),
                               "interface": table.text("--interface")})
        return [AllreduceCase(backend, world, op, dtype, size, self._groups)
                for backend in words for world in worlds for op in ops for dtype in settings.dtypes for size in sizes]

    def list_text(self):
        return "".join(f"  {name:8}torch.distributed's, on {'GPUs' if kind == 'cuda' else 'the CPU'}\n"
                       for name, kind in BACKENDS.items())
