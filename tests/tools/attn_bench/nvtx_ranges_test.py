#!/usr/bin/env python3
"""The NVTX ranges of attn_bench as a profiler sees them: every operation of every pass that ran, once, and no others.

WARPMETER_DEVICE: cpu (default) or cuda, which skips where there is no GPU.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = os.environ["ATTN_BENCH"]
COUNTER = os.environ["NVTX_COUNTER"]
DEVICE = os.environ.get("WARPMETER_DEVICE", "cpu")

SMALL = ["--device", DEVICE, "--batch", "2", "--heads", "2", "--d-model", "64"]

# What one call of each pass is made of.
PASSES = {
    "naive": (
        ["ATTN_QK_MATMUL", "ATTN_SCALE", "ATTN_MASK", "ATTN_SOFTMAX", "ATTN_AV_MATMUL"],
        ["ATTN_BWD_DV_MATMUL", "ATTN_BWD_DP_MATMUL", "ATTN_BWD_SOFTMAX", "ATTN_BWD_MASK", "ATTN_BWD_SCALE",
         "ATTN_BWD_DQ_MATMUL", "ATTN_BWD_DK_MATMUL"]),
    "fused": (
        ["ATTN_QK_MATMUL", "ATTN_SOFTMAX", "ATTN_AV_MATMUL"],
        ["ATTN_BWD_DV_MATMUL", "ATTN_BWD_DP_MATMUL", "ATTN_BWD_SOFTMAX", "ATTN_BWD_DQ_MATMUL", "ATTN_BWD_DK_MATMUL"]),
    "flash": (["ATTN_FLASH_FWD"], ["ATTN_FLASH_BWD"]),
    "flash_two_pass": (["ATTN_FLASH_FWD"], ["ATTN_FLASH_BWD"]),
}


def ranges(*arguments):
    """Runs the program under the counter: {name: opened}, and its rows. Every range must have been closed."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts"
        # A cold cache: a sample is one call, however short.
        command = [TOOL, *SMALL, *arguments, "--cache", "cold", "--format", "json"]
        environment = {**os.environ, "NVTX_INJECTION64_PATH": COUNTER, "WARPMETER_NVTX_COUNTS": str(path)}
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
        if result.returncode != 0:
            raise AssertionError(f"{command} ended with {result.returncode}: {result.stderr}")
        if not path.exists():
            raise AssertionError(f"the counter was not loaded, or failed: {result.stderr}")
        opened = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            pushes, pops, name = line.split(" ", 2)
            if pushes != pops:
                raise AssertionError(f"{name}: opened {pushes} times, closed {pops}")
            opened[name] = int(pushes)
    rows = json.loads(result.stdout)["rows"]
    for row in rows:
        if row["status"] != "ok":
            raise AssertionError(f"{row['impl']}: {row['status']}: {row['reason']}")
    return opened, rows


def add(counts, names, times):
    for name in names:
        counts[name] = counts.get(name, 0) + times


def expected(rows, warmup, steps):
    """A measured phase is a checked first call, the warm-up and the samples, also those discarded for a low clock."""
    counts = {}
    for row in rows:
        forward, backward = PASSES[row["impl"]]
        if not row["causal"]:
            forward, backward = ([name for name in names if "MASK" not in name] for names in (forward, backward))
        passes = row["pass"].split(",")
        calls = 1
        if "fwd" in passes:
            calls += warmup + steps + row.get("fwd_discarded", 0)
        elif "bwd" in passes:
            calls += 1  # what the backward needs
        add(counts, forward, calls)
        if "bwd" in passes:
            add(counts, backward, 1 + warmup + steps + row.get("bwd_discarded", 0))
    return counts


def device_is_here():
    command = [TOOL, *SMALL, "--impl", "naive", "--seq-len", "48", "--steps", "1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@unittest.skipIf(DEVICE == "cuda" and not device_is_here(), "no GPU that attn_bench can use")
class Ranges(unittest.TestCase):
    def check(self, arguments, warmup, steps):
        got, rows = ranges(*arguments, "--warmup", str(warmup), "--steps", str(steps))
        self.assertEqual(got, expected(rows, warmup, steps))
        return got

    # Few runs, for each measures the machine's ceilings first.
    def test_exact_figures(self):
        got = self.check(["--impl", "naive", "--seq-len", "48"], 2, 4)
        if DEVICE == "cpu":  # no sample is discarded there
            self.assertEqual(got, dict.fromkeys(sum(PASSES["naive"], []), 7))

    def test_backward_alone_has_the_forward_it_needs(self):
        got = self.check(["--impl", "fused", "--pass", "bwd", "--seq-len", "48"], 1, 3)
        self.assertEqual(got["ATTN_QK_MATMUL"], 2)

    def test_rows_add_up(self):
        arguments = ["--impl", ",".join(PASSES), "--causal=both", "--pass", "fwd,bwd", "--seq-len", "33,64"]
        got = self.check(arguments, 1, 2)
        self.assertEqual(set(got), {name for passes in PASSES.values() for names in passes for name in names})


if __name__ == "__main__":
    unittest.main()
