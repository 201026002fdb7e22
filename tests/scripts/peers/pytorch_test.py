#!/usr/bin/env python3
"""pytorch_attention with PyTorch itself: figures, the check of results, what is not supported. Skipped without it."""

import contextlib
import pathlib
import sys
import tempfile
import unittest
import warnings

from common import ATTN_BENCH, has_schema_python, peer, peer_here, run, schema_problems, strict
from warpmeter_peers.attention_problem import Problem

try:
    import torch
except ImportError:
    torch = None
WITHOUT = "PyTorch is not here (WARPMETER_TORCH_PYTHON names a Python that has it)"
# One thread: what is looked at is behaviour, not speed.
NOT_COMPILED = "pytorch_eager,pytorch_sdpa_flash,pytorch_sdpa_cudnn,pytorch_sdpa_efficient,pytorch_sdpa_math"
QUICK = ["--device", "cpu", "--steps", "2", "--warmup", "1", "--threads", "1"]


def document(*arguments, whole_process=False):
    """The result file, how the run ended, and what the schema finds wrong. PyTorch is imported but once."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.json"
        call = peer if whole_process else peer_here
        result = call(*arguments, "-o", str(path))
        problems = schema_problems(path) if path.exists() and has_schema_python() else ""
        return strict(path.read_text()) if path.exists() else None, result, problems


@unittest.skipUnless(torch, WITHOUT)
class OnTheCpu(unittest.TestCase):
    def test_rows(self):
        found, result, problems = document(*QUICK, "--impl", "pytorch_eager,pytorch_sdpa_flash,pytorch_sdpa_math",
                                           "--dtype", "fp32,bf16", "--d-model", "64", "--heads", "4", "--kv-heads",
                                           "2,4", "--seq-len", "33", "--kv-len", "33,65", "--causal=both",
                                           whole_process=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(problems, "")
        self.assertEqual(len(found["rows"]), 3 * 2 * 2 * 2 * 2)
        for row in found["rows"]:
            self.assertEqual(row["status"], "ok", row)
            self.assertEqual(row["check"], "every element")
            self.assertLess(row["max_rel_error"], 1e-5 if row["dtype"] == "fp32" else 0.03)
            self.assertGreater(row["max_rel_error"], 0)
            for phase in ("fwd", "bwd"):
                self.assertGreater(row[f"{phase}_ms"], 0)
                self.assertEqual((row[f"{phase}_n"], row[f"{phase}_stop"]), (2, "steps"))
                self.assertIn(row[f"{phase}_bound"], ("compute", "memory"))
                self.assertAlmostEqual(row[f"{phase}_tflops"], row[f"{phase}_flops"] / row[f"{phase}_ms"] / 1e9)
            self.assertIsNone(row["fwd_peak_mem_mib"])  # PyTorch does not count on the CPU
        self.assertIn("torch", found["libraries"])
        self.assertGreater(found["device"]["ceilings"]["copy_gbps"], 0)

    def test_the_forward_alone_and_the_backward_alone(self):
        for passes, there, missing in (("fwd", "fwd_ms", "bwd_ms"), ("bwd", "bwd_ms", "fwd_ms")):
            found, result, _ = document(*QUICK, "--impl", "pytorch_sdpa_flash", "--d-model", "32", "--seq-len", "16",
                                        "--pass", passes)
            row = found["rows"][0]
            self.assertEqual(row["status"], "ok", result.stderr)
            self.assertIn(there, row)
            self.assertNotIn(missing, row)

    def test_what_is_not_supported_is_kept_with_its_reason(self):
        found, result, _ = document(*QUICK, "--impl", "pytorch_sdpa_cudnn,pytorch_sdpa_flash", "--dtype", "fp32,tf32",
                                    "--d-model", "32", "--seq-len", "32,8", "--kv-len", "16")
        self.assertEqual(result.returncode, 0, result.stderr)
        reasons = {(row["impl"], row["dtype"], row["seq_len"]): row["reason"] for row in found["rows"]}
        self.assertIn("CUDA only", reasons["pytorch_sdpa_cudnn", "fp32", 8])
        self.assertIn("tf32", reasons["pytorch_sdpa_flash", "tf32", 8])
        self.assertIn("NaN for queries that see no key", reasons["pytorch_sdpa_flash", "fp32", 32])
        self.assertIsNone(reasons["pytorch_sdpa_flash", "fp32", 8])

    def test_no_check_leaves_the_check_out(self):
        found, _, _ = document(*QUICK, "--impl", "pytorch_eager", "--d-model", "16", "--seq-len", "8", "--no-check")
        self.assertNotIn("max_rel_error", found["rows"][0])

    def test_a_cold_cache_and_threads(self):
        found, result, _ = document(*QUICK, "--impl", "pytorch_eager", "--d-model", "16", "--seq-len", "8", "--cache",
                                    "cold", "--deterministic")
        self.assertEqual(found["rows"][0]["status"], "ok", result.stderr)
        self.assertEqual((found["device"]["threads"], found["settings"]["cache"]), (1, "cold"))

    def test_oom_is_a_row(self):
        found, result, _ = document(*QUICK, "--impl", "pytorch_eager", "--d-model", "16", "--seq-len", "1000000,8")
        self.assertEqual([row["status"] for row in found["rows"]], ["oom", "ok"], result.stderr)
        self.assertIn("predicted peak", found["rows"][0]["reason"])

    @unittest.skipUnless(ATTN_BENCH, "attn_bench is not built")
    def test_against_attn_bench(self):
        with tempfile.TemporaryDirectory() as folder:
            ours = f"{folder}/ours.json"
            sweep = [*QUICK[:-2], "--d-model", "32", "--seq-len", "16,32"]
            self.assertEqual(run(ATTN_BENCH, *sweep, "--impl", "naive,flash", "-o", ours).returncode, 0)
            result = peer_here(*sweep, "--impl", "pytorch_eager", "--against", ours)
            self.assertEqual(result.returncode, 0, result.stderr)
            ratios = result.stdout.partition("## Ratios")[2]
            self.assertIn("### pytorch_eager / naive", ratios)
            self.assertIn("### pytorch_eager / flash", ratios)
            self.assertIn("| pytorch_eager | naive |", ratios)


@unittest.skipUnless(torch, WITHOUT)
class TheCheck(unittest.TestCase):
    """A wrong result must not pass, whichever output it is in."""

    def run_eager(self, problem, shift=0):
        from warpmeter_peers.attention_torch import formula

        generator = torch.Generator().manual_seed(1)
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(problem.dtype, torch.float32)

        def normal(heads, rows):
            return torch.randn(problem.batch, heads, rows, problem.head_dim, generator=generator).to(kind)

        q = normal(problem.num_heads, problem.seq_len).requires_grad_()
        k, v = (normal(problem.num_kv_heads, problem.kv_len).requires_grad_() for _ in range(2))
        d_o = normal(problem.num_heads, problem.seq_len)
        hidden = torch.ones(problem.seq_len, problem.kv_len, dtype=torch.bool).triu(
            1 + shift + problem.kv_len - problem.seq_len)
        o = formula(torch, q, k, v, hidden, problem.group_size)
        return (q, k, v), o.detach(), d_o, list(torch.autograd.grad(o, (q, k, v), d_o))

    def check(self, problem, operands, o, d_o=None, gradients=None, budget=1e9):
        from warpmeter_peers.attention_reference import Checker

        checker = Checker(torch, problem, *operands, gradients is not None, 0, budget)
        return checker.check(o, d_o, gradients), checker

    def problems(self):
        for dtype in ("fp32", "bf16", "fp16"):
            yield Problem(2, 4, 2, 20, 37, 16, dtype)

    def test_right_results_pass(self):
        for problem in self.problems():
            operands, o, d_o, gradients = self.run_eager(problem)
            (error, failure), checker = self.check(problem, operands, o, d_o, gradients)
            self.assertEqual(failure, "")
            self.assertGreater(error, 0)
            self.assertFalse(checker.sampled)

    def test_one_wrong_element_is_found(self):
        for problem in self.problems():
            operands, o, d_o, gradients = self.run_eager(problem)
            wrong = 1e-3 if problem.dtype == "fp32" else 0.25
            for index, name in enumerate(("o", "dq", "dk", "dv")):
                outputs = [tensor.clone() for tensor in (o, *gradients)]
                outputs[index][1, 1, 3, 5] += wrong * outputs[index].abs().max()
                (_, failure), _ = self.check(problem, operands, outputs[0], d_o, outputs[1:])
                self.assertTrue(failure.startswith(f"{name} is off by"), (problem.dtype, name, failure))
                self.assertIn("b1 h1 row 3 col 5", failure)

    def test_nan_never_passes(self):
        problem = Problem(1, 1, 1, 8, 8, 16)
        operands, o, _, _ = self.run_eager(problem)
        o[0, 0, 0, 0] = float("nan")
        (_, failure), _ = self.check(problem, operands, o)
        self.assertIn("got nan", failure)

    def test_a_mask_that_is_off_by_one_is_found(self):
        for shift in (1, -1):
            problem = Problem(1, 2, 2, 16, 40, 32, "bf16")
            operands, o, d_o, gradients = self.run_eager(problem, shift)
            (_, failure), _ = self.check(problem, operands, o, d_o, gradients)
            self.assertNotEqual(failure, "", shift)

    def test_large_problems_are_compared_in_some_groups(self):
        problem = Problem(4, 4, 4, 20, 37, 16)
        operands, o, d_o, gradients = self.run_eager(problem)
        (_, failure), checker = self.check(problem, operands, o, d_o, gradients, budget=1)
        self.assertEqual((failure, checker.sampled), ("", True))
        gradients[1][0, 0, 0, 0] += 1.0  # the first group is always looked at
        (_, failure), _ = self.check(problem, operands, o, d_o, gradients, budget=1)
        self.assertTrue(failure.startswith("dk"))

    def test_long_sequences_are_taken_in_pieces(self):
        problem = Problem(1, 1, 1, 300, 300, 8)
        operands, o, d_o, gradients = self.run_eager(problem)
        from warpmeter_peers.attention_reference import Checker

        checker = Checker(torch, problem, *operands, True, 0, 1e9)
        whole = checker.check(o, d_o, gradients)
        checker._rows = 7
        pieces = checker.check(o, d_o, gradients)
        self.assertEqual(pieces[1], "")
        self.assertAlmostEqual(whole[0], pieces[0], delta=1e-9)


@unittest.skipUnless(torch, WITHOUT)
class Refusals(unittest.TestCase):
    def test_no_kernel_is_told_with_pytorchs_reasons(self):
        from warpmeter_peers.attention_torch import Unsupported, explained

        with self.assertRaises(Unsupported) as refused, explained():
            warnings.warn("Flash attention kernel not used because: (Triggered internally at x.cpp:1)", stacklevel=1)
            warnings.warn("Expected head_dim <= 256 (Triggered internally at x.cpp:2)", stacklevel=1)
            warnings.warn("Memory Efficient attention has been runtime disabled.", stacklevel=1)
            raise RuntimeError("No available kernel. Aborting execution.")
        self.assertEqual(str(refused.exception), "Expected head_dim <= 256")

    def test_other_errors_are_errors(self):
        from warpmeter_peers.attention_torch import explained

        with self.assertRaises(RuntimeError), explained():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def test_the_gradient_is_laid_out_as_the_output(self):
        from warpmeter_peers.attention_case import laid_out_as

        values = torch.randn(2, 3, 4, 5)
        output = torch.empty(2, 4, 3, 5, requires_grad=True).transpose(1, 2)
        gradient = laid_out_as(torch, output, values)
        self.assertEqual(gradient.stride(), output.stride())
        self.assertTrue(torch.equal(gradient, values))
        self.assertFalse(gradient.requires_grad)

    def test_settings_of_torch_are_given_back(self):
        from warpmeter_peers.attention_case import deterministic
        from warpmeter_peers.torch_row import precision

        with contextlib.suppress(KeyError), precision(torch, "tf32"), deterministic(torch, True):
            self.assertEqual(torch.get_float32_matmul_precision(), "high")
            self.assertTrue(torch.are_deterministic_algorithms_enabled())
            raise KeyError
        self.assertEqual(torch.get_float32_matmul_precision(), "highest")
        self.assertFalse(torch.are_deterministic_algorithms_enabled())
        self.assertTrue(torch.utils.deterministic.fill_uninitialized_memory)


@unittest.skipUnless(torch and torch.cuda.is_available(), "there is no GPU, or no PyTorch for it")
class OnTheGpu(unittest.TestCase):
    def test_rows_have_times_and_memory(self):
        found, result, problems = document("--device", "cuda", "--steps", "3", "--impl", NOT_COMPILED, "--dtype",
                                           "fp32,bf16", "--d-model", "64", "--seq-len", "256", whole_process=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(problems, "")
        for row in found["rows"]:
            if row["status"] == "unsupported":
                self.assertIn(row["impl"], ("pytorch_sdpa_flash", "pytorch_sdpa_cudnn"))
                continue
            self.assertEqual(row["status"], "ok", row["reason"])
            tensor = 8 * 256 * 64 * (4 if row["dtype"] == "fp32" else 2) / 2**20
            self.assertGreaterEqual(row["fwd_peak_mem_mib"], 4 * tensor)
            self.assertGreaterEqual(row["bwd_mem_before_backward_mib"], 5 * tensor)
            self.assertGreaterEqual(row["bwd_peak_mem_mib"], 8 * tensor)
            self.assertLess(row["fwd_ms"], 1.0)
        eager = next(row for row in found["rows"] if row["impl"] == "pytorch_eager" and row["dtype"] == "fp32")
        scores, mask, tensor = 8 * 256 * 256 * 4 / 2**20, 256 * 256 / 2**20, 8 * 256 * 64 * 4 / 2**20
        self.assertAlmostEqual(eager["bwd_mem_before_backward_mib"], 5 * tensor + scores + mask, delta=0.01)
        self.assertEqual((found["settings"]["cache"], found["settings"]["cache_flush"]), ("cold", "clean"))
        self.assertNotIn("could not be held", result.stderr)

    def test_a_compiled_row(self):
        # One type and shape: compiling both passes takes several seconds, on a machine that is busy many.
        found, result, problems = document("--device", "cuda", "--steps", "3", "--impl", "pytorch_compiled",
                                           "--d-model", "64", "--seq-len", "256")
        (row,) = found["rows"]
        if row["status"] == "unsupported":
            self.skipTest(row["reason"])
        self.assertEqual((row["status"], row["kernel"], problems), ("ok", "torch_inductor", ""), result.stderr)
        self.assertLess(row["max_rel_error"], 1e-5)
        for phase in ("fwd", "bwd"):
            self.assertLess(row[f"{phase}_ms"], 1.0)
            self.assertGreater(row[f"{phase}_compile_s"], 0.05)  # outside the times

    def test_memory_limit(self):
        found, result, _ = document("--device", "cuda", "--steps", "1", "--impl", "pytorch_eager", "--d-model", "64",
                                    "--seq-len", "8192,256", "--memory-limit", "2GiB")
        self.assertEqual([row["status"] for row in found["rows"]], ["oom", "ok"], result.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    import skipping

    skipping.main(verbosity=2)
