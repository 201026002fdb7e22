#!/usr/bin/env python3
"""scripts/peers/pytorch_ddp: rows beside those of e2e_bench --data-parallel. What needs PyTorch skips without it."""
import importlib.util
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ["E2E_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
PEER = SOURCE / "scripts/peers/pytorch_ddp"
HAS_TORCH = importlib.util.find_spec("torch") is not None
TINY = ("--device", "cpu", "--size", "tiny", "--vocab", "200", "--context", "16", "--batch", "2")


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=600)


def peer(*arguments):
    return run(sys.executable, PEER, *arguments)


def rows_of(result):
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)["rows"]


class SameSweeps(unittest.TestCase):
    def test_dry_runs_agree(self):
        sweep = (*TINY, "--world-size", "2,4", "--data-parallel", "naive,flat,overlap,bucketed", "--dry-run",
                 "--format", "json")
        ours, theirs = rows_of(run(TOOL, *sweep)), rows_of(peer(*sweep))
        self.assertEqual(len(ours), 8)
        for a, b in zip(ours, theirs):
            for field in ("size", "precision", "batch", "context", "world_size", "strategy", "bucket", "parameters"):
                self.assertEqual(a[field], b[field], field)

    def test_bad_input_is_one_line(self):
        for arguments, words in ((["--data-parallel", "fsdp"], ["--data-parallel", "fsdp"]),
                                 (["--bucket-size", "lots"], ["--bucket-size", "lots"]),
                                 (["--world-size", "0"], ["--world-size", "0"]),
                                 (["--backend", "nccl"], ["nccl works on GPUs"])):
            result = peer("--device", "cpu", "--dry-run", *arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class Rows(unittest.TestCase):
    def test_every_strategy(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "out.json")
            result = peer(*TINY, "--steps", "2", "--warmup", "0", "--threads", "1", "--bucket-size", "64KiB", "-o",
                          path)
            self.assertEqual(result.returncode, 0, result.stderr)
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
            checked = run(python, SOURCE / "tests/reports/validate_schema.py", path)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            rows = json.loads(path.read_text())["rows"]
        self.assertEqual([row["strategy"] for row in rows], ["ddp", "naive", "flat", "overlap", "bucketed"])
        calls = {row["strategy"]: row["comm_calls"] for row in rows}
        self.assertEqual((calls["naive"], calls["overlap"], calls["flat"]), (21, 21, 1))
        self.assertGreater(calls["bucketed"], 1)
        for row in rows:
            self.assertEqual(row["status"], "ok", row["reason"])
            self.assertEqual(row["step_n"], 2)
            self.assertEqual(row["comm_bytes"], 4 * row["parameters"])
            for figure in ("step_s", "comm_ms", "local_step_ms", "tokens_per_s"):
                self.assertGreater(row[figure], 0)
        again = rows_of(peer(*shlex.split(rows[-1]["rerun"])[1:], "--dry-run", "--format", "json"))
        self.assertEqual([row["bucket"] for row in again], ["64KiB"])


if __name__ == "__main__":
    unittest.main()
