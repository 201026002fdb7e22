#!/usr/bin/env python3
"""Models of every size recorded on a GPU: the trace's peak against the allocator's and the memory model's, and what
recording costs. Skips without a GPU; a size that the GPU has no room for is left out, saying so.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(SOURCE / "tests/scripts")]
import plain  # noqa: E402
import skipping  # noqa: E402

TOOL = os.environ["MEMSNAP"]
SIZES = ("tiny", "small", "medium", "large", "xl", "7B")


def record(*options):
    command = [TOOL, "record", "--device", "cuda", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def device_is_here():
    with tempfile.TemporaryDirectory() as folder:
        return record("--size", "tiny", "--mode", "forward", "-o", f"{folder}/out.pickle").returncode == 0


@unittest.skipUnless(device_is_here(), "no GPU that memsnap can use")
class OnAGpu(unittest.TestCase):
    def test_peaks_of_every_size(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "out.pickle"
            for size in SIZES:
                for mode in ("forward", "train_step"):
                    for precision in ("fp32", "bf16"):
                        options = ["--size", size, "--mode", mode, "--precision", precision, "--warmup", 1]
                        with self.subTest(size=size, mode=mode, precision=precision):
                            result = record(*options, "-o", path)
                            if result.returncode == 1 and "out of memory" in result.stderr:
                                print(f"{size} {mode} {precision}: {result.stderr.strip()}")
                                continue
                            self.assertEqual(result.returncode, 0, result.stderr)
                            snapshot = plain.load(path.read_bytes())
                            recording = snapshot["recording"]
                            allocated, predicted = recording["allocator_peak_bytes"], recording["predicted_peak_bytes"]
                            share = predicted / allocated
                            print(f"{size} {mode} {precision}: allocator {allocated}, predicted {predicted} ({share - 1:+.2%})")
                            self.assertEqual(plain.figures(snapshot)["peak"], allocated)
                            self.assertAlmostEqual(share, 1, delta=0.05)

    def test_recording_costs_little(self):
        for options in (["--precision", "bf16"], ["--precision", "bf16", "--mode", "forward"], ["--precision", "fp32"]):
            with self.subTest(options=options):
                result = record("--size", "small", *options, "--overhead", "--steps", 60, "--warmup", 10)
                self.assertEqual(result.returncode, 0, result.stderr)
                print(result.stdout)
                cost = {name: float(share) for name, share in re.findall(r"^\| ([a-z ]+?) +\|.*?([-0-9.]+)% \|$", result.stdout, re.MULTILINE)}
                self.assertLess(cost["events"], 5)
                self.assertLess(cost["events and frames"], 15)


if __name__ == "__main__":
    skipping.main(verbosity=1)
