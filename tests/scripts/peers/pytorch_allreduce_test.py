#!/usr/bin/env python3
"""pytorch_allreduce: its sizes and rows without PyTorch; ranks, figures and deaths with it."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from common import PEERS, has_schema_python, run, schema_problems, strict
from warpmeter_peers import allreduce_case, ddp_case, options, rank_case, settings, sweep
from warpmeter_peers.grammar import GrammarError
from warpmeter_peers.meeting import Late, Meeting

try:
    import torch
    import torch.distributed

    WITH_GLOO = torch.distributed.is_available() and torch.distributed.is_gloo_available()
except ImportError:
    torch, WITH_GLOO = None, False
QUICK = ["--device", "cpu", "--steps", "3", "--warmup", "1", "--threads", "1"]


def peer(*arguments, **keywords):
    return run(sys.executable, PEERS / "pytorch_allreduce", *arguments, **keywords)


class Sizes(unittest.TestCase):
    def test_lists_and_ranges(self):
        self.assertEqual(rank_case.parse_sizes("8:1KiB:x4,1MiB,8"), [8, 32, 128, 512, 2**20])
        self.assertEqual(rank_case.parse_sizes("1KiB:2KiB:+512"), [1024, 1536, 2048])
        for text in ("", "x", "1KiB:2KiB", "1KiB:2KiB:3", "1KiB:2KiB:x1"):
            with self.assertRaises(GrammarError, msg=text):
                rank_case.parse_sizes(text)

    def test_texts(self):
        self.assertEqual([rank_case.exact_size(size) for size in (8, 1024, 1536 * 1024, 10 * 2**20, 2**30)],
                         ["8B", "1KiB", "1536KiB", "10MiB", "1GiB"])

    def test_bad_usage(self):
        for arguments, words in ((["--sizes", "6"], ["--sizes", "4 bytes"]),
                                 (["--backend", "mpi"], ["--backend 'mpi'"]),
                                 (["--backend", "nccl"], ["nothing to measure", "nccl works on GPUs"]),
                                 (["--op", "avg"], ["nothing to measure", "no avg"]),
                                 (["--cache", "cold"], ["--cache 'cold'", "ranks do not flush", "accepted: hot"]),
                                 (["--world-size", "0"], ["--world-size '0'"])):
            with self.subTest(arguments=arguments):
                result = peer("--device", "cpu", "--dry-run", *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_a_gpu_is_not_said_to_have_been_flushed(self):
        for tool in (allreduce_case.AllreduceTool(), ddp_case.DdpTool()):
            table = options.OptionTable(tool.name, tool.summary)
            settings.add_shared_options(table)
            if not tool.takes_dtypes:
                del table.options["--dtype"]
            tool.add_options(table)
            table.default_preset = tool.default_preset(True)
            table.parse(["--device", "cuda"])
            found = sweep._settings_of(tool, table)
            settings.resolve_device(found, "cuda", 2, "")
            self.assertEqual((found.device, found.cache), ("cuda:0", "hot"), tool.name)
            self.assertIsNone(found.describe()["cache_flush"])

    def test_the_rank_that_came_last_tells_what_is_exposed(self):
        figures = {"step_ms": 10.0, "local_step_ms": 8.5}
        by_hand = ddp_case.exposed("bucketed", figures, [[1.0, 4.5, 2.0], [4.0, 1.5, 2.0]])
        self.assertEqual(by_hand, {"exposed_ms": 1.5, "rank_skew_ms": 3.0, "exposed_by": "events"})
        self.assertEqual(ddp_case.exposed("ddp", figures, [[], []]),
                         {"exposed_ms": 1.5, "rank_skew_ms": None, "exposed_by": "difference"})

    def test_rows_have_the_tools_keys(self):
        result = peer("--device", "cpu", "--dry-run", "--format", "json", "--preset", "notes")
        found = strict(result.stdout)
        self.assertEqual(found["row_keys"], ["target", "collective", "op", "dtype", "world_size", "bytes",
                                             "tensor_size",
                                             "in_place", "buffers"])
        self.assertEqual(len(found["rows"]), 16)


class Meetings(unittest.TestCase):
    def test_ranks_meet_and_leave_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m")
            Meeting.create(path, 3)
            sums = []

            def be(rank):
                meeting = Meeting(path, rank, 3, 10, True)
                for round_number in range(20):
                    meeting.leave_numbers(rank + round_number)
                    meeting.come()
                    sums.append(sum(meeting.numbers(r, 1)[0] for r in range(3)) - 3 * round_number)
                    meeting.come()
            threads = [threading.Thread(target=be, args=(rank,)) for rank in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            self.assertEqual(sums, [3.0] * 60)

    def test_those_that_do_not_come_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m")
            Meeting.create(path, 3)
            with self.assertRaises(Late) as caught:
                Meeting(path, 1, 3, 0.1, True).come()
            self.assertEqual(caught.exception.ranks, [0, 2])


@unittest.skipUnless(WITH_GLOO, "no PyTorch with Gloo (WARPMETER_TORCH_PYTHON names a Python that has it)")
class OnTheCpu(unittest.TestCase):
    def test_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "out.json")
            result = peer(*QUICK, "--world-size", "2,3", "--sizes", "12,1MiB", "--op", "sum,max",
                          "--dtype", "fp32,bf16",
                          "-o", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            if has_schema_python():
                self.assertEqual(schema_problems(path), "")
            rows = strict(path.read_text())["rows"]
        self.assertEqual(len(rows), 2 * 2 * 2 * 2)
        for row in rows:
            self.assertEqual((row["target"], row["status"], row["wrong"], row["n"]), ("pytorch-gloo-cpu", "ok", 0, 3))
            factor, seconds = 2 * (row["world_size"] - 1) / row["world_size"], row["median_ms"] * 1e-3
            self.assertAlmostEqual(row["algo_GiBps"], factor * row["bytes"] / seconds / 2**30,
                                   delta=1e-6 * row["algo_GiBps"])
        header = [cell.strip() for cell in result.stdout.splitlines()[0].strip("|").split("|")]
        self.assertEqual([name for name in header if name not in ("op", "dtype")],
                         ["target", "world_size", "tensor_size", "median_ms", "mean_ms", "algo_GiBps"])

    def test_a_rank_that_dies_is_named(self):
        process = subprocess.Popen([sys.executable, str(PEERS / "pytorch_allreduce"), "--device", "cpu", "--max-time",
                                    "30", "--max-noise", "0%", "--sizes", "1MiB", "--threads", "1", "--format", "json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        victim, until = None, time.monotonic() + 90
        while victim is None and time.monotonic() < until and process.poll() is None:
            found = [int(entry.name) for entry in pathlib.Path("/proc").iterdir()
                     if entry.name.isdigit() and self.is_rank(entry, process.pid)]
            # Both are there and have been for a while.
            if len(found) == 2:
                time.sleep(0.5)
                victim = max(found)
            time.sleep(0.05)
        self.assertIsNotNone(victim)
        os.kill(victim, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=60)
        (row,) = strict(stdout)["rows"]
        self.assertEqual((process.returncode, row["status"]), (1, "crashed"), stderr)
        self.assertRegex(row["reason"], r"rank 1 was killed by SIGKILL")

    @staticmethod
    def is_rank(entry, parent):
        try:
            return (int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent and
                    b"allreduce_rank" in (entry / "cmdline").read_bytes())
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main(verbosity=2)
