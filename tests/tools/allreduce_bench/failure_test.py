#!/usr/bin/env python3
"""Ranks that die, stop or are interrupted in the middle of a sweep: what the tool says, keeps and leaves behind."""
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

from common import HANG, TOOL, alive, children, document, ranks_of, shared_segments, wait_until

#: Rounds of killing a rank at a random moment, for each backend.
ROUNDS = int(os.environ.get("WARPMETER_KILLS", "5"))
BACKENDS = os.environ.get("WARPMETER_BACKENDS", "shm").split(",")


class Sweep:
    """A running sweep of many rows with a JSON-lines file.

    Its --timeout is longer than a test waits for it: a sweep that ends has not waited for the timeout."""

    def __init__(self, folder, *options, timeout=2 * HANG):
        self.file = pathlib.Path(folder, "rows.jsonl")
        self.file.unlink(missing_ok=True)
        self.segments = shared_segments()
        self.process = subprocess.Popen(
            [TOOL, "--device", "cpu", "--sizes", "8:256KiB:x2,1MiB:4MiB:+64KiB", "--steps", "20", "--warmup", "1",
             "--timeout", str(timeout), "-o", str(self.file), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def rows(self):
        if not self.file.exists():
            return []
        text = self.file.read_text()
        lines = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]  # one may be half written
        return [line for line in lines if line["type"] == "row"]

    def has_rows(self):
        return self.file.exists() and self.file.read_text().count("\n") > 1  # the first line is the header

    def ranks(self, count):
        """The ranks' processes, once they are there."""
        def started():
            if self.process.poll() is not None:
                raise AssertionError(f"ended too early: {self.process.stderr.read()}")
            ranks = ranks_of(self.process.pid)
            return ranks if len(ranks) == count else None
        return wait_until(started)

    def end(self):
        stderr = self.process.communicate(timeout=HANG)[1]
        return self.process.returncode, stderr


class DyingRanks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def nothing_is_left(self, sweep, processes):
        wait_until(lambda: not any(alive(p) for p in processes))
        # Other programs' segments come and go; what a rank has left behind stays.
        wait_until(lambda: not shared_segments() - sweep.segments)

    def kill_one(self, backend, world, generator, after_a_row):
        sweep = Sweep(self.folder.name, "--backend", backend, "--world-size", str(world))
        ranks = sweep.ranks(world)
        if after_a_row:
            wait_until(sweep.has_rows)
        everybody = children(sweep.process.pid)
        time.sleep(generator.uniform(0, 0.5 if after_a_row else 1.0))
        victim = generator.randrange(world)
        if sweep.process.poll() is not None:
            self.fail("the sweep was over before a rank was killed")
        os.kill(ranks[victim], signal.SIGKILL)
        status, stderr = sweep.end()
        self.assertEqual(status, 1, stderr)
        rows = sweep.rows()
        statuses = [row["status"] for row in rows]
        lost = statuses.index("crashed") if "crashed" in statuses else None
        if lost is None:  # it had not formed its group yet: that row is lost, the next ones start ranks anew and run
            self.assertFalse(after_a_row)
            lost = 0
            self.assertEqual(statuses[0], "error")
            self.assertIn(set(statuses[1:]), ({"ok"}, {"error"}))
        else:
            self.assertLessEqual(set(statuses[lost + 1:]), {"not_run", "error"})
        self.assertEqual(statuses[:lost], ["ok"] * lost)
        self.assertRegex(rows[lost]["reason"], rf"rank {victim} .*(signal 9|is gone)", stderr)
        for row in rows[:lost]:
            self.assertGreater(row["median_ms"], 0)
        self.nothing_is_left(sweep, everybody)
        return lost

    def test_kill_9_at_random_moments(self):
        seed = random.randrange(1 << 32)
        generator = random.Random(seed)
        for backend in BACKENDS:
            kept = 0
            for number in range(ROUNDS):
                with self.subTest(backend=backend, seed=seed, round=number):
                    kept += self.kill_one(backend, generator.choice((2, 3)), generator, after_a_row=number % 2 == 0)
            self.assertGreater(kept, 0, "no round got as far as its first row")
            # And the next run is as if nothing had been.
            doc, result = document("--device", "cpu", "--backend", backend, "--sizes", "1MiB", "--steps", "2")
            self.assertEqual([row["status"] for row in doc["rows"]], ["ok"], result.stderr)

    def test_a_stopped_rank_is_named_after_the_timeout(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                sweep = Sweep(self.folder.name, "--backend", backend, "--world-size", "3", timeout=5)
                ranks = sweep.ranks(3)
                everybody = children(sweep.process.pid)
                wait_until(lambda sweep=sweep: len(sweep.rows()) > 2)
                self.assertEqual({row["status"] for row in sweep.rows()}, {"ok"}, "late before it was stopped")
                begin = time.monotonic()
                os.kill(ranks[1], signal.SIGSTOP)
                status, stderr = sweep.end()
                self.assertGreater(time.monotonic() - begin, 1)  # a rank has half of the timeout to answer, and more
                self.assertEqual(status, 1, stderr)
                late = [row for row in sweep.rows() if row["status"] == "timeout"]
                self.assertEqual(len(late), 1, stderr)
                self.assertRegex(late[0]["reason"], r"rank 1\b")
                self.assertRegex(late[0]["reason"], r"all_reduce sum of \d+ fp32")
                self.assertNotRegex(late[0]["reason"], r"ranks? [02]\b.* not")
                self.nothing_is_left(sweep, everybody)

    def test_ctrl_c_keeps_the_rows(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                sweep = Sweep(self.folder.name, "--backend", backend, "--world-size", "2")
                sweep.ranks(2)
                everybody = children(sweep.process.pid)
                wait_until(lambda sweep=sweep: len(sweep.rows()) > 2)
                sweep.process.send_signal(signal.SIGINT)
                status, stderr = sweep.end()
                self.assertEqual(status, 130, stderr)
                statuses = [row["status"] for row in sweep.rows()]
                self.assertGreaterEqual(statuses.count("ok"), 3)
                self.assertEqual(set(statuses) - {"ok", "interrupted", "not_run"}, set())
                self.nothing_is_left(sweep, everybody)

    def test_ctrl_c_at_random_moments(self):
        seed = random.randrange(1 << 32)
        generator = random.Random(seed)
        for backend in BACKENDS:
            for number in range(ROUNDS if ROUNDS > 5 else 1):  # the test above takes the quick suite's time
                with self.subTest(backend=backend, seed=seed, round=number):
                    world = generator.choice((2, 3))
                    sweep = Sweep(self.folder.name, "--backend", backend, "--world-size", str(world))
                    sweep.ranks(world)
                    everybody = children(sweep.process.pid)
                    time.sleep(generator.uniform(0, 1.0))
                    self.assertIsNone(sweep.process.poll(), "the sweep was over before it was interrupted")
                    sweep.process.send_signal(signal.SIGINT)
                    status, stderr = sweep.end()
                    self.assertEqual(status, 130, stderr)
                    statuses = [row["status"] for row in sweep.rows()]
                    kept = statuses.count("ok")
                    self.assertEqual(statuses[:kept], ["ok"] * kept)
                    self.assertEqual(set(statuses[kept:]) - {"interrupted", "not_run"}, set(), stderr)
                    self.nothing_is_left(sweep, everybody)

    def test_nothing_outlives_the_tool(self):
        for backend in BACKENDS:
            with self.subTest(backend=backend):
                sweep = Sweep(self.folder.name, "--backend", backend, "--world-size", "2")
                sweep.ranks(2)
                everybody = children(sweep.process.pid)
                wait_until(lambda sweep=sweep: len(sweep.rows()) > 0)
                sweep.process.kill()
                sweep.end()
                self.nothing_is_left(sweep, everybody)

    def test_isolated_rows_after_a_death_are_measured(self):
        process = subprocess.Popen(
            [TOOL, "--device", "cpu", "--isolate", "--sizes", "1MiB,2MiB", "--max-noise", "0%", "--max-time", "1",
             "--format", "json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ranks = wait_until(lambda: ranks_of(process.pid))
        os.kill(list(ranks.values())[0], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=HANG)
        statuses = [row["status"] for row in json.loads(stdout)["rows"]]
        self.assertIn(statuses[0], ("crashed", "error"), stderr)
        self.assertEqual(statuses[1], "ok", stderr)
        self.assertEqual(process.returncode, 1)


if __name__ == "__main__":
    unittest.main()
