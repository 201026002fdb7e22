#!/usr/bin/env python3
"""The scripts' reader of result files: whole, interrupted, truncated, damaged, hostile, and not ours."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path.insert(0, str(SOURCE / "scripts/lib"))
from warpmeter import fields, results  # noqa: E402

GOLDEN = SOURCE / "tests/reports/golden"


def document(rows=(), **changes):
    header = {
        "schema": "warpmeter/1",
        "tool": "attn_bench",
        "version": {"project": "0.1.0", "git_sha": "0123456789abcdef", "dirty": True, "build_type": "Release"},
        "argv": ["attn_bench"],
        "started_at": "2026-01-31T12:00:00Z",
        "device": {
            "name": "NVIDIA H200",
            "sm": 90,
            "memory_mib": 1,
            "uuid": "GPU-1",
            "ceilings": {"read_gbps": 4000.5, "copy_gbps": None},
        },
        "libraries": {},
        "settings": {},
        "row_keys": ["impl", "seq_len"],
        "rows": list(rows),
        "summary": {"rows": len(rows)},
    }
    header.update(changes)
    return {name: value for name, value in header.items() if value is not Ellipsis}


def row(impl="flash", seq_len=256, status="ok", **figures):
    return {
        "impl": impl,
        "seq_len": seq_len,
        **figures,
        "status": status,
        "reason": None if status == "ok" else "because",
        "rerun": "attn_bench --impl " + str(impl),
    }


def parse(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = results.parse(data, "some.json")
    assert len(found) == 1
    return found[0]


class Whole(unittest.TestCase):
    def test_json_and_json_lines_are_the_same(self):
        one, two = (results.load(str(GOLDEN / ("sample_samples." + ending))) for ending in ("json", "jsonl"))
        self.assertEqual(len(one.rows), 13)
        self.assertEqual(one.columns, two.columns)
        self.assertEqual(one.summary, two.summary)
        for mine, other in zip(one.rows, two.rows):
            for name in results.Row.__slots__:
                self.assertEqual(getattr(mine, name), getattr(other, name))

    def test_what_a_result_says(self):
        result = parse(
            document([row(fwd_ms=1.5, fwd_n=3, fwd_samples_ms=[1.4, 1.5, 2], kernel="flash_sm90", fwd_bound=None)])
        )
        self.assertEqual((result.tool, result.device_name, result.device_id), ("attn_bench", "NVIDIA H200", "GPU-1"))
        self.assertEqual(result.ceilings, {"read_gbps": 4000.5})
        self.assertEqual(result.git_sha, "0123456789+")
        self.assertEqual(result.notes, [])
        self.assertTrue(result.complete)
        self.assertTrue(result.is_gpu)
        only = result.rows[0]
        self.assertEqual(only.config, {"impl": "flash", "seq_len": 256})
        self.assertEqual(only.number("fwd_ms"), 1.5)
        self.assertIsNone(only.number("kernel"))
        self.assertIsNone(only.number("bwd_ms"))
        self.assertEqual(only.samples, {"fwd_samples_ms": [1.4, 1.5, 2.0]})
        self.assertEqual(only.get("kernel"), "flash_sm90")
        self.assertEqual(only.get("rerun"), "attn_bench --impl flash")
        self.assertEqual(result.columns, ["fwd_ms", "fwd_n", "kernel", "fwd_bound"])

    def test_keys(self):
        rows = parse(document([row(), row(seq_len=True), row(seq_len=1), row()])).rows
        self.assertEqual(rows[0].key(), rows[3].key())
        self.assertNotEqual(rows[1].key(), rows[2].key())
        self.assertEqual(rows[0].key(["impl"]), rows[1].key(["impl"]))

    def test_a_cpu_is_named_as_in_the_tables(self):
        result = parse(document([], device={"cpu": "Xeon", "cores": 16, "isa": "avx512"}))
        self.assertEqual(result.device_name, "Xeon (16 cores, avx512)")
        self.assertFalse(result.is_gpu)

    def test_stdin_and_several_results_in_one_stream(self):
        data = (GOLDEN / "sample.jsonl").read_bytes()
        self.assertEqual(len(results.parse(data * 2, "stdin")), 2)
        self.assertEqual(
            [len(result.rows) for result in results.parse((GOLDEN / "sample.json").read_bytes() * 3, "x")], [13, 13, 13]
        )
        program = (
            "import sys; sys.path.insert(0, {!r})\nfrom warpmeter import results\nresult = results.load('-')\n"
            "print(result.origin, len(result.rows))".format(str(SOURCE / "scripts/lib"))
        )
        done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True, timeout=600)
        self.assertEqual(done.stdout, b"stdin 13\n")


class BrokenOff(unittest.TestCase):
    def test_every_prefix_of_json_lines(self):
        data = (GOLDEN / "sample.jsonl").read_bytes()
        schema_end = data.index(b'"warpmeter/1"') + len('"warpmeter/1"')
        for size in range(0, len(data), 7):
            if size < schema_end:
                with self.assertRaises(results.ReadError):
                    results.parse(data[:size], "x")
                continue
            result = parse(data[:size])
            whole_rows = max(0, data[:size].count(b"\n") - 1)
            self.assertIn(len(result.rows), (whole_rows, whole_rows + 1))
            self.assertFalse(result.complete)
            self.assertTrue(result.notes)

    def test_every_prefix_of_json(self):
        data = (GOLDEN / "sample.json").read_bytes()
        schema_end = data.index(b'"warpmeter/1"') + len('"warpmeter/1"')
        row_ends = [match.end() for match in re.finditer(rb'^    \{"impl".*\}', data, re.MULTILINE)]
        self.assertEqual(len(row_ends), 13)
        for size in range(0, len(data) - 2, 7):
            if size < schema_end:
                with self.assertRaises(results.ReadError):
                    results.parse(data[:size], "x")
                continue
            result = parse(data[:size])
            self.assertFalse(result.complete)
            self.assertIn("breaks off", " ".join(result.notes))
            self.assertEqual(len(result.rows), sum(end <= size for end in row_ends))

    def test_a_damaged_file_gives_what_is_before_or_around_the_damage(self):
        lines = (GOLDEN / "sample.jsonl").read_bytes().split(b"\n")
        lines[3] = lines[3][:40] + b"\x00\x00" + lines[3][40:]
        result = parse(b"\n".join(lines))
        self.assertEqual(len(result.rows), 12)
        self.assertIn("A line that cannot be read was left out.", result.notes)
        text = (GOLDEN / "sample.json").read_text().replace('"seq_len": 16384', '"seq_len": 16384;', 1)
        result = parse(text.encode())
        self.assertEqual(len(result.rows), 2)
        self.assertRegex(" ".join(result.notes), r"damaged at line \d+, column \d+")

    def test_rows_twice_in_one_document(self):
        text = (GOLDEN / "sample.json").read_text()
        for first in ("3", "[]", '[{"impl": "flash"}]'):
            with self.subTest(first=first):
                result = parse(text.replace('"rows"', f'"rows": {first}, "rows"', 1).encode())
                self.assertFalse(result.complete)
                self.assertIn("a key comes twice", " ".join(result.notes))

    def test_a_run_that_was_stopped_or_killed(self):
        stopped = parse(document([row(), row(seq_len=512, status="interrupted"), row(seq_len=1024, status="not_run")]))
        self.assertFalse(stopped.complete)
        self.assertEqual(stopped.notes, ["The run was stopped early: 2 configurations not measured."])
        killed = parse(document([row()], summary={}))
        self.assertFalse(killed.complete)
        self.assertEqual(
            killed.notes, ["The run did not finish: the file has no summary, only the 1 row measured until then."]
        )

    def test_an_older_file_is_read_with_what_it_has(self):
        result = parse(document([row(fwd_ms=1.0)], libraries=..., settings=..., row_keys=..., device=...))
        self.assertEqual(result.rows[0].config, {"impl": "flash", "seq_len": 256})
        self.assertEqual(result.rows[0].number("fwd_ms"), 1.0)
        self.assertIn("The header has no device, libraries, settings, row_keys.", result.notes)
        self.assertEqual(result.device_name, "unknown device")


class Hostile(unittest.TestCase):
    def test_wrong_types_and_figures_that_cannot_be(self):
        raw = row(fwd_ms=-1, bwd_ms="fast", fwd_mean_ms=True, fwd_n=[1], fwd_p95_ms={"a": 1}, fwd_samples_ms=[1, "x"])
        text = json.dumps(document([raw])).replace(
            '"fwd_n"', '"fwd_tflops": 1e999, "fwd_gbps": NaN, "fwd_min_ms": %s, "fwd_n"' % ("9" * 5000)
        )
        result = parse(text.encode())
        only = result.rows[0]
        for name in ("fwd_ms", "bwd_ms", "fwd_mean_ms", "fwd_p95_ms", "fwd_tflops", "fwd_gbps", "fwd_min_ms"):
            self.assertIsNone(only.number(name), name)
        self.assertEqual(only.samples, {})
        self.assertIn("'fwd_ms' is negative: taken as missing.", result.notes)
        self.assertIn("'bwd_ms' is no number: taken as missing.", result.notes)

    def test_a_header_of_wrong_types(self):
        for wrong in (5, "x", [], {}, None, True, [[]], {"a": {"b": {"c": {"d": {}}}}}):
            names = (
                "tool",
                "version",
                "argv",
                "started_at",
                "device",
                "libraries",
                "settings",
                "row_keys",
                "rows",
                "summary",
            )
            result = parse(dict(document(), **dict.fromkeys(names, wrong)))
            self.assertEqual(result.rows, [])
            self.assertIsInstance(result.device_name, str)
            self.assertIsInstance(result.ceilings, dict)
            self.assertIsInstance(result.git_sha, str)

    def test_rows_of_wrong_types(self):
        result = parse(
            document([5, None, [], "row", {}, {"status": 7, "reason": [], "rerun": {}}, row(impl={}, seq_len=[1])])
        )
        self.assertEqual([each.status for each in result.rows], ["unknown", "unknown", "ok"])
        self.assertIn("A row that is no object was left out (4 times).", result.notes)
        self.assertEqual(result.rows[2].config, {"impl": None, "seq_len": None})
        self.assertEqual(len({each.key() for each in result.rows}), 2)

    def test_text_cannot_leave_its_line(self):
        result = parse(document([row(impl="a\nb\x1b[31m\u202e\x00")], tool="\ud800\u2028x"))
        self.assertEqual(result.rows[0].config["impl"], "a\ufffdb\ufffd[31m\ufffd\ufffd")
        self.assertEqual(result.tool, "\ufffd\ufffdx")
        self.assertLess(len(parse(document([row(impl="x" * 10**6)])).rows[0].config["impl"]), 5000)

    def test_names_of_fields(self):
        raw = row()
        raw.update({"<script>": 1, "": 2, "a b": 3, "x" * 1000: 4})
        result = parse(document([raw]))
        self.assertEqual(result.columns, [])
        self.assertIn("A field whose name is none of ours was left out (4 times).", result.notes)
        many = row()
        many.update({f"figure_{number}_ms": 1.0 for number in range(1000)})
        self.assertEqual(len(parse(document([many])).columns), results.MAX_COLUMNS)

    def test_not_utf8(self):
        data = json.dumps(document([row(impl="flash")])).encode().replace(b"flash", b"fl\xffsh")
        result = parse(data)
        self.assertEqual(result.rows[0].config["impl"], "fl\ufffdsh")
        self.assertIn("The file is not all UTF-8: what is not reads as \ufffd.", result.notes)
        self.assertEqual(parse("\ufeff".encode() + json.dumps(document([row()])).encode()).notes, [])

    def test_repeated_rows_are_kept_and_said(self):
        result = parse(document([row(), row(), row(), row(seq_len=2)]))
        self.assertEqual(len(result.rows), 4)
        self.assertIn("2 rows repeat an earlier one's configuration.", result.notes)


class Refused(unittest.TestCase):
    def refused(self, data, *words):
        with self.assertRaises(results.ReadError) as caught:
            results.parse(data, "some.json")
        text = str(caught.exception)
        self.assertTrue(text.startswith("some.json: "), text)
        self.assertEqual(len(text.splitlines()), 1)
        self.assertLess(len(text), 300)
        for word in words:
            self.assertIn(word, text)

    def test_what_is_not_ours(self):
        for data, word in (
            (b"", "empty"),
            (b" \n\t", "empty"),
            (b"{}", "schema"),
            (b"[1, 2]", "line 1"),
            (b"5", "line 1"),
            (b"null", "line 1"),
            (b'{"schema": 5}', "schema"),
            (b'{"schema": "nsys/1"}', "nsys/1"),
            (b'{"schema": "warpmeter/2", "type": "header"}\n', "warpmeter/2"),
            (b"\x89PNG\r\n\x1a\n\x00", "line 1"),
            (b"| seq_len |\n|--|\n", "--format json"),
            (b"impl,seq_len\nflash,1\n", "--format json"),
            (b'{"type": "row", "impl": "flash"}\n', "schema"),
            (b'{"schema', "line 1"),
            (b'{"schema": "' + b"x" * 10**6, "line 1"),
            (b'{"a": 1, "a": 2}', "schema"),
        ):
            with self.subTest(data=data[:40]):
                self.refused(data, word)

    def test_deep_nesting(self):
        for opening in (b"[", b'{"a":'):
            self.refused(opening * 200000, "line 1")
            self.refused(b'{"schema": "x", "a": ' + opening * 200000, "schema")
        self.assertIn(
            "nested too deeply", " ".join(parse(b'{"schema": "warpmeter/1", "rows": [' + b"[" * 200000).notes)
        )

    def test_more_after_the_result(self):
        self.refused(json.dumps(document([])).encode() + b" junk", "more after")

    def test_files_that_cannot_be_read(self):
        for path in ("/nonexistent/file.json", "/", "a\0b", "x" * 5000):
            with self.assertRaises(results.ReadError) as caught:
                results.load(path)
            self.assertEqual(len(str(caught.exception).splitlines()), 1)

    def test_load_wants_one_result(self):
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            file.write((GOLDEN / "sample.jsonl").read_bytes() * 2)
            file.flush()
            self.assertEqual(len(results.load_all(file.name)), 2)
            with self.assertRaises(results.ReadError):
                results.load(file.name)


class Names(unittest.TestCase):
    def test_fields(self):
        for name, kind, unit, statistic, phase, what in (
            ("fwd_ms", "time", "ms", None, "fwd", ""),
            ("fwd_p95_ms", "time", "ms", "p95", "fwd", ""),
            ("median_ms", "time", "ms", None, "", ""),
            ("mean_ms", "time", "ms", "mean", "", ""),
            ("fwd_peak_mem_mib", "bytes", "mib", None, "fwd", "peak_mem"),
            ("bwd_mem_before_backward_mib", "bytes", "mib", None, "bwd", "mem_before_backward"),
            ("train_step_peak_mem_mib", "bytes", "mib", None, "train_step", "peak_mem"),
            ("fwd_bytes", "traffic", "bytes", None, "fwd", ""),
            ("algo_GiBps", "bandwidth", "GiBps", None, "algo", ""),
            ("fwd_bound_share", "share", "share", None, "fwd", "bound"),
            ("fwd_plain_ms", "time", "ms", "plain", "fwd", ""),
            ("fwd_plain_share", "share", "share", None, "fwd", "plain"),
            ("tokens_per_s", "rate", "per_s", None, "tokens", ""),
            ("max_rel_error", "error", "error", None, "max", "rel"),
            ("fwd_first_ms", "time", "ms", "first", "fwd", ""),
            ("decode_alone_noise", "noise", "noise", None, "decode_alone", ""),
            ("noise", "noise", "noise", None, "", ""),
            ("train_step_bound_share", "share", "share", None, "train_step", "bound"),
            ("train_step_mfu", "share", "mfu", None, "train_step", ""),
            ("bound_share", "share", "share", None, "", "bound"),
            ("train_step_clock_mhz", "clock", "mhz", None, "train_step", "clock"),
            ("kernel", None, None, None, "kernel", ""),
        ):
            with self.subTest(name=name):
                self.assertEqual(fields.parse(name), fields.Field(name, unit, kind, statistic, phase, what))


if __name__ == "__main__":
    unittest.main(verbosity=1)
