#!/usr/bin/env python3
"""side_by_side with stand-ins for attn_bench and its peer: order, options, rounds, ratios, what goes wrong."""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

from common import HERE, SIDE_BY_SIDE, run

FILES = ["ours_1.json", "ours_2.json", "pytorch_1.json", "pytorch_2.json"]


class SideBySide(unittest.TestCase):
    def setUp(self):
        self._place = tempfile.TemporaryDirectory()
        self.addCleanup(self._place.cleanup)
        self.place = pathlib.Path(self._place.name)
        self.folder, self.log = self.place / "results", self.place / "log"
        for name in ("ours", "peer"):
            shutil.copy(HERE / "fake_measurer.py", self.place / name)

    def side_by_side(self, *arguments, folder=True, **environment):
        options = ["--tool", self.place / "ours", "--peer", self.place / "peer"]
        options += ["--folder", self.folder] if folder else []
        values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in environment.items()}
        return run(sys.executable, SIDE_BY_SIDE, *options, *arguments, cwd=self.place,
                   env={**os.environ, "FAKE_LOG": str(self.log), **values})

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def test_both_orders_and_who_gets_which_option(self):
        result = self.side_by_side("--impl", "naive,flash", "--peer-impl", "eager", "--preset", "notes", "--threads",
                                   "3", "--max-time=0.5")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([name for name, _, _ in self.calls()], ["ours", "peer", "peer", "ours"])
        for (name, arguments, threads), path in zip(self.calls(), (FILES[0], FILES[2], FILES[3], FILES[1])):
            self.assertEqual(arguments, ["--impl", "naive,flash" if name == "ours" else "eager", "--preset", "notes",
                                         "--max-time=0.5", "-o", str(self.folder / path)])
            self.assertEqual(threads, "3")
        self.assertEqual(sorted(os.listdir(self.folder)), FILES + ["ratios.md"])
        self.assertEqual(result.stdout, (self.folder / "ratios.md").read_text())
        self.assertNotIn("a table that nobody wants", result.stdout)
        self.assertIn("[4/4]", result.stderr)

    def test_ratios_of_both_rounds(self):
        result = self.side_by_side("--impl", "a", "--peer-impl", "b",
                                   FAKE_MS={"a": [1.0, 0, 0, 3.0], "b": [0, 2.0, 12.0, 0]})
        # Round 1 is calls 1 and 2, round 2 calls 4 and 3; times are medians of both: 2 and 7.
        line = next(line for line in result.stdout.splitlines() if line.startswith("|      64 |"))
        self.assertEqual(line.replace("|", " ").split(), ["64", "2", "7", "3.50x", "2.00x", "4.00x"])

    def test_as_many_of_each_are_pairs(self):
        titles = self.titles("--impl", "a,b", "--peer-impl", "x,y")
        self.assertEqual(titles, ["x / a", "y / b"])
        shutil.rmtree(self.folder)
        self.log.unlink()
        self.assertEqual(self.titles("--impl", "a,b", "--peer-impl", "x"), ["x / a", "x / b"])
        shutil.rmtree(self.folder)
        self.log.unlink()
        self.assertEqual(self.titles(), ["one / one", "two / two"])  # both sides' defaults

    def titles(self, *arguments):
        lines = self.side_by_side(*arguments).stdout.splitlines()
        return [line[4:].partition(" (")[0] for line in lines if line.startswith("### ") and " / " in line]

    def test_show_measures_nothing(self):
        first = self.side_by_side("--impl", "a", "--peer-impl", "b")
        again = self.side_by_side("--show", "--impl", "a", "--peer-impl", "b")
        self.assertEqual((again.returncode, again.stdout), (0, first.stdout))
        self.assertEqual(len(self.calls()), 4)

    def test_a_folder_of_its_own(self):
        result = self.side_by_side(folder=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        made = [path.name for path in self.place.iterdir() if path.is_dir()]
        self.assertEqual(len(made), 1)
        self.assertRegex(made[0], r"^side_by_side_\d{8}T\d{6}Z$")

    def test_results_are_not_overwritten(self):
        self.side_by_side()
        result = self.side_by_side()
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("ours_1.json", result.stderr)
        self.assertEqual(len(self.calls()), 4)

    def test_bad_usage_of_one_side_ends_it_there(self):
        result = self.side_by_side("--seq-len", "x", FAKE_EXIT={"1": 2})
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("--seq-len 'x'", result.stderr)
        self.assertEqual(len(self.calls()), 1)
        self.assertFalse(self.folder.exists())

    def test_missing_torch_comes_through(self):
        self.assertEqual(self.side_by_side(FAKE_EXIT={"2": 3}).returncode, 3)

    def test_rows_without_a_result_are_exit_1_and_still_compared(self):
        result = self.side_by_side("--impl", "a", "--peer-impl", "b", FAKE_EXIT={"2": 1})
        self.assertEqual(result.returncode, 1)
        self.assertIn("### b / a", result.stdout)
        self.assertEqual(len(self.calls()), 4)

    def test_a_crash_is_said_and_the_rest_goes_on(self):
        result = self.side_by_side("--impl", "a", "--peer-impl", "b", FAKE_EXIT={"3": -9})
        self.assertEqual(result.returncode, 1)
        self.assertIn("was ended by signal 9", result.stderr)
        self.assertEqual(len(self.calls()), 4)

    def test_a_missing_side_leaves_its_round_out(self):
        self.side_by_side("--impl", "a", "--peer-impl", "b", FAKE_MS={"a": [1.0, 0, 0, 3.0], "b": [0, 2.0, 12.0, 0]})
        (self.folder / "pytorch_2.json").unlink()
        result = self.side_by_side("--show", "--impl", "a", "--peer-impl", "b")
        self.assertEqual(result.returncode, 0)
        self.assertIn("round 2 is left out", result.stderr)
        line = next(line for line in result.stdout.splitlines() if line.startswith("|      64 |"))
        self.assertEqual(line.replace("|", " ").split(), ["64", "1", "2", "2.00x"])

    def test_two_devices_are_refused(self):
        result = self.side_by_side(FAKE_CPU_3="another")
        self.assertEqual(result.returncode, 2)
        self.assertIn("pytorch_2.json is of another device", result.stderr)

    def test_two_flushes_are_refused(self):
        cold, clean = {"cache": "cold"}, {"cache": "cold", "cache_flush": "clean"}
        self.assertEqual(self.side_by_side("--impl", "a", "--peer-impl", "b", FAKE_GPU=[clean] * 4).returncode, 0)
        shutil.rmtree(self.folder)
        self.log.unlink()
        result = self.side_by_side(FAKE_GPU=[cold, clean, clean, cold])
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("pytorch_1.json was measured behind another flush (it left the L2 dirty, now clean)",
                      result.stderr)

    def test_usage(self):
        for arguments, words in ((["-o", "x.json"], ["-o", "--folder"]), (["--format", "json"], ["--format"]),
                                 (["--output=x.json"], ["--output"]), (["--threads", "0"], ["--threads"]),
                                 (["--threads", "two"], ["--threads"]), (["--impl"], ["--impl"]),
                                 (["--show", "--steps", "3"], ["--show", "--steps"])):
            with self.subTest(arguments=arguments):
                result = self.side_by_side(*arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)
                for word in words:
                    self.assertIn(word, result.stderr)
        self.assertFalse(self.log.exists())
        result = self.side_by_side("--show", folder=False)
        self.assertEqual(result.returncode, 2)
        result = self.side_by_side("--show")
        self.assertEqual(result.returncode, 2)

    def test_a_mode_that_no_peer_measures(self):
        """Said before attn_bench has measured for nothing."""
        result = run(sys.executable, SIDE_BY_SIDE, "--tool", self.place / "ours", "--folder", self.folder, "--mode",
                     "mixed")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))
        self.assertIn("--mode 'mixed': no peer measures it; accepted: train, decode, prefill, or --peer", result.stderr)
        self.assertFalse(self.folder.exists())
        result = self.side_by_side("--mode", "mixed", "--impl", "a", "--peer-impl", "b")  # a peer of one's own
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_peer_of_each_mode(self):
        sys.path.insert(0, str(SIDE_BY_SIDE.parent))
        from warpmeter_peers import side_by_side

        for mode, peer, rest in (([], "pytorch_attention", []), (["--mode", "train"], "pytorch_attention", []),
                                 (["--mode=train"], "pytorch_attention", []),
                                 (["--mode", "decode"], "pytorch_serving", ["--mode", "decode"])):
            options, given = side_by_side._parse([*mode, "--steps", "3"])
            commands = side_by_side._commands(options, given)
            self.assertEqual(commands["ours"][2:], [*mode, "--steps", "3"])
            self.assertEqual(pathlib.Path(commands["pytorch"][1]).name, peer)
            self.assertEqual(commands["pytorch"][2:], [*rest, "--steps", "3"])

    def test_a_program_that_is_not_there(self):
        result = run(sys.executable, SIDE_BY_SIDE, "--tool", self.place / "none", "--folder", self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot be run", result.stderr)

    def test_help(self):
        result = run(SIDE_BY_SIDE, "--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("--peer-impl", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
