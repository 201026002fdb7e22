#!/usr/bin/env python3
"""attn_bench's device times against those of Nsight Compute: the kernels of a pass, added up, take what the row says.

On a GPU that nothing else uses; skipped without ncu, a GPU, or the right to read its counters. Prints what was found.
"""
import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import unittest

TOOL = os.environ["ATTN_BENCH"]
NCU = shutil.which("ncu") or next(
    (path for path in ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu") if os.path.exists(path)), None)
WARMUP, STEPS = 3, 10
# Long enough for what lies between two kernels of a pass, 1.4 us each, to be under a percent: fused has 33 of them.
CONFIGURATIONS = {
    "naive": ["--dtype", "fp32", "--batch", "8", "--heads", "1", "--d-model", "64", "--seq-len", "4096"],
    "fused": ["--dtype", "bf16", "--batch", "8", "--heads", "16", "--d-model", "1024", "--seq-len", "4096"],
    "flash_sm80": ["--dtype", "bf16", "--batch", "4", "--heads", "16", "--d-model", "1024", "--seq-len", "4096"],
}


def sweep(impl, one_pass):
    return [TOOL, "--device", "cuda", "--impl", impl, *CONFIGURATIONS[impl], "--pass", one_pass, "--no-check",
            "--format", "json"]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def row_of(impl, one_pass):
    result = run([*sweep(impl, one_pass), "--max-time", "0.2"])
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)["rows"][0]


def calls_of(impl, one_pass):
    """Each measured call of the pass as [(kernel, microseconds)], by the NVTX ranges around them."""
    ranges = "ATTN_.*" if one_pass == "fwd" else "ATTN_(BWD|FLASH_BWD).*"
    with tempfile.NamedTemporaryFile("r", suffix=".csv") as log:
        result = run([NCU, "--metrics", "gpu__time_duration.sum", "--cache-control", "none", "--clock-control", "none",
                      "--nvtx", "--nvtx-include", f"regex:{ranges}/", "--csv", "--page", "raw", "--log-file", log.name,
                      *sweep(impl, one_pass), "--warmup", str(WARMUP), "--steps", str(STEPS)])
        text = log.read()
    if "ERR_NVGPUCTRPERM" in text + result.stdout:
        raise unittest.SkipTest("no permission to read the GPU's counters (ERR_NVGPUCTRPERM)")
    lines = [line for line in text.splitlines() if line.startswith('"')]
    units, *rows = csv.DictReader(io.StringIO("\n".join(lines))) if len(lines) > 2 else [{}]
    if not rows:
        raise AssertionError(f"ncu ended with {result.returncode} and no kernels: {(text + result.stderr)[-2000:]}")
    factor = {"n": 1e-3, "u": 1.0, "m": 1e3}[units["gpu__time_duration.sum"][0]]
    kernels = [(row["Kernel Name"], float(row["gpu__time_duration.sum"].replace(",", "")) * factor) for row in rows]
    # Beside the samples: a first call whose kernels are loaded, and samples at a lower clock, which do not count.
    count = 1 + WARMUP + STEPS + json.loads(result.stdout)["rows"][0].get(f"{one_pass}_discarded", 0)
    if len(kernels) % count != 0:
        raise AssertionError(f"{len(kernels)} kernels in {count} calls: {[name for name, _ in kernels][:20]}")
    a_call = len(kernels) // count
    return [kernels[first:first + a_call] for first in range(0, len(kernels), a_call)][-STEPS:]


def has_gpu():
    return run([TOOL, "--device", "cuda", "--dry-run", "--impl", "naive"]).returncode == 0


@unittest.skipUnless(NCU, "no ncu")
@unittest.skipUnless(NCU and has_gpu(), "no GPU that attn_bench can use")
class Times(unittest.TestCase):
    def compare(self, impl):
        for one_pass in ("fwd", "bwd"):
            with self.subTest(impl=impl, one_pass=one_pass):
                row = row_of(impl, one_pass)
                self.assertEqual(row["status"], "ok", row["reason"])
                calls = calls_of(impl, one_pass)
                for call in calls:
                    self.assertEqual([name for name, _ in call], [name for name, _ in calls[0]])
                total = statistics.median(sum(us for _, us in call) for call in calls)
                ours = 1e3 * row[f"{one_pass}_ms"]
                print(f"{impl} {one_pass}: ncu {total:.1f} us in {len(calls[0])} kernels, attn_bench {ours:.1f} us"
                      f" (noise {row[f'{one_pass}_noise']:.2%}, {row.get(f'{one_pass}_clock_mhz')} MHz):"
                      f" {ours / total - 1:+.2%}", file=sys.stderr)
                self.assertLess(abs(ours / total - 1), 0.02)

    def test_naive(self):
        self.compare("naive")

    def test_fused(self):
        self.compare("fused")

    def test_flash_sm80(self):
        self.compare("flash_sm80")


if __name__ == "__main__":
    unittest.main()
