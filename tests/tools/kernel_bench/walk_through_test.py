#!/usr/bin/env python3
"""The kernel that the README's walk-through adds: listed, right, measured, and refused what no size is."""
import json
import os
import subprocess
import sys
import unittest

TOOL, DEVICE = os.environ["KERNEL_BENCH"], os.environ["WARPMETER_DEVICE"]


def run(*arguments):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, timeout=600)


class WalkThrough(unittest.TestCase):
    def test_it_is_listed_with_its_formula(self):
        listed = run("--list").stdout
        self.assertIn("scale\n  y[i,j] = f * x[i,j]", listed)
        self.assertIn("softmax_online\n", listed)

    def test_it_is_right_and_measured(self):
        result = run("--device", DEVICE, "--kernel", "scale,add", "--rows", "3,1000", "--cols", "1,37,1024", "--dtype",
                     "fp32,bf16,fp16", "--steps", "2", "--warmup", "1", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([row["kernel"] for row in rows], ["scale"] * 18 + ["add"] * 18)
        for row in rows:
            self.assertEqual(row["status"], "ok", row)
            self.assertEqual(row["check"], "every element")
            self.assertGreater(row["fwd_gbps"], 0)

    def test_no_size_is_none(self):
        for option in ("--rows", "--cols"):
            for value in ("0", "-3"):
                self.assertEqual(run("--device", DEVICE, "--kernel", "scale", option, value).returncode, 2)


if __name__ == "__main__":
    if DEVICE == "cuda" and run("--device", "cuda", "--kernel", "add", "--dry-run").returncode == 2:
        print("OK (skipped: no GPU)")
        sys.exit(77)
    unittest.main(verbosity=2)
