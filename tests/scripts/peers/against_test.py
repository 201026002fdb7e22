#!/usr/bin/env python3
"""Ratios of two files' rows: which rows belong together, what is divided by what, and how it is shown."""

import json
import os
import pathlib
import tempfile
import unittest

from common import HERE, fake_peer
from warpmeter_peers import against, results, sweep
from warpmeter_peers.grammar import UsageError
from warpmeter_peers.settings import Settings

KEYS = ["impl", "dtype", "pass", "batch", "num_heads", "num_kv_heads", "d_model", "head_dim", "seq_len", "kv_len",
        "causal", "deterministic"]
GOLDEN = HERE / "golden"


def row(impl, seq_len, fwd_ms=None, bwd_ms=None, status="ok", **values):
    fields = {"impl": impl, "dtype": "bf16", "pass": "fwd,bwd", "batch": 8, "num_heads": 1, "num_kv_heads": 1,
              "d_model": 64, "head_dim": 64, "seq_len": seq_len, "kv_len": seq_len, "causal": True,
              "deterministic": False, "fwd_ms": fwd_ms, "bwd_ms": bwd_ms, "status": status,
              "reason": None if status == "ok" else "because", "rerun": "x"}
    fields.update(values)
    return fields


OURS = [row("naive", 256, 1.0, 2.0), row("naive", 1024, 10.0, 20.0), row("naive", 4096, status="oom"),
        row("flash", 256, 0.5, 1.0), row("flash", 1024, 2.0, 8.0), row("flash", 4096, 30.0, 90.0)]
THEIRS = [row("pytorch_eager", 256, 2.0, 2.0), row("pytorch_eager", 1024, 80.0, 20.0),
          row("pytorch_eager", 4096, status="oom"), row("pytorch_sdpa_flash", 256, 1.0, 1.5),
          row("pytorch_sdpa_flash", 1024, 4.0, 6.0), row("pytorch_sdpa_flash", 4096, 15.0, None, status="mismatch"),
          row("pytorch_sdpa_flash", 512, 1.0, 1.0)]


def golden(test, name, text):
    """WARPMETER_UPDATE_GOLDEN=1 writes the file anew."""
    path = GOLDEN / name
    if os.environ.get("WARPMETER_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    test.assertEqual(text, path.read_text(encoding="utf-8"))


class Ratios(unittest.TestCase):
    def test_golden(self):
        golden(self, "ratios.md", against.ratio_text([(OURS, THEIRS)], KEYS))

    def test_golden_of_chosen_pairs_and_two_rounds(self):
        slower = [{**found, "fwd_ms": found["fwd_ms"] and 2 * found["fwd_ms"]} for found in THEIRS]
        golden(self, "ratios_two_rounds.md",
               against.ratio_text([(OURS, THEIRS), (OURS, slower)], KEYS, [("flash", "pytorch_sdpa_flash")]))

    def test_figures(self):
        pair = against.Pair("naive", "pytorch_eager", [(OURS, THEIRS)], KEYS)
        self.assertEqual([dict(problem)["seq_len"] for problem in pair.problems], [256, 1024])
        self.assertEqual(pair.ratios("fwd"), [2.0, 8.0])
        self.assertEqual(pair.ratios("bwd"), [1.0, 1.0])
        self.assertAlmostEqual(against.geometric_mean([2.0, 8.0]), 4.0)

    def test_a_time_is_the_median_of_the_rounds(self):
        rounds = [([row("a", 1, 1.0)], [row("b", 1, 4.0)]), ([row("a", 1, 3.0)], [row("b", 1, 8.0)])]
        pair = against.Pair("a", "b", rounds, KEYS)
        problem = pair.problems[0]
        self.assertEqual((pair.time("fwd", "ours", problem), pair.time("fwd", "theirs", problem)), (2.0, 6.0))
        self.assertEqual(pair.ratio("fwd", problem), 3.0)
        self.assertEqual([pair.ratio("fwd", problem, index) for index in (0, 1)], [4.0, 8.0 / 3.0])

    def test_rounds_that_disagree_are_said(self):
        def rounds(*theirs):
            return [([row("a", 1, 1.0, 1.0)], [row("b", 1, ms, 1.0)]) for ms in theirs]

        self.assertNotIn("differ", against.ratio_text(rounds(1.0, 1.09), KEYS))
        self.assertIn("1 of 2 ratios differ by more than 10% between the rounds",
                      against.ratio_text(rounds(1.0, 1.11), KEYS))
        self.assertNotIn("differ", against.ratio_text(rounds(1.0), KEYS))

    def test_a_round_without_a_time(self):
        rounds = [([row("a", 1, 1.0)], [row("b", 1, status="oom")]), ([row("a", 1, 3.0)], [row("b", 1, 8.0)])]
        pair = against.Pair("a", "b", rounds, KEYS)
        problem = pair.problems[0]
        self.assertIsNone(pair.ratio("fwd", problem, 0))
        self.assertEqual(pair.ratio("fwd", problem), 4.0)

    def test_rows_of_other_configurations_are_not_compared(self):
        for other in ({"batch": 4}, {"causal": False}, {"dtype": "fp16"}, {"pass": "fwd"}, {"kv_len": 7}):
            text = against.ratio_text([([row("a", 1, 1.0, 1.0)], [row("b", 1, 1.0, 1.0, **other)])], KEYS)
            self.assertIn("no ratios", text, other)

    def test_wrong_results_and_zeros_have_no_ratio(self):
        for found in (row("b", 1, 1.0, status="mismatch"), row("b", 1, 0.0), row("b", 1, None), row("b", 1, "1")):
            self.assertIn("no ratios", against.ratio_text([([row("a", 1, 1.0)], [found])], KEYS))

    def test_columns_tell_rows_apart(self):
        rows = [[row(impl, n, 1.0, 1.0, causal=causal, dtype=dtype) for n in (1, 2) for causal in (True, False)
                 for dtype in ("fp32", "bf16")] for impl in ("a", "b")]
        text = against.ratio_text([tuple(rows)], KEYS)
        self.assertIn("| dtype | seq_len | causal |", text)
        self.assertIn("### b / a (batch 8, num_heads 1, head_dim 64)", text)

    def test_devices(self):
        self.assertEqual(against.device_difference({"name": "H200", "uuid": "a"}, {"name": "H200", "uuid": "a"}), "")
        self.assertEqual(against.device_difference({"name": "H200", "uuid": "a"}, {"name": "H200", "uuid": "b"}),
                         "uuid a, now b")
        self.assertEqual(against.device_difference({"name": "H200"}, {"cpu": "EPYC", "cores": 2}),
                         "name H200, now none")

    def test_flushes(self):
        gpu, cpu = {"name": "H200"}, {"cpu": "EPYC", "cores": 2}
        cold, clean, hot = {"cache": "cold"}, {"cache": "cold", "cache_flush": "clean"}, {"cache": "hot"}

        def difference(then, now, device):
            return against.flush_difference(*({"device": device, "settings": each} for each in (then, now)))

        self.assertEqual(difference(cold, clean, gpu), "dirty, now clean")
        self.assertEqual(difference(clean, cold, gpu), "clean, now dirty")
        for then, now in ((cold, cold), (clean, clean), (hot, clean), (cold, {**hot, "cache_flush": None})):
            self.assertEqual(difference(then, now, gpu), "")
        self.assertEqual(difference(cold, clean, cpu), "")


class Option(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.path = pathlib.Path(self._folder.name) / "ours.json"
        fake_peer("--size", "1,2", "--steps", "2", "-o", self.path)
        document = json.loads(self.path.read_text())
        for found in document["rows"]:
            found["impl"], found["fwd_ms"] = "ours", 1e-9
        self.path.write_text(json.dumps(document))

    def test_after_the_tables_in_markdown(self):
        result = fake_peer("--size", "1,2,3", "--steps", "2", "--against", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        tables, _, ratios = result.stdout.partition("## Ratios")
        self.assertIn("Measured by fake_peer", tables)
        self.assertIn("### fake / ours", ratios)

    def test_on_stderr_beside_data(self):
        result = fake_peer("--size", "1", "--steps", "2", "--against", self.path, "--format", "json")
        self.assertEqual(json.loads(result.stdout)["rows"][0]["status"], "ok")
        self.assertIn("### fake / ours", result.stderr)

    def test_another_device_is_refused_before_anything_is_measured(self):
        document = json.loads(self.path.read_text())
        document["device"]["cpu"] = "another"
        self.path.write_text(json.dumps(document))
        result = fake_peer("--size", "1", "--against", self.path)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("it was measured on another device (cpu another, now", result.stderr)

    def test_another_flush_is_refused(self):
        """A GPU's, which a fake peer on the CPU does not have."""
        document = json.loads(self.path.read_text())
        gpu = {"name": "H200", "sm": 90, "memory_mib": 1}
        document.update(device=gpu, settings={"cache": "cold"})
        self.path.write_text(json.dumps(document))
        settings = Settings(device="cuda:0", cache="cold").describe()
        now = results.Document("fake", {}, [], "", gpu, {}, settings, ["size"])
        with self.assertRaises(UsageError) as refusal:
            sweep._read_against(Settings(against=str(self.path)), now)
        self.assertIn("the flush before its samples left the L2 dirty, now clean", str(refusal.exception))
        document["settings"]["cache_flush"] = "clean"
        self.path.write_text(json.dumps(document))
        self.assertEqual(len(sweep._read_against(Settings(against=str(self.path)), now)["rows"]), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
