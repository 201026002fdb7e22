#!/usr/bin/env python3
"""allreduce_bench as its users run it: tables, rows, results checked, bad usage, the demo."""
import csv
import io
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from common import QUICK, SOURCE, document, run

sys.path.insert(0, str(SOURCE / "tests/scripts"))
import documentation  # noqa: E402

CPU_BACKENDS = [name for name in ("shm", "gloo", "mpi")
                if f"not here for two ranks: {name}" not in run("--list").stdout]


def cells(line):
    return [cell.strip() for cell in line.strip("|\n ").split("|")]


class Rows(unittest.TestCase):
    def test_markdown_has_the_notes_columns(self):
        result = run(*QUICK, "--sizes", "1MiB,2MiB", "--world-size", "2,3")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [cells(line) for line in result.stdout.splitlines() if line.startswith("|")]
        self.assertEqual(lines[0], ["target", "world_size", "tensor_size", "median_ms", "mean_ms", "algo_GiBps"])
        self.assertEqual([line[:3] for line in lines[2:]],
                         [["shm-cpu", n, size] for n in ("2", "3") for size in ("1MiB", "2MiB")])

    def test_figures_follow_from_the_time(self):
        doc, result = document(*QUICK, "--sizes", "3MiB", "--world-size", "3", "--samples")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((doc["schema"], doc["tool"]), ("warpmeter/1", "allreduce_bench"))
        (row,) = doc["rows"]
        seconds, size = row["median_ms"] * 1e-3, 3 * 2**20
        self.assertEqual((row["bytes"], row["n"], row["stop"], row["wrong"]), (size, 3, "steps", 0))
        self.assertAlmostEqual(row["algo_GiBps"], 2 * 2 / 3 * size / seconds / 2**30, delta=1e-6 * row["algo_GiBps"])
        self.assertAlmostEqual(row["algbw_gbps"], size / seconds / 1e9, delta=1e-6 * row["algbw_gbps"])
        self.assertAlmostEqual(row["busbw_gbps"], 4 / 3 * row["algbw_gbps"], delta=1e-6 * row["busbw_gbps"])
        self.assertEqual(sorted(row["call_samples_ms"])[1], row["median_ms"])
        # What stays in the cache from call to call is bound by no memory.
        self.assertEqual((row["bound"], row["bound_share"]), (None, None))
        for name in ("skew_mean_ms", "in_a_row_mean_ms", "p95_ms", "p99_ms", "min_ms"):
            self.assertGreaterEqual(row[name], 0, name)

    def test_the_share_of_the_bound(self):
        doc, result = document(*QUICK, "--sizes", "1MiB", "--cache", "cold", "--world-size", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        (row,) = doc["rows"]
        self.assertEqual(row["bound"], "memory")
        # Every rank reads its array and writes it: six arrays.
        copy, seconds = doc["device"]["ceilings"]["copy_gbps"], row["median_ms"] * 1e-3
        self.assertAlmostEqual(row["bound_share"], 6 * 2**20 / (copy * 1e9) / seconds, delta=1e-6 * row["bound_share"])

    def test_one_rank_has_no_bandwidth(self):
        doc, _ = document(*QUICK, "--sizes", "1KiB", "--world-size", "1")
        (row,) = doc["rows"]
        self.assertEqual((row["status"], row["algo_GiBps"], row["busbw_gbps"]), ("ok", None, None))

    def test_every_collective_type_and_operation_is_right(self):
        for backend in CPU_BACKENDS:
            # TCP takes its time: there one size and place.
            sizes, places = (["12", "30012"], "both") if backend == "shm" else (["30012"], "true")
            with self.subTest(backend=backend):
                doc, result = document("--device", "cpu", "--steps", "1", "--warmup", "0", "--backend", backend,
                                       "--world-size", "3", "--collective", "all", "--op", "all", "--dtype",
                                       "fp32,bf16,fp16,int32", "--sizes", ",".join(sizes), f"--in-place={places}")
                self.assertEqual(result.returncode, 0, result.stderr)
                # Two that reduce, with four operations each, two that do not, four types; a barrier.
                self.assertEqual(len(doc["rows"]),
                                 (2 * 4 + 2) * 4 * len(sizes) * (2 if places == "both" else 1) + 1)
                for row in doc["rows"]:
                    self.assertEqual((row["status"], row["wrong"]), ("ok", 0), row)

    def test_sizes_of_a_collective_in_parts(self):
        doc, _ = document(*QUICK, "--collective", "all_gather", "--world-size", "3", "--sizes", "40")
        (row,) = doc["rows"]
        # Ten elements: three for each rank.
        self.assertAlmostEqual(row["algbw_gbps"], 36 / (row["median_ms"] * 1e-3) / 1e9, delta=1e-6 * row["algbw_gbps"])

    def test_without_the_check(self):
        doc, _ = document(*QUICK, "--no-check", "--sizes", "1MiB")
        self.assertNotIn("wrong", doc["rows"][0])
        self.assertGreater(doc["rows"][0]["median_ms"], 0)

    def test_every_format_holds_the_same_rows(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder, "r." + ending) for ending in ("json", "jsonl", "csv", "md")]
            result = run(*QUICK, "--sizes", "1KiB:16KiB:x4", *(word for path in paths for word in ("-o", str(path))))
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = json.loads(paths[0].read_text())["rows"]
            self.assertEqual([row["tensor_size"] for row in rows], ["1KiB", "4KiB", "16KiB"])
            lines = [json.loads(line) for line in paths[1].read_text().splitlines()]
            self.assertEqual([line["median_ms"] for line in lines if line["type"] == "row"],
                             [row["median_ms"] for row in rows])
            table = list(csv.DictReader(io.StringIO(paths[2].read_text())))
            self.assertEqual([float(row["median_ms"]) for row in table], [row["median_ms"] for row in rows])
            self.assertEqual(paths[3].read_text(), result.stdout)
            python = os.environ.get("WARPMETER_SCHEMA_PYTHON")
            if python:
                check = subprocess.run([python, str(SOURCE / "tests/reports/validate_schema.py"), str(paths[0])],
                                       capture_output=True, text=True, check=False)
                self.assertEqual(check.returncode, 0, check.stderr + check.stdout)

    def test_wide_and_samples(self):
        result = run(*QUICK, "--sizes", "1MiB", "--wide")
        header = cells(result.stdout.splitlines()[0])
        for column in ("p95_ms", "p99_ms", "in_a_row_mean_ms", "algbw_gbps", "busbw_gbps", "wrong", "bound_share", "skew_mean_ms"):
            self.assertIn(column, header)

    def test_a_rerun_line_repeats_its_row(self):
        doc, _ = document(*QUICK, "--sizes", "1KiB,2KiB", "--dtype", "bf16", "--op", "max", "--world-size", "2,3",
                          "--no-in-place", "--seed", "5")
        line = shlex.split(doc["rows"][3]["rerun"])
        again, result = document(*line[1:])
        self.assertEqual(result.returncode, 0, result.stderr)
        keys = doc["row_keys"]
        self.assertEqual([[row[key] for key in keys] for row in again["rows"]], [[doc["rows"][3][key] for key in keys]])

    def test_resume_takes_rows_over(self):
        with tempfile.TemporaryDirectory() as folder:
            file = str(pathlib.Path(folder, "r.json"))
            run(*QUICK, "--sizes", "1KiB", "-o", file)
            result = run(*QUICK, "--sizes", "1KiB,2KiB", "--resume", file, "-o", file)
            self.assertIn("1 of 2 rows taken over", result.stderr)
            self.assertEqual(result.returncode, 0)

    def test_an_array_that_does_not_fit(self):
        doc, result = document(*QUICK, "--sizes", "1KiB,64MiB", "--memory-limit", "100MiB")
        self.assertEqual([row["status"] for row in doc["rows"]], ["ok", "oom"])
        self.assertIn("predicted peak 128.0 MiB", doc["rows"][1]["reason"])
        self.assertEqual(result.returncode, 0)

    def test_backends_that_are_not_here_are_rows_beside_those_that_are(self):
        doc, result = document(*QUICK, "--sizes", "1KiB", "--backend", "shm,nccl,p2p,auto")
        statuses = {row["target"]: row["status"] for row in doc["rows"]}
        self.assertEqual(statuses, {"shm-cpu": "ok", "nccl-cuda": "unsupported", "p2p-cuda": "unsupported",
                                    "auto-cuda": "unsupported"})
        self.assertEqual(result.returncode, 0)
        result = run("--device", "cpu", "--backend", "nccl", "--sizes", "1KiB")
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)


class Usage(unittest.TestCase):
    def refused(self, *arguments, words):
        result = run("--device", "cpu", *arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_bad_values(self):
        self.refused("--sizes", "6", words=["--sizes '6'", "fp32", "4 bytes"])
        self.refused("--sizes", "0", words=["--sizes '0'"])
        self.refused("--sizes", "8", "--collective", "all_gather", "--world-size", "4", words=["--sizes '8'", "4 ranks"])
        self.refused("--backend", "shmem", words=["--backend 'shmem'", "did you mean shm"])
        self.refused("--world-size", "0", words=["--world-size '0'"])
        self.refused("--world-size", "65", words=["--world-size '65'", "64"])
        self.refused("--dtype", "tf32", words=["--dtype 'tf32'", "int32"])
        self.refused("--op", "prod", words=["--op 'prod'", "sum"])
        self.refused("--timeout", "0", words=["--timeout '0'"])
        self.refused("--rendezvous", "here:1", words=["--rendezvous", "RANK"])

    def test_help_list_and_dry_run(self):
        text = run("--help").stdout
        for word in ("--backend", "--world-size", "--sizes", "--collective", "--timeout", "notes", "mpirun"):
            self.assertIn(word, text)
        names = [line.split()[0] for line in run("--list").stdout.splitlines() if re.match("  [a-z]", line)]
        self.assertEqual(names, ["shm", "gloo", "mpi", "nccl", "p2p", "auto"])
        result = run("--device", "cpu", "--dry-run", "--preset", "notes")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout.count("| dry run |"), 16)

    def test_the_readmes_commands_are_accepted(self):
        commands = documentation.commands("scripts/run allreduce_bench")
        self.assertGreaterEqual(len(commands), 4)
        with tempfile.TemporaryDirectory() as folder:
            for command in commands:
                arguments = shlex.split(command)[2:]
                with self.subTest(command=command):
                    result = run(*arguments, *([] if "--demo" in arguments else ["--dry-run"]), cwd=folder)
                    self.assertTrue(documentation.is_accepted(command, result), result.stderr)

    def test_demo(self):
        for backend in CPU_BACKENDS:
            with self.subTest(backend=backend):
                result = run("--device", "cpu", "--demo", "--backend", backend)
                self.assertEqual(result.returncode, 0, result.stderr)
                found = re.findall(r"^rank (\d) (before|after) all_reduce: +\[(\d+), (\d+), (\d+)\]$", result.stdout,
                                   re.MULTILINE)
                self.assertEqual(len(found), len(result.stdout.splitlines()))
                before = [tuple(map(int, f[2:])) for f in found if f[1] == "before"]
                after = [tuple(map(int, f[2:])) for f in found if f[1] == "after"]
                self.assertEqual(len(before), 4)
                self.assertGreater(len(set(before)), 1)
                self.assertEqual(after, [tuple(map(sum, zip(*before)))] * 4)
        for arguments in (["--format", "json"], ["-o", "x.json"]):  # nothing would be written there
            result = run("--device", "cpu", "--demo", *arguments)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1))
            self.assertIn(f"'{arguments[1]}': --demo prints text and measures nothing", result.stderr)


if __name__ == "__main__":
    unittest.main()
