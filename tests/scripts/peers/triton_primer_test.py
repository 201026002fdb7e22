#!/usr/bin/env python3
"""triton_primer: the same configurations as kernel_bench, PyTorch's results and its check; Triton by its interpreter
where it is installed. What needs PyTorch skips without it."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from common import PEERS, SOURCE, has_schema_python, run, schema_problems, strict
from warpmeter_peers import primer_torch
from warpmeter_peers.primer_case import PrimerTool, make_operands
from warpmeter_peers.primer_problem import KERNELS, Problem
from warpmeter_peers.sweep import run_tool

try:
    import torch
except ImportError:
    torch = None
WITHOUT = "PyTorch is not here (WARPMETER_TORCH_PYTHON names a Python that has it)"
KERNEL_BENCH = os.environ.get("KERNEL_BENCH", "")
QUICK = ["--device", "cpu", "--steps", "2", "--warmup", "1", "--threads", "1"]


def peer_here(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_tool(PrimerTool(), ["triton_primer", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


class Options(unittest.TestCase):
    def test_the_kernels_are_the_registrys(self):
        registry = (SOURCE / "kernels" / "primer" / "registry.def").read_text()
        self.assertEqual(list(KERNELS), re.findall(r"^WM_PRIMER_KERNEL\((\w+)\)", registry, re.MULTILINE))

    @unittest.skipUnless(KERNEL_BENCH, "kernel_bench is not built")
    def test_dry_runs_agree_with_kernel_bench(self):
        for arguments in ([], ["--preset", "notes", "--dtype", "bf16"],
                          ["--rows", "3,64", "--cols", "8:32:x2", "--inner", "24", "--kernel-size", "3,5", "--batch",
                           "2", "--group-size", "16", "--dtype", "fp16"]):
            with self.subTest(arguments=arguments):
                common = ["--device", "cpu", *arguments]
                ours = run(KERNEL_BENCH, *common, "--dry-run", "--format", "json")
                theirs = peer_here(*common, "--impl", "pytorch", "--dry-run", "--format", "json")
                self.assertEqual((ours.returncode, theirs.returncode), (0, 0), ours.stderr + theirs.stderr)
                ours, theirs = strict(ours.stdout), strict(theirs.stdout)
                self.assertEqual(ours["row_keys"], theirs["row_keys"])

                def figures(document):
                    return [[(name, value) for name, value in row.items()
                             if name != "impl" and (name in document["row_keys"]
                                                    or re.fullmatch("(fwd|bwd)_(flops|bytes)", name))]
                            for row in document["rows"]]

                self.assertEqual(figures(ours), figures(theirs))

    def test_bad_input_is_one_line_and_exit_2(self):
        for arguments, words in ((["--rows", "0"], ["--rows", "0"]), (["--cols", "-1"], ["--cols", "-1"]),
                                 (["--kernel", "softmux"], ["softmux"]), (["--dtype", "tf32"], ["tf32"]),
                                 (["--kernel", "add", "--inner", "4"], ["--inner"]), (["--impl", "jax"], ["jax"])):
            with self.subTest(arguments=arguments):
                result = peer_here("--device", "cpu", *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1)
                for word in words:
                    self.assertIn(word, result.stderr)


@unittest.skipUnless(torch, WITHOUT)
class InPyTorch(unittest.TestCase):
    def test_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.json"
            peer_here(*QUICK, "--preset", "notes", "--dtype", "fp32,bf16", "--impl", "pytorch", "-o", str(path))
            self.assertEqual(schema_problems(path) if has_schema_python() else "", "")
            rows = strict(path.read_text())["rows"]
        self.assertEqual(len(rows), 2 * len(KERNELS))
        for row in rows:
            phase = KERNELS[row["kernel"]].phase
            if (row["kernel"], row["dtype"]) == ("scalar_attention", "bf16"):
                continue  # PyTorch's scores are bf16, which the bound may or may not notice
            self.assertEqual((row["status"], row["impl"]), ("ok", "pytorch"), row)
            self.assertGreater(row[f"{phase}_ms"], 0)
            self.assertLess(row["max_rel_error"], 1e-5 if row["dtype"] == "fp32" else 0.02)

    def test_triton_without_a_gpu_is_unsupported(self):
        with mock.patch.dict(os.environ, TRITON_INTERPRET="0"):
            result = peer_here(*QUICK, "--kernel", "add", "--rows", "4", "--cols", "4", "--impl", "triton,pytorch",
                               "--format", "json")
        self.assertEqual([row["status"] for row in strict(result.stdout)["rows"]], ["unsupported", "ok"])

    def test_wrong_results_are_found(self):
        for name, kernel in KERNELS.items():
            problem = Problem(name, **kernel.notes)
            operands = make_operands(torch, problem, "cpu", 3)
            results = primer_torch.results_of(primer_torch.functions(torch, problem)[name], operands)
            self.assertEqual(primer_torch.check(torch, problem, operands, results, kernel.matrix_product)[1], "", name)
            for index, result in enumerate(results):
                for wrong in (result.abs().max().item() * 1e-3 + result.flatten()[-1].item(), float("nan")):
                    spoiled = [other.clone() for other in results]
                    spoiled[index].view(-1)[-1] = wrong
                    failure = primer_torch.check(torch, problem, operands, spoiled, kernel.matrix_product)[1]
                    self.assertIn(f"result {index}", failure, name)

    def test_packed_weights_by_hand(self):
        problem = Problem("int4_matmul", rows=1, cols=1, inner=9, group_size=8)
        words = torch.tensor([[0x87654321 - 2**32, 0x9]], dtype=torch.int32)
        found = primer_torch.dequantized(torch, problem, words, torch.tensor([[0.5, 2.0]]),
                                         torch.tensor([[0x41]], dtype=torch.int32))
        self.assertEqual(found.tolist(), [[0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 10]])


@unittest.skipUnless(torch and importlib.util.find_spec("triton"), "PyTorch and Triton are not both here")
class InTriton(unittest.TestCase):
    """By Triton's interpreter, in a process of its own: whether it interprets is settled when it is imported."""

    def test_every_kernel_at_the_puzzles_sizes(self):
        result = run(sys.executable, PEERS / "triton_primer", "--steps", "1", "--warmup", "0", "--device", "cpu",
                     "--preset", "notes", "--dtype", "fp32,fp16", "--impl", "triton", "--format", "json",
                     env=dict(os.environ, TRITON_INTERPRET="1"))
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = strict(result.stdout)["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok"] * (2 * len(KERNELS)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
