#!/usr/bin/env python3
"""The NVTX ranges of e2e_bench as a profiler sees them: phases, layers and operations, each as often as it ran.

WARPMETER_DEVICE: cpu (default) or cuda, which skips where there is no GPU.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = os.environ["E2E_BENCH"]
COUNTER = os.environ["NVTX_COUNTER"]
DEVICE = os.environ.get("WARPMETER_DEVICE", "cpu")
WARMUP, STEPS, LAYERS = 1, 2, 2
SMALL = ["--device", DEVICE, "--size", "tiny", "--vocab", "64", "--context", "16", "--warmup", str(WARMUP), "--steps",
         str(STEPS), "--cache", "cold", "--no-graph"]


def ranges(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts"
        environment = {**os.environ, "NVTX_INJECTION64_PATH": COUNTER, "WARPMETER_NVTX_COUNTS": str(path)}
        result = subprocess.run([TOOL, *SMALL, *arguments, "--format", "json"], capture_output=True, text=True,
                                check=False, timeout=600, env=environment)
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        row = json.loads(result.stdout)["rows"][0]
        if row["status"] != "ok":
            raise AssertionError(row["reason"])
        opened = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            pushes, pops, name = line.split(" ", 2)
            if pushes != pops:
                raise AssertionError(f"{name}: opened {pushes} times, closed {pops}")
            opened[name] = int(pushes)
    return opened, row


def device_is_here():
    return subprocess.run([TOOL, *SMALL, "--mode", "forward"], capture_output=True, check=False).returncode == 0


@unittest.skipIf(DEVICE == "cuda" and not device_is_here(), "no GPU that e2e_bench can use")
class Ranges(unittest.TestCase):
    def test_every_phase_layer_and_operation(self):
        for structure in ("naive", "fused"):
            got, row = ranges("--structure", structure)
            # A first call, the warm-up and the samples, also those discarded for a low clock.
            calls = {phase: 1 + WARMUP + STEPS + row.get(phase + "_discarded", 0)
                     for phase in ("fwd", "fwd_bwd", "train_step")}
            if DEVICE == "cpu":
                self.assertEqual(set(calls.values()), {4})
            forwards, backwards = sum(calls.values()), calls["fwd_bwd"] + calls["train_step"]
            self.assertEqual(got["FWD_STEP"], forwards)
            self.assertEqual(got["BWD_STEP"], backwards)
            self.assertEqual(got["OPTIM_STEP"], calls["train_step"])
            for layer in range(LAYERS):
                self.assertEqual(got[f"LAYER_{layer}"], forwards + backwards)
            once_a_layer = {"naive": "Q_MATMUL", "fused": "QKV_MATMUL"}[structure]
            self.assertEqual(got[once_a_layer], LAYERS * forwards)
            self.assertEqual(got["ATTENTION"], LAYERS * forwards)
            self.assertEqual(got["ATTENTION_BWD"], LAYERS * backwards)
            self.assertEqual(got["HEAD_MATMUL"], forwards)
            self.assertEqual(got["ADAMW"], calls["train_step"])
            inner = {"naive": ["ATTN_QK_MATMUL", "ATTN_SOFTMAX", "ATTN_AV_MATMUL"], "fused": ["ATTN_FLASH_FWD"]}
            for name in inner[structure]:
                self.assertEqual(got[name], LAYERS * forwards)


if __name__ == "__main__":
    unittest.main()
