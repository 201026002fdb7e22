#!/usr/bin/env python3
"""e2e_bench as its users run it: tables, files, exit statuses, bad input, memory limits."""
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ["E2E_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests/scripts"))
import documentation  # noqa: E402

# Small and quick: what is looked at is behaviour, not speed.
BASE = ["--device", "cpu", "--steps", "2", "--warmup", "0"]
TINY = [*BASE, "--size", "tiny", "--vocab", "300", "--context", "24", "--structure", "fused"]


def run(*arguments, **keywords):
    keywords.setdefault("timeout", 600)
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, **keywords)


def document(*arguments, **keywords):
    result = run(*arguments, "--format", "json", **keywords)
    return json.loads(result.stdout, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name))), result


class Tables(unittest.TestCase):
    def test_markdown_has_the_notes_columns(self):
        result = run(*BASE, "--size", "tiny", "--context", "16", "--structure", "naive,fused")
        self.assertEqual(result.returncode, 0, result.stderr)
        headings = [line for line in result.stdout.splitlines() if line.startswith("| Size")]
        self.assertEqual(len(headings), 2)
        self.assertEqual(
            [cell.strip() for cell in headings[0].strip("|\n ").split("|")],
            ["Size", "d_model", "d_ff", "num_layers", "num_heads", "Parameters", "Forward (s)", "Forward+Backward (s)",
             "Peak Forward Mem (MiB)", "Peak Train Mem (MiB)", "status"])
        rows = [line for line in result.stdout.splitlines() if line.startswith("| tiny")]
        self.assertEqual(len(rows), 2)
        self.assertIn("1411392", rows[0])

    def test_json_rows_carry_figures_and_pass_the_check(self):
        doc, result = document(*TINY[:-2], "--precision", "fp32,bf16,fp16,bf16_pure", "--structure", "all", "--samples")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(doc["tool"], "e2e_bench")
        self.assertEqual(len(doc["rows"]), 8)
        tokens, width, inner, layers, vocab = 4 * 24, 64, 256, 2, 300
        linear = layers * (4 * width * width + 3 * width * inner) + vocab * width
        flops = 2 * tokens * linear + 4 * layers * 4 * (24 * 25 / 2) * width
        for row in doc["rows"]:
            self.assertEqual(row["status"], "ok", row["reason"])
            self.assertEqual(row["fwd_flops"], flops)
            self.assertEqual(row["train_step_flops"], 3 * flops)
            self.assertEqual(len(row["train_step_samples_ms"]), 2)
            self.assertAlmostEqual(row["fwd_s"], row["fwd_ms"] / 1e3, places=9)
            speed = tokens / row["train_step_s"]
            self.assertAlmostEqual(row["tokens_per_s"], speed, delta=1e-3 * speed)
            self.assertAlmostEqual(row["loss"], row["loss_expected"], delta=0.5)
            self.assertGreater(row["fwd_bwd_first_ms"], 0)
            self.assertEqual("skipped_steps" in row, row["precision"] == "fp16")
            self.assertGreater(row["train_peak_mem_mib"], row["fwd_peak_mem_mib"])
            # What is left of a segment that is not split belongs to its block, which counts in so small a model.
            self.assertAlmostEqual(row["train_peak_mem_mib"], row["train_predicted_peak_mem_mib"],
                                   delta=2 + 0.05 * row["train_peak_mem_mib"])

    def test_peaks_are_the_phases_and_not_the_checks(self):
        # The check reads the logits as fp32: 39 MiB beside a forward of 25.
        doc, result = document(*BASE, "--size", "tiny", "--structure", "fused", "--precision", "bf16", "--mode", "forward")
        self.assertEqual(result.returncode, 0, result.stderr)
        row = doc["rows"][0]
        self.assertLess(abs(row["fwd_predicted_peak_mem_mib"] / row["fwd_peak_mem_mib"] - 1), 0.05)

    def test_modes_fill_their_columns(self):
        doc, _ = document(*TINY, "--mode", "forward")
        self.assertIn("fwd_ms", doc["rows"][0])
        self.assertNotIn("fwd_bwd_ms", doc["rows"][0])
        self.assertNotIn("train_peak_mem_mib", doc["rows"][0])
        doc, _ = document(*TINY, "--mode", "train_step")
        self.assertNotIn("fwd_ms", doc["rows"][0])
        self.assertIn("train_step_ms", doc["rows"][0])
        self.assertIn("loss", doc["rows"][0])

    def test_step_timed_alone_is_in_the_table(self):
        # The table's figures are the file's: one measurement is not held against another, a loaded machine turns them.
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.json"
            result = run(*TINY, "--mode", "forward,train_step", "-o", str(path))
            self.assertEqual(result.returncode, 0, result.stderr)
            measured = json.loads(path.read_text())["rows"][0]
        heading, _, row = [line for line in result.stdout.splitlines() if line.startswith("|")][:3]
        cells = dict(zip((cell.strip() for cell in heading.split("|")), (cell.strip() for cell in row.split("|"))))
        self.assertAlmostEqual(float(cells["Forward (s)"]) / measured["fwd_s"], 1, delta=1e-3)
        self.assertAlmostEqual(float(cells["Train Step (s)"]) / measured["train_step_s"], 1, delta=1e-3)
        self.assertNotIn("Forward+Backward (s)", cells)

    def test_recompute_and_fusion_save_memory(self):
        size = [*BASE, "--size", "tiny", "--vocab", "64", "--layers", "6", "--context", "128",
                "--mode", "forward_backward"]
        peaks = {}
        for structure, recompute in (("naive", "none"), ("fused", "none"), ("fused", "block")):
            doc, _ = document(*size, "--structure", structure, "--recompute", recompute)
            peaks[structure, recompute] = doc["rows"][0]["predicted_activations_mib"]
        self.assertLess(peaks["fused", "none"], 0.8 * peaks["naive", "none"])
        self.assertLess(peaks["fused", "block"], 0.5 * peaks["fused", "none"])

    def test_schema_in_every_format(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/out.json", f"{folder}/out.jsonl"]
            outputs = ["-o", paths[0], "-o", paths[1], "-o", f"{folder}/out.csv"]
            result = run(*TINY, "--precision", "fp32,tf32", "--wide", *outputs)
            self.assertEqual(result.returncode, 0, result.stderr)
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
            checked = subprocess.run([python, str(SOURCE / "tests/reports/validate_schema.py"), *paths],
                                     capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            rows = json.loads(pathlib.Path(paths[0]).read_text())["rows"]
            self.assertEqual([row["status"] for row in rows], ["ok", "unsupported"])

    def test_rerun_line_repeats_the_row(self):
        doc, _ = document(*TINY[:-2], "--precision", "bf16", "--structure", "naive", "--adamw", "course",
                          "--mode", "forward")
        row = doc["rows"][0]
        arguments = shlex.split(row["rerun"])
        self.assertEqual(arguments[0], "e2e_bench")
        again, result = document(*arguments[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        for key in doc["row_keys"]:
            self.assertEqual(again["rows"][0][key], row[key])

    def test_list_and_help(self):
        listed = run("--list")
        self.assertEqual(listed.returncode, 0)
        for word in ("128625408", "3406809600", "bf16_pure"):
            self.assertIn(word, listed.stdout)
        shown = run("--help")
        self.assertEqual(shown.returncode, 0)
        for word in ("--size", "--recompute", "--memory-limit", "Examples"):
            self.assertIn(word, shown.stdout)
        self.assertNotIn("--dtype ", shown.stdout)


class Operations(unittest.TestCase):
    def test_breakdown_has_every_operation_and_sums(self):
        doc, result = document(*TINY, "--breakdown", "--mode", "train_step")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = {row["operation"]: row for row in doc["rows"]}
        self.assertEqual(rows["QKV_MATMUL"]["calls"], 2)
        self.assertEqual(rows["QKV_MATMUL"]["op_flops"], 2 * 2 * 96 * 64 * 192)
        single = [row for row in doc["rows"] if not row["operation"].startswith("all ")]
        everything = rows["all operations"]
        for figure in ("calls", "op_flops", "op_bytes"):
            self.assertEqual(sum(row[figure] for row in single), everything[figure])
        self.assertAlmostEqual(sum(row["time_share"] for row in single), 1, places=6)
        self.assertAlmostEqual(sum(row["op_ms"] for row in single if row["kind"] == "matmul"),
                               rows["all matmul"]["op_ms"], places=6)
        self.assertEqual(rows["ADAMW"]["op_bound"], "memory")
        again, _ = document(*shlex.split(rows["ADAMW"]["rerun"])[1:])
        self.assertEqual([row["operation"] for row in again["rows"]], ["ADAMW"])

    def test_types_follow_the_precision(self):
        for precision, activation, gradient, moment in (
                ("bf16", "bf16", "fp32", "fp32"), ("fp16", "fp16", "fp32", "fp32"),
                ("bf16_pure", "bf16", "bf16", "bf16"), ("fp32", "fp32", "fp32", "fp32")):
            doc, result = document(*TINY, "--dtypes", "--precision", precision)
            self.assertEqual(result.returncode, 0, result.stderr)
            types = {row["operation"]: row["dtype"] for row in doc["rows"]}
            self.assertEqual(types["FFN_W2_MATMUL"], activation)
            self.assertEqual(types["NORM1"], activation)
            self.assertEqual(types["CROSS_ENTROPY"], activation)
            self.assertEqual(types["FFN_W2_BWD_WEIGHT_MATMUL"], gradient)
            self.assertEqual(types["EMBEDDING_BWD"], gradient)
            self.assertEqual(types["moments of the optimizer"], moment)
            self.assertEqual(types["LOSS_MEAN"], "fp32")
            self.assertEqual(types["GRADIENT_NORM"], "fp32")
            self.assertEqual(types["ADAMW"], activation)
            naive, _ = document(*TINY[:-2], "--structure", "naive", "--dtypes", "--precision", precision,
                                "--operation", "LOG_SOFTMAX,NLL,LOG_SOFTMAX_BWD")
            self.assertEqual([row["dtype"] for row in naive["rows"]], ["fp32", "fp32", activation])

    def test_types_of_the_toy_are_the_notes(self):
        doc, result = document("--device", "cpu", "--size", "toy_amp", "--dtypes", "--precision", "fp16,bf16_pure")
        self.assertEqual(result.returncode, 0, result.stderr)
        types = {(row["precision"], row["operation"]): row["dtype"] for row in doc["rows"]}
        self.assertEqual(len(types), len(doc["rows"]))
        for name, dtype in (("fc1.weight", "fp32"), ("FC1_MATMUL", "fp16"), ("RELU", "fp16"), ("LAYER_NORM", "fp32"),
                            ("FC2_MATMUL", "fp16"), ("CROSS_ENTROPY", "fp32"), ("gradient of fc1.weight", "fp32"),
                            ("gradient of FC1_MATMUL", "fp16")):
            self.assertEqual(types["fp16", name], dtype, name)
        self.assertEqual(types["bf16_pure", "LAYER_NORM"], "bf16")
        self.assertEqual(types["bf16_pure", "CROSS_ENTROPY"], "fp32")
        again, _ = document(*shlex.split(doc["rows"][3]["rerun"])[1:])
        self.assertEqual([row["operation"] for row in again["rows"]], [doc["rows"][3]["operation"]])
        alone = run("--device", "cpu", "--size", "toy_amp")
        self.assertEqual(alone.returncode, 2)
        self.assertEqual(len(alone.stderr.splitlines()), 1)
        self.assertIn("toy_amp with --dtypes", alone.stderr)

    def test_softmax_and_products_within_the_attention(self):
        # Of one step: medians of parts need not add up to the median of the whole, but what lies within it does.
        doc, result = document("--device", "cpu", "--steps", "1", "--warmup", "0", *TINY[len(BASE):-2], "--structure",
                               "naive", "--breakdown", "--mode", "train_step")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = {row["operation"]: row for row in doc["rows"]}
        pairs = 4 * 4 * (24 * 25 / 2)
        self.assertEqual(rows["ATTN_QK_MATMUL"]["op_flops"], 2 * 2 * pairs * 16)
        self.assertEqual(rows["ATTN_SOFTMAX"]["op_flops"], 2 * 5 * pairs)
        self.assertEqual(rows["all attention: matmul"]["calls"], 2 * 6)
        self.assertEqual(rows["all attention: softmax"]["calls"], 2 * 2)
        parts = [row["op_ms"] for row in doc["rows"] if row["operation"].startswith("ATTN_")]
        self.assertGreater(min(parts), 0)
        self.assertLessEqual(sum(parts), rows["all attention"]["op_ms"] * (1 + 1e-9))
        whole = [row for row in doc["rows"] if not row["operation"].startswith(("all ", "ATTN_"))]
        self.assertEqual(sum(row["op_flops"] for row in whole), rows["all operations"]["op_flops"])

    def test_attention_that_is_not_here_is_a_row(self):
        doc, result = document(*TINY, "--breakdown", "--attention", "flash_sm90,flash", "--mode", "forward",
                               "--operation", "all operations")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["status"] for row in doc["rows"]], ["unsupported", "ok"])

    def test_schema_of_other_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
            paths = []
            for name in ("--breakdown", "--dtypes", "--train-steps=3"):
                paths.append(f"{folder}/{name.strip('-').replace('=', '')}.json")
                result = run(*(TINY[:2] if "train" in name else BASE), *TINY[len(BASE):], name, "-o", paths[-1])
                self.assertEqual(result.returncode, 0, result.stderr)
            checked = subprocess.run([python, str(SOURCE / "tests/reports/validate_schema.py"), *paths],
                                     capture_output=True, text=True, check=False)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_unknown_operation_is_bad_usage(self):
        result = run(*TINY, "--breakdown", "--operation", "QKV_MATMULL")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--operation 'QKV_MATMULL'", result.stderr)


class Training(unittest.TestCase):
    def test_the_loss_comes_down_to_the_entropy(self):
        doc, result = document(
            "--device", "cpu", "--size", "tiny", "--structure", "fused", "--vocab", "64", "--d-model", "32",
            "--heads", "2", "--d-ff", "64", "--layers", "1", "--context", "24", "--train-steps", "60",
            "--precision", "fp32,fp16",
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(result.returncode, 0, result.stderr)
        for row in doc["rows"]:
            self.assertEqual(row["train_steps"], 60)
            self.assertLess(row["final_loss"], 0.7 * row["first_loss"])
            self.assertGreater(row["final_loss"], row["entropy"])
            self.assertEqual(row["updates"] + row["skipped_steps"], 60)
            self.assertEqual(len(row["curve_steps"]), len(row["curve_losses"]))
            self.assertEqual(row["curve_steps"][-1], 60)
            self.assertNotIn("fwd_ms", row)


class Readme(unittest.TestCase):
    def test_every_command_is_accepted(self):
        commands = documentation.commands("scripts/run e2e_bench")
        self.assertGreaterEqual(len(commands), 8)
        for command in commands:
            with self.subTest(command=command):
                result = run(*shlex.split(command)[2:], "--device", "cpu", "--dry-run")
                self.assertTrue(documentation.is_accepted(command, result), result.stderr)


class BadInput(unittest.TestCase):
    CASES = [
        (["--heads", "3", "--size", "tiny"], ["--heads", "3", "64"]),
        (["--d-model", "12", "--size", "tiny"], ["--d-model", "head_dim 3", "even"]),
        (["--vocab", "0"], ["--vocab", "0"]),
        (["--context", "0"], ["--context", "0"]),
        (["--batch", "-1"], ["--batch", "-1"]),
        (["--layers", "two"], ["--layers", "two"]),
        (["--size", "smal"], ["--size", "smal", "small"]),
        (["--mode", "backward"], ["--mode", "backward", "train_step"]),
        (["--precision", "fp64"], ["--precision", "fp64"]),
        (["--structure", "compiled"], ["--structure", "compiled"]),
        (["--attention", "flush"], ["--attention", "flush"]),
        (["--dtype", "bf16"], ["--dtype"]),
        (["--train-steps", "0"], ["--train-steps", "0"]),
        (["--train-steps", "5", "--breakdown"], ["--train-steps", "--breakdown"]),
        (["--learning-rate", "2"], ["--learning-rate", "2"]),
        (["--device", "cpu", "--precision", "tf32"], ["tf32"]),
        (["-o", "x.txt"], ["x.txt"]),
    ]

    def test_one_line_exit_2_nothing_measured(self):
        for arguments, words in self.CASES:
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertTrue(result.stderr.startswith("e2e_bench: "), result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


class Memory(unittest.TestCase):
    def test_forward_fits_and_training_does_not(self):
        """The notes' pattern: figures of the phases that fit stay, and the sweep goes on."""
        doc, result = document(*BASE, "--size", "tiny", "--context", "16,8", "--memory-limit", "24MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        for row in doc["rows"]:
            self.assertEqual(row["status"], "oom")
            self.assertTrue(row["reason"].startswith("training: requested"), row["reason"])
            self.assertGreater(row["fwd_s"], 0)
            self.assertIsNone(row.get("fwd_bwd_s"))

    def test_predicted_oom_is_not_tried(self):
        doc, _ = document("--device", "cpu", "--size", "7B,tiny", "--structure", "fused", "--steps", "1",
                          "--warmup", "0", "--context", "8", "--memory-limit", "200MiB")
        self.assertEqual([row["status"] for row in doc["rows"]], ["oom", "ok"])
        self.assertIn("predicted", doc["rows"][0]["reason"])

    def test_dry_run_predicts_by_kind(self):
        doc, result = document("--device", "cpu", "--preset", "notes", "--dry-run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["size"] for row in doc["rows"]], ["small", "medium", "large", "xl", "7B"])
        for row in doc["rows"]:
            weights = row["parameters"] * 4 / 2**20
            self.assertTrue(math.isclose(row["predicted_parameters_mib"], weights, rel_tol=1e-3))
            # Gradients come as activations go: at the peak not all of them need be there.
            self.assertLess(row["predicted_gradients_mib"], 1.001 * weights)
            kinds = ("parameters", "gradients", "optimizer", "activations", "logits", "workspace")
            together = sum(row[f"predicted_{kind}_mib"] for kind in kinds)
            self.assertTrue(math.isclose(row["train_predicted_peak_mem_mib"], together, rel_tol=1e-6))
            self.assertTrue(math.isclose(row["predicted_optimizer_mib"], 2 * weights, rel_tol=1e-3))
            self.assertIsNone(row.get("fwd_ms"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
