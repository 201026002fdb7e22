#!/usr/bin/env python3
"""What the peers write: as the tools' writers write it, valid by the schema, whatever became of the rows."""

import csv
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest

from common import PEERS, SOURCE, fake_peer, has_schema_python, run, schema_problems, strict
from warpmeter_peers import cells, results
from warpmeter_peers.outputs import write_text
from warpmeter_peers.settings import Settings
from warpmeter_peers.tables import Layout

GOLDEN = SOURCE / "tests" / "reports" / "golden"
SAMPLE_LAYOUT = Layout(["impl", "dtype"],
                       ["d_model", "seq_len", "fwd_ms", "bwd_ms", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
                        "bwd_peak_mem_mib", "status"],
                       ["batch", "causal", "kernel", "fwd_mean_ms", "fwd_noise", "fwd_flops", "fwd_bound",
                        "fwd_bound_share", "fwd_n", "max_rel_error", "fwd_mfu"])
EVERYTHING = {"2": "oom", "3": "error", "4": "unsupported", "5": "mismatch", "6": "predicted", "7": "never"}


def sample_document():
    """tests/reports/sample.cpp's document, as the C++ writer left it."""
    read = strict((GOLDEN / "sample_samples.json").read_text(encoding="utf-8"))
    keys = read["row_keys"]
    document = results.Document(*(read[name] for name in ("tool", "version", "argv", "started_at", "device",
                                                          "libraries", "settings", "row_keys")))
    for flat in read["rows"]:
        row = results.Row({key: flat[key] for key in keys if key in flat}, flat["rerun"])
        row.figures = {name: value for name, value in flat.items()
                       if name not in keys and name not in ("status", "reason", "rerun")}
        row.end(flat["status"], flat["reason"])
        document.rows.append(row)
    document.extra_summary = {name: read["summary"][name] for name in ("seconds", "warnings")}
    return document


def squeezed(markdown):
    """Without the widths of columns, which are those of the whole sweep here and of each table there."""
    lines = []
    for line in markdown.splitlines():
        if set(line) <= set("|-:"):
            line = "|".join(":" if cell.endswith(":") else "-" for cell in line.split("|"))
        lines.append(" ".join(line.split()))
    return lines


def numbers(text):
    """The cells of CSV, numbers as such: 4.295e+12 is 4295000000000."""
    def value(cell):
        try:
            return float(cell)
        except ValueError:
            return cell
    return [[value(cell) for cell in line] for line in csv.reader(io.StringIO(text))]


class AsTheTools(unittest.TestCase):
    def test_json(self):
        for samples, name in ((False, "sample.json"), (True, "sample_samples.json")):
            text = write_text(sample_document(), "json", SAMPLE_LAYOUT, Settings(samples=samples))
            golden = (GOLDEN / name).read_text(encoding="utf-8")
            self.assertEqual(strict(text), strict(golden))
            # The same lines too: one a part, one a row, so that files can be compared by eye.
            self.assertEqual(len(text.splitlines()), len(golden.splitlines()))
            for ours, theirs in zip(strict(text)["rows"], strict(golden)["rows"]):
                self.assertEqual(list(ours), list(theirs))

    def test_json_lines(self):
        text = write_text(sample_document(), "jsonl", SAMPLE_LAYOUT, Settings())
        golden = (GOLDEN / "sample.jsonl").read_text(encoding="utf-8")
        self.assertEqual([strict(line) for line in text.splitlines()], [strict(line) for line in golden.splitlines()])

    def test_csv(self):
        for values, name in (({}, "sample.csv"), ({"wide": True}, "sample_wide.csv")):
            text = write_text(sample_document(), "csv", SAMPLE_LAYOUT, Settings(**values))
            self.assertEqual(numbers(text), numbers((GOLDEN / name).read_text(encoding="utf-8")))

    def test_markdown(self):
        text = write_text(sample_document(), "md", SAMPLE_LAYOUT, Settings())
        self.assertEqual(squeezed(text), squeezed((GOLDEN / "sample.md").read_text(encoding="utf-8")))

    def test_cells(self):
        for name, value, text in (("fwd_ms", 0.98, "0.98"), ("fwd_ms", 5398.399, "5398"), ("fwd_ms", 999.96, "1000"),
                                  ("fwd_ms", 1.25e-5, "1.25e-05"), ("x_mib", 512 / 2**20, "0.00049"),
                                  ("x_mib", 23195.783, "23195.8"), ("fwd_noise", 0.0042, "0.42%"),
                                  ("fwd_bound_share", 0.8734, "87.3%"),
                                  ("seq_len", 4096, "4096"), ("fwd_ms", None, ""), ("fwd_ms", float("nan"), ""),
                                  ("causal", True, "true"), ("kernel", "a\nb\x1b[", "a b\ufffd[")):
            self.assertEqual(cells.format_cell(name, value), text, (name, value))

    def test_what_is_not_finite_is_null(self):
        row = results.Row({"impl": "x"}, "x")
        row.figures = {"fwd_ms": float("inf"), "fwd_samples_ms": [1.0, float("nan")]}
        row.end("ok")
        self.assertEqual(strict(results.row_to_json(row, True))["fwd_samples_ms"], [1, None])
        self.assertIsNone(strict(results.row_to_json(row, True))["fwd_ms"])


class Sweeps(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)

    def test_every_status_in_every_format(self):
        files = [self.folder / f"out.{ending}" for ending in ("json", "jsonl", "csv", "md")]
        outputs = [word for path in files for word in ("-o", path)]
        result = fake_peer("--size", "1:8:+1", "--steps", "3", *outputs, plan=EVERYTHING)
        self.assertEqual(result.returncode, 1, result.stderr)  # a mismatch and an error
        document = strict(files[0].read_text())
        self.assertEqual([row["status"] for row in document["rows"]],
                         ["ok", "oom", "error", "unsupported", "mismatch", "oom", "unsupported", "ok"])
        ok, oom, error, unsupported, mismatch, predicted, never, last = document["rows"]
        self.assertEqual((ok["reason"], ok["fwd_n"], ok["kernel"]), (None, 3, "fake_kernel"))
        self.assertEqual(oom["reason"], "CUDA out of memory. Tried to allocate 8.00 GiB.")
        self.assertIsNotNone(oom["fwd_ms"])  # figures of phases that finished stay
        self.assertEqual(error["reason"], "ValueError: a plain mistake")
        self.assertEqual(unsupported["reason"], "no kernel for this")
        self.assertIsNone(mismatch["fwd_ms"])  # a wrong result shows no speed
        self.assertEqual(mismatch["fwd_n"], 3)
        self.assertIn("predicted peak 4.0 EiB", predicted["reason"])
        self.assertNotIn("fwd_ms", predicted)
        self.assertEqual(never["reason"], "the fake cannot")
        self.assertEqual(last["status"], "ok")
        self.assertEqual(document["summary"]["oom"], 2)
        self.assertEqual(document["libraries"]["torch"], "0.0.0+fake")
        self.assertEqual(document["device"]["threads"], 2)
        self.assertIn("2 of 8 rows without a result: 1 mismatch, 1 error; row 3: ValueError", result.stderr)
        self.assertEqual(result.stdout, files[3].read_text())
        lines = [strict(line) for line in files[1].read_text().splitlines()]
        self.assertEqual([line["type"] for line in lines], ["header"] + ["row"] * 8 + ["summary"])
        self.assertEqual(lines[1:-1], [{"type": "row", **row} for row in document["rows"]])
        with open(files[2], newline="") as file:
            self.assertEqual([row["status"] for row in csv.DictReader(file)],
                             [row["status"] for row in document["rows"]])
        if has_schema_python():
            self.assertEqual(schema_problems(*files), "")

    def test_exit_0_when_nothing_failed(self):
        result = fake_peer("--size", "1,2", "--steps", "1", plan={"2": "oom"})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_lost_device_ends_the_sweep(self):
        result = fake_peer("--size", "1,2,3", "--steps", "1", "--format", "json", plan={"2": "lost"})
        self.assertEqual(result.returncode, 1)
        rows = strict(result.stdout)["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "error", "not_run"])
        self.assertIn("the device was lost in row 2", rows[2]["reason"])

    def test_isolated_rows_cost_only_themselves(self):
        path = self.folder / "out.json"
        result = fake_peer("--size", "1:6:+1", "--steps", "2", "--isolate", "--row-timeout", "5", "-o", path,
                           plan={"2": "crash", "3": "lost", "4": "hang", "5": "oom"})
        self.assertEqual(result.returncode, 1, result.stderr)
        rows = strict(path.read_text())["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "crashed", "error", "timeout", "oom", "ok"])
        self.assertEqual(rows[1]["reason"], "its process was killed by SIGSEGV (segmentation fault)")
        self.assertEqual(rows[3]["reason"], "not finished after 5 s (--row-timeout)")
        self.assertEqual((rows[5]["fwd_n"], rows[5]["kernel"]), (2, "fake_kernel"))
        self.assertNotIn("fwd_samples_ms", rows[5])
        self.assertIn("--isolate", rows[5]["rerun"])
        if has_schema_python():
            self.assertEqual(schema_problems(path), "")

    def test_an_isolated_row_that_is_interrupted_ends_the_sweep(self):
        result = fake_peer("--size", "1,2,3", "--steps", "1", "--isolate", "--format", "json", plan={"2": "interrupt"})
        rows = strict(result.stdout)["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "interrupted", "not_run"])

    def test_interrupted_keeps_what_was_measured(self):
        path = self.folder / "out.json"
        result = fake_peer("--size", "1,2,3", "--steps", "1", "-o", path, plan={"2": "interrupt"})
        self.assertEqual(result.returncode, 130)
        rows = strict(path.read_text())["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "interrupted", "not_run"])
        self.assertEqual(rows[2]["reason"], "Ctrl-C came before it")
        if has_schema_python():
            self.assertEqual(schema_problems(path), "")

    def test_nothing_that_can_run_is_bad_usage(self):
        result = fake_peer("--size", "1", plan={"1": "never"})
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "fake_peer: nothing to measure: the fake cannot\n")

    def test_samples_only_when_asked(self):
        for arguments, there in ((["--samples"], True), ([], False)):
            result = fake_peer("--size", "1", "--steps", "4", "--format", "json", *arguments)
            row = strict(result.stdout)["rows"][0]
            self.assertEqual("fwd_samples_ms" in row, there)
            self.assertEqual(row["fwd_n"], 4)

    def test_columns(self):
        result = fake_peer("--size", "1", "--steps", "1", "--format", "csv", "--columns", "size,fwd_n")
        self.assertEqual(result.stdout, "size,fwd_n\n1,1\n")
        result = fake_peer("--size", "1", "--columns", "sizes")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--columns 'sizes': no such column", result.stderr)

    def test_resume_takes_over_what_has_a_result(self):
        path = self.folder / "first.json"
        first = fake_peer("--size", "1,2,3", "--steps", "2", "--samples", "-o", path, plan={"2": "oom", "3": "error"})
        self.assertEqual(first.returncode, 1)
        before = strict(path.read_text())["rows"]
        second = fake_peer("--size", "1,2,3,4", "--steps", "2", "--samples", "--resume", path, "-o", path)
        self.assertIn("2 of 4 rows taken over, 2 run", second.stderr)
        rows = strict(path.read_text())["rows"]
        self.assertEqual([row["status"] for row in rows], ["ok", "oom", "ok", "ok"])
        self.assertEqual(rows[:2], before[:2])
        other = fake_peer("--size", "1", "--steps", "3", "--resume", path)
        self.assertIn("0 of 1 rows taken over, all run: it was measured with steps 2, now 3", other.stderr)

    def test_files_that_cannot_be_written_or_read(self):
        (self.folder / "text.json").write_text("hello")
        for arguments, words in ((["-o", self.folder / "no/x.json"], ["--output", "cannot be written"]),
                                 (["-o", self.folder], ["--output", "unknown ending"]),
                                 (["--resume", self.folder / "none.json"], ["--resume", "cannot be read"]),
                                 (["--resume", self.folder / "text.json"], ["--resume"]),
                                 (["--against", self.folder / "text.json"], ["--against"])):
            with self.subTest(arguments=arguments):
                result = fake_peer("--size", "1", "--steps", "1", *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                errors = [line for line in result.stderr.splitlines() if "device cpu" not in line]
                self.assertEqual(len(errors), 1, errors)
                for word in words:
                    self.assertIn(word, errors[0])

    def test_files_are_whole_after_every_row(self):
        path = self.folder / "out.json"
        path.write_text("old")
        path.chmod(0o640)
        file = results.OutputFile(str(path))
        file.write("one")
        self.assertEqual(path.read_text(), "one")
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o640)
        self.assertEqual(os.listdir(self.folder), ["out.json"])

    def test_a_reader_that_leaves(self):
        command = f"'{sys.executable}' '{pathlib.Path(__file__).parent / 'fake_peer.py'}' --size 1,2,3 --steps 1 | true"
        environment = dict(os.environ, PYTHONPATH=str(pathlib.Path(__file__).parent / "fake_torch"))
        result = run("bash", "-c", f"set -o pipefail; {command}", env=environment)
        self.assertNotIn("Traceback", result.stderr)
        self.assertNotIn("Exception", result.stderr)

    def test_a_second_signal_ends_at_once(self):
        code = ("import os, signal, sys, time; sys.path.insert(0, sys.argv[1]); from warpmeter_peers import console\n"
                "interrupt = console.Interrupt(); interrupt.install()\n"
                "os.kill(os.getpid(), signal.SIGTERM); print(interrupt(), flush=True)\n"
                "os.kill(os.getpid(), signal.SIGINT); print('still here', flush=True)")
        result = run(sys.executable, "-c", code, PEERS)
        self.assertEqual((result.returncode, result.stdout), (130, "True\n"), result.stderr)

    def test_a_terminal_that_goes(self):
        """It sends SIGHUP more than once, and SIGTERM may follow; under nohup it is survived."""
        code = ("import os, signal, sys; sys.path.insert(0, sys.argv[1]); from warpmeter_peers import console\n"
                "if sys.argv[2:]: signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
                "interrupt = console.Interrupt(); interrupt.install()\n"
                "for number in (signal.SIGHUP, signal.SIGHUP): os.kill(os.getpid(), number)\n"
                "print(interrupt(), interrupt.cause, flush=True)\n"
                "os.kill(os.getpid(), signal.SIGTERM); print(interrupt.cause, flush=True)")
        gone = "SIGHUP (its terminal is gone)"
        self.assertEqual(run(sys.executable, "-c", code, PEERS).stdout, f"True {gone}\n{gone}\n")
        self.assertEqual(run(sys.executable, "-c", code, PEERS, "nohup").stdout, "False \nSIGTERM\n")

    def test_memory_limit(self):
        result = fake_peer("--size", "1", "--memory-limit", "500", "--format", "json")
        row = strict(result.stdout)["rows"][0]
        self.assertEqual((row["status"], row["reason"]), ("oom", "predicted peak 1000 B, free 500 B, limit 500 B"))

    def test_threads(self):
        document = json.loads(fake_peer("--size", "1", "--threads", "3", "--steps", "1", "--format", "json").stdout)
        self.assertEqual(document["device"]["threads"], 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
