#!/usr/bin/env python3
"""attn_bench as its users run it: tables, files, exit statuses, bad input, memory limits, isolation."""
import csv
import io
import json
import os
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

#: Seconds after which something is taken to hang. No test depends on its length: a busy machine may take its time.
HANG = 600
TOOL = os.environ["ATTN_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])

# Small and quick: what is looked at is behaviour, not speed. The width stands here because the CPU's default preset sweeps
# it; a test that wants another one uses BASE.
BASE = ["--device", "cpu", "--steps", "2", "--warmup", "1"]
QUICK = [*BASE, "--d-model", "64"]


def run(*arguments, **keywords):
    keywords.setdefault("timeout", HANG)
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, **keywords)


def document(*arguments, **keywords):
    result = run(*arguments, "--format", "json", **keywords)
    return json.loads(result.stdout, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name))), result


class Tables(unittest.TestCase):
    def test_markdown_has_the_notes_columns(self):
        result = run(*BASE, "--impl", "naive,flash", "--d-model", "16", "--seq-len", "64,128")
        self.assertEqual(result.returncode, 0, result.stderr)
        headings = [line for line in result.stdout.splitlines() if line.startswith("| d_model")]
        self.assertEqual(len(headings), 2)
        self.assertEqual(
            [cell.strip() for cell in headings[0].strip("|\n ").split("|")],
            ["d_model", "seq_len", "fwd_ms", "bwd_ms", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
             "bwd_peak_mem_mib", "status"])
        rows = [line for line in result.stdout.splitlines() if line.startswith("|") and " ok " in line]
        self.assertEqual(len(rows), 4)

    def test_json_rows_carry_figures_and_pass_the_check(self):
        doc, result = document(*BASE, "--impl", "naive,fused,flash,flash_two_pass", "--d-model", "64", "--seq-len",
                               "130", "--samples")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(doc["schema"], "warpmeter/1")
        self.assertEqual(doc["tool"], "attn_bench")
        self.assertEqual([row["impl"] for row in doc["rows"]], ["naive", "fused", "flash", "flash_two_pass"])
        pairs = 130 * 131 // 2
        for row in doc["rows"]:
            self.assertEqual(row["status"], "ok")
            self.assertIsNone(row["reason"])
            self.assertEqual(row["fwd_flops"], 4 * 8 * pairs * 64)
            self.assertEqual(row["bwd_flops"], 2.5 * row["fwd_flops"])
            self.assertEqual(row["fwd_n"], 2)
            self.assertEqual(len(row["fwd_samples_ms"]), 2)
            self.assertEqual(row["fwd_stop"], "steps")
            self.assertLess(row["max_rel_error"], 1e-5)
            self.assertGreater(row["fwd_ms"], 0)
            self.assertAlmostEqual(row["fwd_tflops"], row["fwd_flops"] / row["fwd_ms"] / 1e9, delta=1e-6 + 1e-3 * row["fwd_tflops"])
            self.assertIn(row["fwd_bound"], ("compute", "memory"))

    def test_flash_keeps_only_operands_and_lse(self):
        doc, _ = document(*BASE, "--impl", "flash,naive", "--d-model", "64", "--seq-len", "512")
        flash, naive = doc["rows"]
        tensor = 8 * 512 * 64 * 4 / 2**20
        lse = 8 * 512 * 4 / 2**20
        # The CPU's flash keeps a second fp32 a row: what the rounding of lse lost.
        self.assertLessEqual(flash["bwd_mem_before_backward_mib"], 5 * tensor + 2 * lse + 1e-9)
        scores = 8 * 512 * 512 * 4 / 2**20
        self.assertAlmostEqual(naive["bwd_mem_before_backward_mib"], 5 * tensor + lse + scores, places=6)
        self.assertGreaterEqual(naive["fwd_peak_mem_mib"], 3 * scores)

    def test_every_format_holds_the_same_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {ending: f"{folder}/out.{ending}" for ending in ("md", "json", "jsonl", "csv")}
            outputs = [argument for path in files.values() for argument in ("-o", path)]
            result = run(*QUICK, "--impl", "flash", "--seq-len", "16,17", *outputs)
            self.assertEqual(result.returncode, 0, result.stderr)
            text = {ending: pathlib.Path(path).read_text() for ending, path in files.items()}
            rows = json.loads(text["json"])["rows"]
            lines = [json.loads(line) for line in text["jsonl"].splitlines()]
            self.assertEqual([line["type"] for line in lines], ["header", "row", "row", "summary"])
            self.assertEqual([line["fwd_ms"] for line in lines[1:3]], [row["fwd_ms"] for row in rows])
            table = list(csv.DictReader(io.StringIO(text["csv"])))
            self.assertEqual([int(row["seq_len"]) for row in table], [16, 17])
            self.assertEqual(result.stdout, text["md"])

    def test_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            run(*QUICK, "--impl", "all", "--dtype", "fp32,bf16,fp16", "--seq-len", "33", "-o", path, "-o", f"{folder}/o.jsonl")
            validator = SOURCE / "tests/reports/validate_schema.py"
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON", sys.executable)
            result = subprocess.run([python, str(validator), path, f"{folder}/o.jsonl"], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_rerun_line_repeats_the_row(self):
        doc, _ = document(*BASE, "--preset", "fa_grid", "--tokens", "64", "--d-model", "64", "--head-dim", "32",
                          "--seq-len", "32", "--dtype", "fp32")
        for row in doc["rows"]:
            arguments = shlex.split(row["rerun"])
            self.assertEqual(arguments[0], "attn_bench")
            again, result = document(*arguments[1:])
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(again["rows"]), 1)
            for key in doc["row_keys"]:
                self.assertEqual(again["rows"][0][key], row[key])
            self.assertEqual(again["settings"], doc["settings"])

    def test_list_help_version(self):
        for option, words in (("--list", ["flash_two_pass", "fp32,bf16,fp16"]),
                              ("--help", ["--seq-len", "--preset", "Examples"]), ("--version", ["0.1.0"])):
            result = run(option)
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stderr, "")
            for word in words:
                self.assertIn(word, result.stdout)

    def test_same_seed_same_bits(self):
        errors = [document(*QUICK, "--impl", "flash", "--seq-len", "77", "--seed", "5")[0]["rows"][0]["max_rel_error"]
                  for _ in range(2)]
        self.assertEqual(errors[0], errors[1])


class Prefill(unittest.TestCase):
    PREFILL = ["--mode", "prefill", "--device", "cpu", "--steps", "1", "--warmup", "1", "--heads", "4", "--kv-heads", "2",
               "--d-model", "64"]

    def test_rows_compare_chunked_with_oneshot(self):
        doc, result = document(*self.PREFILL, "--impl", "naive,flash", "--dtype", "fp32,bf16", "--seq-len", "150",
                               "--chunk", "1,64,150,400")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(doc["rows"]), 16)
        for row in doc["rows"]:
            self.assertEqual((row["status"], row["oneshot"], row["equal"]), ("ok", "ok", True), row)
            self.assertLess(row["max_diff"], 1e-5 if row["dtype"] == "fp32" else 0.05)
            self.assertLessEqual(row["mean_diff"], row["max_diff"])
            self.assertAlmostEqual(row["speedup"] * row["overhead_ratio"], 1, places=9)
            flops = 4 * 4 * (150 * 151 // 2) * 16 + 2 * 150 * 64 * (2 * 64 + 2 * 32)
            self.assertEqual((row["chunked_flops"], row["oneshot_flops"]), (flops, flops))
            saved = (1 - row["chunked_peak_mem_mib"] / row["oneshot_peak_mem_mib"])
            self.assertAlmostEqual(row["memory_saved_share"], saved, places=6)
            if row["impl"] == "naive" and row["chunk"] == 1:
                self.assertGreater(row["memory_saved_share"], 0.5)
        again, result = document(*shlex.split(doc["rows"][-1]["rerun"])[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        for key in doc["row_keys"]:
            self.assertEqual(again["rows"][0][key], doc["rows"][-1][key])

    def test_attention_alone_over_pages(self):
        doc, result = document(*self.PREFILL, "--impl", "flash", "--no-projections", "--seq-len", "100", "--chunk", "33",
                               "--page-size", "0,16")
        self.assertEqual(result.returncode, 0, result.stderr)
        for row in doc["rows"]:
            self.assertIs(row["projections"], False)
            self.assertLess(row["max_diff"], 1e-5)
            self.assertEqual(row["chunked_flops"], 4 * 4 * (100 * 101 // 2) * 16)

    def test_a_oneshot_that_does_not_fit_leaves_the_chunked_one(self):
        doc, result = document(*self.PREFILL, "--impl", "naive", "--seq-len", "1024", "--chunk", "64", "--memory-limit",
                               "20MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        row = doc["rows"][0]
        self.assertEqual((row["status"], row["oneshot"]), ("ok", "oom (predicted)"))
        self.assertGreater(row["chunked_ms"], 0)
        self.assertIsNone(row.get("oneshot_ms"))
        self.assertIsNone(row.get("max_diff"))

    def test_markdown_columns(self):
        result = run(*self.PREFILL, "--impl", "flash", "--seq-len", "64", "--chunk", "16")
        self.assertEqual(result.returncode, 0, result.stderr)
        heading = next(line for line in result.stdout.splitlines() if line.startswith("| seq_len"))
        self.assertEqual(
            [cell.strip() for cell in heading.strip("|\n ").split("|")],
            ["seq_len", "chunk", "oneshot_ms", "chunked_ms", "speedup", "overhead_ratio", "oneshot_tokens_per_s",
             "chunked_tokens_per_s", "oneshot_tflops", "chunked_tflops", "oneshot_peak_mem_mib", "chunked_peak_mem_mib",
             "memory_saved_share", "max_diff", "mean_diff", "equal", "status"])

    def test_schema_and_prediction(self):
        arguments = [*self.PREFILL, "--impl", "flash", "--seq-len", "300", "--chunk", "100", "--page-size", "0,32"]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            run(*arguments, "-o", path)
            validator = SOURCE / "tests/reports/validate_schema.py"
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON", sys.executable)
            result = subprocess.run([python, str(validator), path], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            rows = json.loads(pathlib.Path(path).read_text())["rows"]
        for row, plan in zip(rows, document(*arguments, "--dry-run")[0]["rows"]):
            for phase in ("chunked", "oneshot"):
                predicted = plan[f"{phase}_predicted_peak_mem_mib"]
                self.assertLessEqual(row[f"{phase}_peak_mem_mib"], predicted + 1e-9)
                self.assertGreater(row[f"{phase}_peak_mem_mib"], 0.5 * predicted)


class Decode(unittest.TestCase):
    DECODE = ["--mode", "decode", "--device", "cpu", "--steps", "2", "--warmup", "1"]

    def test_markdown_columns(self):
        result = run(*self.DECODE, "--kv-len", "300,700")
        self.assertEqual(result.returncode, 0, result.stderr)
        headings = [line for line in result.stdout.splitlines() if line.startswith("| kv_len")]
        self.assertEqual(len(headings), 2)  # naive, flash_decode
        self.assertEqual(
            [cell.strip() for cell in headings[1].strip("|\n ").split("|")],
            ["kv_len", "splits_used", "decode_ms", "tokens_per_s", "decode_gbps", "read_share", "max_abs_error",
             "max_rel_error", "merge_difference", "speedup", "status"])

    def test_rows_are_right_and_repeatable(self):
        doc, result = document(*self.DECODE, "--kv-len", "300", "--kv-heads", "2", "--tokens", "2", "--batch", "3",
                               "--dtype", "fp32,bf16", "--merge", "tree,lse,two_pass,sequential", "--page-size", "0,32")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(doc["rows"]), 2 * (1 + 4 * 2))
        pairs = 299 + 300
        for row in doc["rows"]:
            self.assertEqual((row["status"], row["nan_count"], row["inf_count"]), ("ok", 0, 0), row)
            self.assertEqual(row["decode_flops"], 4 * 3 * 8 * pairs * 64)
            element = 4 if row["dtype"] == "fp32" else 2
            self.assertEqual(row["decode_bytes"],
                             2 * 3 * 2 * 300 * 64 * element + 3 * 8 * 2 * (2 * 64 * element + 4))
            self.assertLess(row["max_rel_error"], 1e-5 if row["dtype"] == "fp32" else 1e-2)
            self.assertAlmostEqual(row["tokens_per_s"], 6e3 / row["decode_ms"], delta=1e-3 * row["tokens_per_s"])
            self.assertIsNotNone(row["speedup"])
            if row["impl"] == "flash_decode":
                self.assertLess(row["merge_difference"], 1e-6 if row["dtype"] == "fp32" else 1e-2)
        one = shlex.split(doc["rows"][-1]["rerun"])
        again, result = document(*one[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(again["rows"]), 1)
        for key in doc["row_keys"]:
            self.assertEqual(again["rows"][0][key], doc["rows"][-1][key])

    def test_a_chunk_over_the_cache(self):
        doc, result = document(*self.DECODE, "--impl", "flash,flash_prefill", "--tokens", "100", "--kv-len", "400",
                               "--heads", "2", "--d-model", "64", "--splits", "auto,3", "--page-size", "0,32")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["impl"] for row in doc["rows"]], ["flash"] + 4 * ["flash_prefill"])
        self.assertEqual([row["splits_used"] for row in doc["rows"][1:]], [1, 1, 3, 3])
        for row in doc["rows"]:
            self.assertLess(row["max_rel_error"], 1e-5)
            self.assertEqual(row["decode_flops"], 4 * 2 * sum(range(301, 401)) * 32)

    def test_large_values_stay_finite(self):
        doc, result = document(*self.DECODE, "--preset", "notebook_stability", "--block", "16,256")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted({row["value_range"] for row in doc["rows"]}), [1, 10, 50])
        for row in doc["rows"]:
            self.assertEqual((row["nan_count"], row["inf_count"]), (0, 0))
            self.assertLess(row["max_rel_error"], 1e-5)

    def test_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            run(*self.DECODE, "--kv-len", "64", "-o", path)
            validator = SOURCE / "tests/reports/validate_schema.py"
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON", sys.executable)
            result = subprocess.run([python, str(validator), path], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_dry_run_predicts_the_peak(self):
        arguments = [*self.DECODE, "--kv-len", "500", "--page-size", "16"]
        predicted = document(*arguments, "--dry-run")[0]["rows"]
        for row, plan in zip(document(*arguments)[0]["rows"], predicted):
            self.assertLessEqual(row["decode_peak_mem_mib"], plan["decode_predicted_peak_mem_mib"] + 1e-9)
            self.assertGreater(row["decode_peak_mem_mib"], 0.4 * plan["decode_predicted_peak_mem_mib"])

    def test_options_of_other_modes_are_refused(self):
        for arguments, words in ((["--mode", "decode", "--pass", "fwd"], ["--pass", "train"]),
                                 (["--splits", "4"], ["--splits", "decode"]),
                                 (["--mode", "decode", "--tokens", "9", "--kv-len", "8"], ["--tokens", "9"]),
                                 (["--mode", "decoding"], ["--mode", "decode"])):
            result = run("--device", "cpu", *arguments)
            self.assertEqual(result.returncode, 2, result.stdout)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertEqual(result.stdout, "")


class Mixed(unittest.TestCase):
    MIXED = ["--mode", "mixed", "--device", "cpu", "--warmup", "1", "--heads", "4", "--kv-heads", "2", "--d-model", "128",
             "--batch", "3", "--kv-len", "200", "--seq-len", "250"]

    def test_steps_of_whole_prompts(self):
        doc, result = document(*self.MIXED, "--chunk", "64,100,300", "--page-size", "0,16", "--dtype", "fp32,bf16",
                               "--max-time", "0.01", "--tpot-bound", "10000")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(doc["rows"]), 12)
        for row in doc["rows"]:
            self.assertEqual((row["status"], row["check"]), ("ok", "every element"), row)
            steps = -(-250 // row["chunk"])
            self.assertEqual(row["steps_a_prompt"], steps)
            self.assertEqual(row["tpot_n"] % steps, 0)
            self.assertLess(row["max_rel_error"], 1e-5 if row["dtype"] == "fp32" else 1e-2)
            self.assertAlmostEqual(row["tpot_flops"], 4 * 4 * 32 * (3 * 200 + 250 * 251 / 2 / steps))
            self.assertAlmostEqual(row["prefill_tokens_per_s"], 250 / steps / (row["tpot_mean_ms"] * 1e-3),
                                   delta=1e-6 * row["prefill_tokens_per_s"])
            self.assertAlmostEqual(row["slowdown"], row["tpot_ms"] / row["decode_alone_ms"])
        told = [line for line in result.stderr.splitlines() if "the largest chunk" in line]
        self.assertEqual(len(told), 4, result.stderr)
        self.assertTrue(all(" is 300 (" in line for line in told), told)

    def test_asked_for_steps(self):
        doc, _ = document(*self.MIXED, "--impl", "naive", "--chunk", "100", "--steps", "4")
        self.assertEqual((doc["rows"][0]["tpot_n"], doc["rows"][0]["status"]), (4, "ok"))

    def test_pages_are_flash_alones(self):
        doc, _ = document(*self.MIXED, "--impl", "naive,flash", "--chunk", "100", "--steps", "1", "--page-size", "16")
        self.assertEqual([row["status"] for row in doc["rows"]], ["unsupported", "ok"])

    def test_dry_run_predicts_the_peak(self):
        arguments = [*self.MIXED, "--chunk", "64,250", "--steps", "1"]
        predicted = document(*arguments, "--dry-run")[0]["rows"]
        for row, plan in zip(document(*arguments)[0]["rows"], predicted):
            self.assertLessEqual(row["peak_mem_mib"], plan["predicted_peak_mem_mib"] + 1e-9)
            self.assertGreater(row["peak_mem_mib"], 0.8 * plan["predicted_peak_mem_mib"])

    def test_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            run(*self.MIXED, "--chunk", "100", "--steps", "1", "-o", path)
            validator = SOURCE / "tests/reports/validate_schema.py"
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON", sys.executable)
            result = subprocess.run([python, str(validator), path], capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class BadInput(unittest.TestCase):
    CASES = [
        (["--seq-len", "0"], ["--seq-len", "0"]),
        (["--seq-len", "-5"], ["--seq-len", "-5"]),
        (["--seq-len", "abc"], ["--seq-len", "abc"]),
        (["--seq-len", "12x"], ["--seq-len", "12x"]),
        (["--seq-len", "16:8:x2"], ["--seq-len", "16:8:x2"]),
        (["--seq-len", "1e99"], ["--seq-len", "1e99"]),
        (["--seq-len", "99999999999999999999"], ["--seq-len", "99999999999999999999"]),
        (["--seq-lne", "8"], ["--seq-lne", "--seq-len"]),
        (["--impl", "flush"], ["--impl", "flush", "flash"]),
        (["--dtype", "fp33"], ["--dtype", "fp33", "bf16"]),
        (["--preset", "nites"], ["--preset", "nites", "notes"]),
        (["--heads", "3", "--d-model", "64"], ["--heads", "3", "64"]),
        (["--heads", "4", "--kv-heads", "3", "--d-model", "64"], ["--kv-heads", "3", "4"]),
        (["--steps", "0"], ["--steps", "0"]),
        (["--steps", "-1"], ["--steps", "-1"]),
        (["--max-noise", "nan"], ["--max-noise", "nan"]),
        (["--memory-limit", "24GB2"], ["--memory-limit", "24GB2"]),
        (["--memory-limit", "0"], ["--memory-limit", "0"]),
        (["-o", "/nonexistent/folder/x.json"], ["/nonexistent/folder/x.json"]),
        (["-o", "x.txt"], ["x.txt", ".json"]),
        (["--device", "cuda:99"], ["--device", "cuda:99"]),
        (["--device", "tpu"], ["--device", "tpu", "cpu"]),
        (["--format", "xml"], ["--format", "xml", "jsonl"]),
        (["--config", "/nonexistent.toml"], ["--config", "/nonexistent.toml"]),
        (["--resume", "/nonexistent.json"], ["--resume", "/nonexistent.json"]),
        (["--columns", "fwd_mss"], ["--columns", "fwd_mss"]),
        (["junk"], ["junk"]),
        (["--seq-len"], ["--seq-len"]),
    ]

    def test_one_line_exit_2_nothing_measured(self):
        for arguments, words in self.CASES:
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                self.assertTrue(result.stderr.startswith("attn_bench: "), result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_unknown_config_key(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('seq-len = "64"\nsq-len = 3\n')
            file.flush()
            result = run("--config", file.name)
            self.assertEqual(result.returncode, 2)
            self.assertIn("sq-len", result.stderr)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)

    def test_config_and_print_config_round_trip(self):
        first = run("--seq-len", "64,96", "--impl", "flash", "--dtype", "bf16", "--causal=both", "--print-config")
        self.assertEqual(first.returncode, 0, first.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(first.stdout)
            file.flush()
            self.assertEqual(run("--config", file.name, "--print-config").stdout, first.stdout)

    def test_nothing_that_can_run_is_bad_usage(self):
        result = run("--device", "cpu", "--impl", "flash_sm90", "--seq-len", "8")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        doc, result = document(*QUICK, "--impl", "flash_sm90,flash", "--seq-len", "8")
        self.assertEqual(result.returncode, 0)
        self.assertEqual([row["status"] for row in doc["rows"]], ["unsupported", "ok"])
        self.assertIn("flash_sm90", doc["rows"][0]["reason"])

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_disk_full_keeps_stdout_and_exits_1(self):
        with tempfile.TemporaryDirectory() as folder:
            link = f"{folder}/full.json"
            os.symlink("/dev/full", link)
            result = run(*QUICK, "--impl", "flash", "--seq-len", "8", "-o", link)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("| ok", result.stdout)
            self.assertIn("full.json", result.stderr)


class Memory(unittest.TestCase):
    def test_rows_that_do_not_fit_are_oom_and_the_sweep_goes_on(self):
        doc, result = document(*BASE, "--impl", "naive,flash", "--d-model", "16", "--seq-len", "128,1024,256",
                               "--memory-limit", "40MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["status"] for row in doc["rows"]], ["ok", "oom", "ok", "ok", "ok", "ok"])
        oom = doc["rows"][1]
        self.assertIn("predicted", oom["reason"])
        self.assertIsNone(oom.get("fwd_ms"))
        self.assertEqual(doc["summary"]["oom"], 1)

    def test_the_guard_and_the_attempt_agree(self):
        """With the forward alone fitting, its figures stay and the row is oom."""
        # Three score matrices of 32 MiB in both passes; the backward has four more operands of half a MiB, which take
        # one more 2 MiB segment than the forward's.
        doc, _ = document(*BASE, "--impl", "naive", "--d-model", "16", "--seq-len", "1024", "--memory-limit",
                          "101MiB")
        row = doc["rows"][0]
        self.assertEqual(row["status"], "oom")
        self.assertGreater(row["fwd_ms"], 0)
        self.assertIsNone(row.get("bwd_ms"))

    def test_many_rows_with_oom_and_a_killed_child(self):
        # As many as show each outcome; the harness's own test has hundreds.
        lengths = ",".join(str(64 * i) for i in range(1, 11))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "rows.jsonl")
            command = [TOOL, "--device", "cpu", "--steps", "1", "--warmup", "0", "--isolate", "--impl",
                       "naive,fused,flash,flash_two_pass,reference", "--d-model", "16", "--batch", "2", "--pass", "fwd",
                       "--seq-len", lengths, "--memory-limit", "4MiB", "--no-check", "-o", str(path)]

            def rows():
                text = path.read_text() if path.exists() else ""
                lines = text[:text.rfind("\n") + 1].splitlines()  # one may be half written
                return [line for line in map(json.loads, lines) if line["type"] == "row"]

            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                # A child that has said its row already dies in vain: the next one is tried.
                killed = set()
                deadline = time.monotonic() + HANG
                while time.monotonic() < deadline and all(row["status"] != "crashed" for row in rows()):
                    before = len(rows())
                    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                    for child in set(map(int, children)) - killed:
                        killed.add(child)
                        try:
                            os.kill(child, signal.SIGKILL)
                        except ProcessLookupError:
                            continue
                        while len(rows()) == before and time.monotonic() < deadline:
                            time.sleep(0.005)
                errors = process.communicate(timeout=HANG)[1]
            self.assertEqual(process.returncode, 1, errors)
            found = rows()
        self.assertEqual(len(found), 50)
        statuses = [row["status"] for row in found]
        self.assertEqual(statuses.count("crashed"), 1, statuses)
        self.assertGreater(statuses.count("oom"), 3)
        self.assertGreater(statuses.count("ok"), 25)
        self.assertEqual(set(statuses), {"ok", "oom", "crashed"})
        crashed = found[statuses.index("crashed")]
        self.assertIn("SIGKILL", crashed["reason"])

    def test_interrupt_keeps_what_was_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            command = [TOOL, "--device", "cpu", "--impl", "flash", "--d-model", "16", "--seq-len", "16:4096:+16", "-o", path,
                       "--max-time", "0.2"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                deadline = time.monotonic() + HANG
                while time.monotonic() < deadline:
                    try:
                        if sum(row["status"] == "ok" for row in json.loads(pathlib.Path(path).read_text())["rows"]) >= 2:
                            break
                    except (OSError, ValueError):
                        pass
                    time.sleep(0.05)
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=HANG)
            self.assertEqual(process.returncode, 130)
            rows = json.loads(pathlib.Path(path).read_text())["rows"]
            finished = [row for row in rows if row["status"] == "ok"]
            self.assertGreaterEqual(len(finished), 2)
            self.assertIn("| ok", output)
            resumed, result = document("--device", "cpu", "--impl", "flash", "--d-model", "16", "--seq-len", "16,32",
                                       "--resume", path, "--max-time", "0.2")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([row["fwd_ms"] for row in resumed["rows"]], [row["fwd_ms"] for row in finished[:2]])


class DryRun(unittest.TestCase):
    def test_predictions_without_running(self):
        arguments = ["--device", "cpu", "--impl", "naive", "--d-model", "64", "--seq-len", "16384", "--dry-run"]
        # Its three score matrices are 24 GiB: with half of that nothing of it can have been tried. A sanitizer's own
        # memory is terabytes, and there nothing is limited.
        half = 12 << 30

        def limit_memory():
            resource.setrlimit(resource.RLIMIT_DATA, (half, half))

        limited = "sanitizers" not in run("--version").stdout
        doc, result = document(*arguments, preexec_fn=limit_memory if limited else None)
        self.assertEqual(result.returncode, 0, result.stderr)
        row = doc["rows"][0]
        self.assertIn(row["status"], ("skipped", "oom"))  # as much memory as this machine has
        self.assertEqual(row["fwd_flops"], 4 * 8 * (16384 * 16385 // 2) * 64)
        self.assertGreater(row["fwd_predicted_peak_mem_mib"], 3 * 8 * 1024)
        self.assertIsNone(row.get("fwd_ms"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
