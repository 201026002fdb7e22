#!/usr/bin/env python3
"""scripts/peers/pytorch_e2e: the same models, options and rows as e2e_bench. What needs PyTorch skips without it."""
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
PEER = SOURCE / "scripts/peers/pytorch_e2e"
sys.path[:0] = [str(SOURCE / "scripts/peers"), str(SOURCE / "scripts/lib")]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=600)


def peer(*arguments):
    return run(sys.executable, PEER, *arguments)


def rows_of(result):
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)["rows"]


class SameModels(unittest.TestCase):
    def test_dry_runs_agree(self):
        sweep = ("--size", "all", "--context", "64,256", "--dry-run", "--format", "json", "--device", "cpu")
        ours = rows_of(run(TOOL, *sweep, "--structure", "naive", "--precision", "fp32"))
        theirs = rows_of(peer(*sweep))
        self.assertEqual(len(ours), 12)
        for a, b in zip(ours, theirs):
            for field in ("size", "context", "d_model", "d_ff", "num_layers", "num_heads", "vocab", "parameters",
                          "fwd_flops", "train_step_flops"):
                self.assertEqual(a[field], b[field], field)

    def test_bad_input_is_one_line(self):
        for arguments, words in ((["--size", "tiny", "--heads", "3"], ["--heads", "3", "64"]),
                                 (["--size", "smal"], ["smal"]), (["--dtype", "bf16"], ["--dtype"]),
                                 (["--context", "0"], ["--context", "0"])):
            result = peer(*arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class Rows(unittest.TestCase):
    BASE = ("--device", "cpu", "--size", "tiny", "--vocab", "200", "--context", "16", "--steps", "2", "--warmup", "0",
            "--format", "json")

    def test_rows_have_the_figures(self):
        rows = rows_of(peer(*self.BASE, "--precision", "fp32,bf16,fp16", "--attention", "all"))
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.assertEqual(row["status"], "ok", row["reason"])
            self.assertEqual(row["fwd_n"], 2)
            for figure in ("fwd_s", "fwd_bwd_s", "train_step_s", "tokens_per_s"):
                self.assertGreater(row[figure], 0)
            self.assertLess(abs(row["loss"] - row["loss_expected"]), 0.5)
        again = rows_of(peer(*shlex.split(rows[-1]["rerun"])[1:], "--format", "json"))
        self.assertEqual(again[0]["attention"], rows[-1]["attention"])
        self.assertEqual(again[0]["size"], "custom")

    def test_finished_phases_outlive_the_process(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.json"
            quick = ("--device", "cpu", "--size", "tiny", "--vocab", "200", "--context", "16", "--warmup", "0")
            script = ("import os, sys; sys.path[:0] = sys.argv[1:3]; sys.argv[1:3] = []; "
                      "from warpmeter_peers import e2e_case, sweep; measure = e2e_case._Run._measure\n"
                      "def once(self, name, *rest):\n"
                      "    if name != 'fwd': os._exit(9)\n"
                      "    return measure(self, name, *rest)\n"
                      "e2e_case._Run._measure = once; sweep.run_tool(e2e_case.ModelTool(), sys.argv)")
            ended = run(sys.executable, "-c", script, SOURCE / "scripts/peers", SOURCE / "scripts/lib", *quick,
                        "--steps", "1", "-o", path)
            self.assertEqual(ended.returncode, 9, ended.stderr)
            (row,) = json.loads(path.read_text())["rows"]
            self.assertEqual(row["status"], "interrupted")
            self.assertGreater(row["fwd_ms"], 0)
            self.assertNotIn("train_step_ms", row)

    def test_step_timed_alone_is_in_the_table(self):
        shown = peer(*self.BASE[:-2], "--mode", "train_step")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("| train_step_s |", shown.stdout.splitlines()[2])

    def test_compiled_blocks_are_the_model(self):
        (row,) = rows_of(peer(*self.BASE, "--mode", "forward", "--structure", "pytorch_compiled_blocks"))
        self.assertEqual(row["status"], "ok", row["reason"])
        self.assertGreater(row["fwd_first_ms"], 10 * row["fwd_min_ms"], "it compiled")

    def test_schema(self):
        python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
        if run(python, "-c", "import jsonschema").returncode != 0:
            self.skipTest("no jsonschema")
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            result = peer(*self.BASE, "-o", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            checked = run(python, SOURCE / "tests/reports/validate_schema.py", path)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_the_exchange_file_can_be_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "exchange.txt"
            result = run(sys.executable, SOURCE / "scripts/peers/pytorch_exchange", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            kept = (SOURCE / "tests/kernels/transformer/fixtures/pytorch_exchange.txt").read_text().splitlines()
            made = path.read_text().splitlines()
            self.assertEqual([line.split()[:2] for line in kept if line[0] in "wg"][1:],
                             [line.split()[:2] for line in made if line[0] in "wg"][1:])
            self.assertEqual(len(kept), len(made))


if __name__ == "__main__":
    unittest.main(verbosity=2)
