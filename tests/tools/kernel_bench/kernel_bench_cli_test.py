#!/usr/bin/env python3
"""kernel_bench as its users run it: tables, rows, rerun lines, exit statuses, bad input."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ["KERNEL_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path.insert(0, str(SOURCE / "tests/scripts"))
import documentation  # noqa: E402

QUICK = ["--device", "cpu", "--steps", "2", "--warmup", "1"]
KERNELS = re.findall(r"^WM_PRIMER_KERNEL\((\w+)\)", (SOURCE / "kernels/primer/registry.def").read_text(), re.MULTILINE)


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, timeout=600)


def document(*arguments):
    result = run(*arguments, "--format", "json")
    return json.loads(result.stdout, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name))), result


class Rows(unittest.TestCase):
    def test_the_notes_puzzles_are_right_in_every_type(self):
        doc, result = document(*QUICK, "--preset", "notes", "--dtype", "fp32,bf16,fp16")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["kernel"] for row in doc["rows"]], [name for name in KERNELS for _ in range(3)])
        for row in doc["rows"]:
            self.assertEqual(row["status"], "ok", row)
            self.assertEqual(row["check"], "every element")
            self.assertLess(row["max_rel_error"], {"fp32": 1e-5, "bf16": 2**-7, "fp16": 2**-10}[row["dtype"]])
            phase = "bwd" if row["kernel"].endswith("_backward") else "fwd"
            self.assertGreater(row[f"{phase}_ms"], 0)
            self.assertEqual(row[f"{phase}_n"], 2)
            self.assertIn(row[f"{phase}_bound"], ("compute", "memory"))
            self.assertGreater(row[f"{phase}_bound_share"], 0)
            if row[f"{phase}_bound"] == "memory":
                self.assertGreater(row[f"{phase}_plain_ms"], 0)
                self.assertAlmostEqual(row[f"{phase}_plain_share"], row[f"{phase}_plain_ms"] / row[f"{phase}_ms"])
            else:
                self.assertEqual((row[f"{phase}_plain_ms"], row[f"{phase}_plain_share"]), (None, None))

    def test_flops_and_bytes_are_the_least(self):
        doc, _ = document(*QUICK, "--kernel", "add,row_sum,batched_matmul,int4_matmul,weighted_sum_backward", "--rows",
                          "6", "--cols", "10", "--inner", "16", "--batch", "2", "--group-size", "8", "--dtype", "fp32")
        found = {row["kernel"]: [value for name, value in row.items() if re.fullmatch("(fwd|bwd)_(flops|bytes)", name)]
                 for row in doc["rows"]}
        self.assertEqual(found["add"], [60, 4 * 120])
        self.assertEqual(found["row_sum"], [60, 4 * 66])
        self.assertEqual(found["batched_matmul"], [2 * 2 * 6 * 10 * 16, 4 * 2 * (6 * 16 + 16 * 10 + 60)])
        # Two words of weights, two scales and a word of offsets a row.
        self.assertEqual(found["int4_matmul"], [2 * 6 * 10 * 16, 4 * (6 * 2 + 6 * 2 + 6 + 16 * 10 + 60)])
        self.assertEqual(found["weighted_sum_backward"], [180, 4 * (60 + 10 + 6 + 60 + 10)])

    def test_plain_code_is_measured_for_what_memory_bounds_and_in_no_peak(self):
        for arguments in ([], ["--isolate"]):
            doc, result = document(*QUICK, "--kernel", "row_sum,outer_mul_relu_backward,batched_matmul", "--rows",
                                   "512", "--cols", "1024", "--inner", "512", "--batch", "1", "--memory-limit", "24MiB",
                                   *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            reduction, backward, matmul = doc["rows"]
            self.assertGreater(reduction["fwd_plain_share"], 0)
            self.assertGreater(backward["bwd_plain_share"], 0)
            self.assertEqual((matmul["fwd_bound"], matmul["fwd_plain_ms"], matmul["fwd_plain_share"]),
                             ("compute", None, None))
            self.assertEqual(reduction["fwd_peak_mem_mib"], 2 + 512 * 4 / 2**20)

    def test_a_size_that_the_kernel_does_not_have_is_null(self):
        doc, _ = document(*QUICK, "--kernel", "add,conv2d", "--rows", "4", "--cols", "5")
        add, conv = doc["rows"]
        self.assertIsNone(add["kernel_size"])
        self.assertEqual((conv["kernel_size"], conv["batch"], conv["rows"]), (3, 1, 4))
        self.assertEqual(doc["row_keys"], ["kernel", "impl", "dtype", "batch", "rows", "cols", "inner", "kernel_size",
                                           "group_size"])

    def test_markdown_has_a_table_for_each_kernel(self):
        result = run(*QUICK, "--kernel", "add,row_sum", "--rows", "8", "--cols", "16,32")
        self.assertEqual(result.returncode, 0, result.stderr)
        headings = [line for line in result.stdout.splitlines() if line.startswith("| dtype")]
        self.assertEqual(len(headings), 2)
        self.assertEqual([cell.strip() for cell in headings[0].strip("|\n ").split("|")],
                         ["dtype", "rows", "cols", "fwd_ms", "fwd_gbps", "fwd_tflops", "fwd_bound", "fwd_bound_share",
                          "fwd_plain_share", "max_rel_error", "status"])

    def test_schema_files_resume_and_isolation(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/out.json"
            arguments = [*QUICK, "--kernel", "add,int4_matmul", "--rows", "7", "--cols", "9", "--inner", "24"]
            outputs = ["-o", path, "-o", f"{folder}/o.jsonl", "-o", f"{folder}/o.csv"]
            self.assertEqual(run(*arguments, *outputs).returncode, 0)
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable
            if subprocess.run([python, "-c", "import jsonschema"], capture_output=True, check=False).returncode == 0:
                result = subprocess.run([python, str(SOURCE / "tests/reports/validate_schema.py"), path,
                                         f"{folder}/o.jsonl", f"{folder}/o.csv"],
                                        capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            first = json.loads(pathlib.Path(path).read_text())["rows"]
            again, result = document(*arguments, "--resume", path)
            self.assertEqual([row["fwd_ms"] for row in again["rows"]], [row["fwd_ms"] for row in first], result.stderr)
            isolated, result = document(*arguments, "--isolate")
            self.assertEqual([row["status"] for row in isolated["rows"]], ["ok", "ok"], result.stderr)

    def test_rerun_lines_repeat_their_rows(self):
        doc, _ = document(*QUICK, "--preset", "notes", "--kernel", "add,conv2d,int4_matmul", "--dtype", "bf16")
        for row in doc["rows"]:
            again, result = document(*shlex.split(row["rerun"])[1:], "--dry-run")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([{key: r[key] for key in doc["row_keys"]} for r in again["rows"]],
                             [{key: row[key] for key in doc["row_keys"]}])

    def test_what_does_not_fit_is_oom_and_the_sweep_goes_on(self):
        doc, result = document(*QUICK, "--kernel", "add", "--rows", "1024", "--cols", "16,4096,32", "--memory-limit",
                               "16MiB")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["status"] for row in doc["rows"]], ["ok", "oom", "ok"])

    def test_dry_run_predicts(self):
        doc, _ = document("--device", "cpu", "--kernel", "add", "--rows", "1024", "--cols", "1024", "--dry-run")
        self.assertEqual(doc["rows"][0]["fwd_predicted_peak_mem_mib"], 8)
        self.assertNotIn("fwd_ms", doc["rows"][0])
        self.assertNotIn("fwd_plain_ms", doc["rows"][0])


class Text(unittest.TestCase):
    def test_the_readmes_commands_are_accepted(self):
        commands = documentation.commands("scripts/run kernel_bench")
        self.assertGreaterEqual(len(commands), 5)
        for command in commands:
            arguments = shlex.split(command)[2:]
            with self.subTest(command=command):
                result = run(*arguments, *([] if "--list" in arguments else ["--dry-run"]))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotEqual(result.stdout, "")

    def test_list_prints_every_formula(self):
        listed = run("--list").stdout
        for name in KERNELS:
            self.assertRegex(listed, rf"(?m)^{name}\n  \S.* = .*\n")

    def test_kernel_files_are_laid_out_alike(self):
        for name in KERNELS:
            lines = (SOURCE / "kernels/primer" / f"{name}.cuh").read_text().splitlines()
            with self.subTest(kernel=name):
                self.assertTrue(lines[0].startswith(f"// {name}: "), lines[0])
                marks = [line for line in lines if line.startswith("#if WM_PRIMER_")]
                wanted = ["#if WM_PRIMER_DESCRIBES", "#if WM_PRIMER_CPU", "#if WM_PRIMER_CUDA"]
                self.assertEqual([mark for mark in marks if mark in wanted][-3:], wanted)
                self.assertTrue(60 <= len(lines) <= 150, len(lines))

    def test_bad_input_is_one_line_and_exit_2(self):
        for arguments, words in ((["--rows", "0"], ["--rows", "0"]), (["--cols", "-5"], ["--cols", "-5"]),
                                 (["--inner", "12x"], ["--inner", "12x"]), (["--kernel", "softmux"], ["softmux"]),
                                 (["--kernel", "add", "--group-size", "8"], ["--group-size"]),
                                 (["--dtype", "tf32"], ["--dtype", "tf32", "bf16"]),
                                 (["--sizes", "large"], ["--sizes", "large"]),
                                 (["--rwos", "4"], ["--rwos", "--rows"]), (["--preset", "note"], ["note", "notes"])):
            with self.subTest(arguments=arguments):
                result = run("--device", "cpu", *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
