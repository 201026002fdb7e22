#!/usr/bin/env python3
"""Recording as memsnap's users do it: attention, models, and what every tool leaves when a row runs out of memory."""

import json
import pathlib
import pickletools
import re
import unittest

import plain
from common import ALLREDUCE_BENCH, ATTN_BENCH, E2E_BENCH, KERNEL_BENCH, SMALL, Case, run


class Record(Case):
    def record(self, *options, name="out.pickle"):
        path = self.folder / name
        result = self.good("record", *SMALL, *options, "-o", path)
        return path, result.stderr

    def test_an_attention_configuration(self):
        for implementation in ("naive", "fused", "flash"):
            path, said = self.record("--impl", implementation)
            self.assertIn("ok (", self.good("check", path).stdout)
            data = path.read_bytes()
            snapshot = plain.load(data)
            plain.replay(snapshot)
            opcodes = [opcode for opcode, _, _ in pickletools.genops(data)]
            self.assertLessEqual({opcode.name for opcode in opcodes}, plain.VIEWER_OPCODES)
            self.assertLessEqual(max(opcode.proto for opcode in opcodes), 4)
            figures = plain.figures(snapshot)
            # The allocator's own peak is said beside: the tool holds the two against each other to the byte.
            mib = re.search(r"peak ([0-9.]+) ([KM]iB) allocated", said)
            scale = {"KiB": 1024, "MiB": 1048576}[mib[2]]
            self.assertAlmostEqual(figures["peak"] / scale, float(mib[1]), delta=0.051)
            names = [note["name"] for note in snapshot["external_annotations"]]
            self.assertEqual(names, ["FWD_STEP", "FWD_STEP", "BWD_STEP", "BWD_STEP"])
            categories = {event["category"] for event in snapshot["device_traces"][0]}
            self.assertLessEqual({"unknown", "activations", "gradients"}, categories)
            # q, k, v of 2 x 64 x 32 floats were there before.
            self.assertEqual(figures["begin"], 3 * 2 * 64 * 32 * 4)

    def test_naives_peak_has_its_operations(self):
        path, _ = self.record("--impl", "naive", "--pass", "fwd")
        document = json.loads(self.good("summary", path, "--format", "json").stdout)
        device = document["devices"][0]
        operations = {row["name"]: row["bytes"] for row in device["peak_by_operation"]}
        scores = 2 * 64 * 64 * 4
        # Scaled, masked and probabilities: two of the three are there while the third is made.
        self.assertEqual(operations["ATTN_SOFTMAX"], scores)
        self.assertEqual(operations["ATTN_MASK"], scores)
        self.assertEqual(device["peak"]["phase"], "FWD_STEP")
        self.assertEqual(device["largest_at_peak"][0]["source"].split(":")[0], "naive_cpu.cpp")

    def test_frames_and_steps_and_capacity(self):
        one, _ = self.record("--impl", "flash")
        bare, _ = self.record("--impl", "flash", "--no-frames", "--steps", "3", name="bare.pickle")
        few, said = self.record("--impl", "flash", "--max-events", "5", name="few.pickle")
        events = [len(plain.load(path.read_bytes())["device_traces"][0]) for path in (one, bare, few)]
        self.assertEqual(events[1] - 1, 3 * (events[0] - 1))  # one event of all is the mark at the end
        self.assertEqual(events[2], 6)
        self.assertIn("only the last 5 events", said)
        self.assertTrue(all(not event["frames"] for event in plain.load(bare.read_bytes())["device_traces"][0]))
        self.assertIn("ok (", self.good("check", few).stdout)

    def test_out_of_memory_leaves_its_snapshot(self):
        path = self.folder / "oom.pickle"
        result = run("record", "--attention", "--device", "cpu", "--impl", "naive", "--memory-limit", "64MiB", "-o", path)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("out of memory; what lay where then is in", result.stderr)
        snapshot = plain.load(path.read_bytes())
        plain.replay(snapshot)
        self.assertEqual(snapshot["device_traces"][0][-2]["action"], "oom")
        self.assertGreater(plain.figures(snapshot)["end"], 0)

    def test_overhead(self):
        result = self.good("record", *SMALL, "--impl", "flash", "--overhead", "--steps", "20")
        self.assertRegex(result.stdout, r"(?s)not recording.*events and frames.*Medians of 20 steps each; \d+ events a step")

    def test_bad_usage(self):
        for words, options in (
            # --attention with a value is a model's, as in e2e_bench; without one it asks for an attention problem.
            ("--size: not with --attention, which without a value", ["--size", "small", "--attention"]),
            ("--size: not with --attention, which without a value", ["--attention", "--size", "small"]),
            ("--seq-len: of an attention problem, not of a model", ["--attention", "naive", "--seq-len", "64"]),
            ("--impl: of an attention problem, not of a model", ["--impl=naive"]),
            ("--attention 'flush': unknown", ["--attention", "flush"]),
            ("--graph", ["--graph"]),
            ("name 2 models", ["--size", "tiny,small"]),
            ("name 2 models", ["--precision", "fp32,bf16"]),
            ("--mode 'forward,train_step'", ["--mode", "forward,train_step"]),
            ("3 heads do not divide", ["--size", "tiny", "--heads", "3"]),
            ("tf32 is a CUDA compute mode", ["--device", "cpu", "--precision", "tf32"]),
        ):
            self.assertIn(words, self.refused("record", *options, "-o", "x.pickle"))
        self.assertIn("nothing to write to", self.refused("record", "--size", "tiny"))
        self.assertIn("name 2 attention configurations", self.refused("record", *SMALL, "--causal=both", "-o", "x.pickle"))
        self.assertIn("nothing to write to", self.refused("record", *SMALL))
        self.assertIn("does not divide", self.refused("record", *SMALL, "--heads", "5", "-o", "x.pickle"))


class RecordModels(Case):
    """A model's snapshot against the allocator's own peak, the memory model, and what the model is."""

    KINDS = {"parameters", "gradients", "optimizer state", "activations", "logits", "workspace"}

    def record(self, size, mode, precision, *options):
        path = self.folder / f"{size}.pickle"
        arguments = ["--device", "cpu", "--size", size, "--mode", mode, "--precision", precision, "--warmup", "1", *options]
        said = self.good("record", *arguments, "-o", path).stderr
        snapshot = plain.load(path.read_bytes())
        recording = snapshot["recording"]
        allocated, predicted = recording["allocator_peak_bytes"], recording["predicted_peak_bytes"]
        traced = plain.figures(snapshot)["peak"]
        print(f"{recording['workload']}: trace {traced}, allocator {allocated}, predicted {predicted} ({predicted / allocated - 1:+.2%})")
        self.assertEqual(traced, allocated)
        summary = json.loads(self.good("summary", path, "--format", "json").stdout)
        self.assertEqual(summary["recording"], {"workload": recording["workload"], "predicted_peak_bytes": predicted})
        self.assertAlmostEqual(predicted / allocated, 1, delta=0.05)
        self.assertIn(f"{100 * (predicted / allocated - 1):+.2f}%)", said)
        return snapshot, path

    def summary(self, path):
        return json.loads(self.good("summary", path, "--format", "json").stdout)["devices"][0]

    def test_the_peak_is_the_allocators_and_near_the_memory_models(self):
        for mode in ("forward", "train_step"):
            for precision in ("fp32", "bf16"):
                self.record("tiny", mode, precision)
                self.record("tiny", mode, precision, "--structure", "naive")
        self.record("tiny", "forward_backward", "fp32")
        self.record("tiny", "train_step", "fp16", "--recompute", "block", "--steps", "2")
        self.record("tiny", "forward", "bf16_pure")
        # The weights of a real size; few tokens, so that a laptop does it in seconds.
        for mode in ("forward", "train_step"):
            for precision in ("fp32", "bf16"):
                self.record("small", mode, precision, "--batch", "1", "--context", "16")

    def test_phases_layers_and_operations(self):
        snapshot, path = self.record("tiny", "train_step", "bf16")
        opcodes = [opcode for opcode, _, _ in pickletools.genops(path.read_bytes())]
        self.assertLessEqual({opcode.name for opcode in opcodes}, plain.VIEWER_OPCODES)
        self.assertLessEqual(max(opcode.proto for opcode in opcodes), 4)
        plain.replay(snapshot)
        self.assertIn("ok (", self.good("check", path).stdout)
        notes = [(note["stage"], note["name"]) for note in snapshot["external_annotations"]]
        phase = lambda name, *within: [("START", name), *within, ("END", name)]  # noqa: E731
        up, down = phase("LAYER_0") + phase("LAYER_1"), phase("LAYER_1") + phase("LAYER_0")
        self.assertEqual(notes, phase("FWD_STEP", *up) + phase("BWD_STEP", *down) + phase("OPTIM_STEP"))
        made = {}
        for event in snapshot["device_traces"][0]:
            if event["action"] != "alloc":
                continue
            self.assertIn(event["category"], self.KINDS)
            self.assertIn(event["frames"][-1]["name"], ("FWD_STEP", "BWD_STEP", "OPTIM_STEP"))
            for frame in event["frames"]:
                self.assertRegex(frame["filename"], r"^/?(kernels|.*/kernels)/.*\.[ch]pp$")
                self.assertGreater(frame["line"], 0)
            made.setdefault(event["frames"][0]["name"], []).append(event)
        qkv = made["q, k, v"]
        self.assertEqual([[frame["name"] for frame in event["frames"]] for event in qkv],
                         [["q, k, v", "QKV_MATMUL", layer, "FWD_STEP"] for layer in ("LAYER_0", "LAYER_1")])  # fmt: skip
        self.assertEqual({pathlib.Path(event["frames"][0]["filename"]).name for event in qkv}, {"fused_block.cpp"})
        self.assertEqual({event["size"] for event in qkv}, {4 * 256 * 3 * 64 * 2})
        device = self.summary(path)
        operations = {row["name"]: row["bytes"] for row in device["peak_by_operation"]}
        self.assertEqual(operations["QKV_MATMUL"], 2 * 4 * 256 * 3 * 64 * 2)
        layers = {row["name"]: row["bytes"] for row in device["peak_by_layer"]}
        self.assertEqual(layers["LAYER_0"], layers["LAYER_1"])

    def test_categories_are_the_memory_models(self):
        # --dry-run of e2e_bench has the memory model's account at the peak, by the same kinds.
        for structure in ("fused", "naive"):
            for mode in ("forward", "train_step"):
                options = ["--device", "cpu", "--size", "tiny", "--structure", structure, "--mode", mode]
                predicted = json.loads(self.good(*options, "--dry-run", "--format", "json", tool=E2E_BENCH).stdout)["rows"][0]
                _, path = self.record("tiny", mode, "fp32", "--structure", structure)
                found = {row["name"]: row["bytes"] for row in self.summary(path)["peak_by_category"]}
                self.assertLessEqual(found.keys(), self.KINDS)
                for kind in self.KINDS:
                    with self.subTest(structure=structure, mode=mode, kind=kind):
                        expected = predicted[f"predicted_{kind.split()[0]}_mib"] * 2**20
                        # What is left of a segment that is not split belongs to its block: up to 1 MiB each.
                        self.assertAlmostEqual(found.get(kind, 0), expected, delta=1e-6 * expected + 2**21)

    def test_running_out_of_memory_names_what_was_there(self):
        path = self.folder / "oom.pickle"
        result = run("record", "--device", "cpu", "--size", "tiny", "--memory-limit", "40MiB", "-o", path)
        self.assertEqual(result.returncode, 1, result.stderr)
        device = self.summary(path)
        self.assertEqual(device["oom"]["count"], 1)
        self.assertEqual({row["name"] for row in device["peak_by_category"]} & {"parameters", "optimizer state", "activations"},
                         {"parameters", "optimizer state", "activations"})  # fmt: skip
        self.assertIn("FFN_W13_MATMUL", {row["name"] for row in device["peak_by_operation"]})

    def test_an_attention_implementation_by_name(self):
        snapshot, _ = self.record("tiny", "forward", "fp32", "--attention", "naive", "--context", "32")
        names = {frame["name"] for event in snapshot["device_traces"][0] for frame in event["frames"]}
        self.assertLessEqual({"ATTENTION", "ATTN_SOFTMAX"}, names)
        snapshot, _ = self.record("tiny", "forward", "fp32", "--context", "32")
        self.assertNotIn("ATTN_SOFTMAX", {frame["name"] for event in snapshot["device_traces"][0] for frame in event["frames"]})


class DumpOnOom(Case):
    ARGUMENTS = ["--device", "cpu", "--impl", "naive,fused", "--seq-len", "512", "--d-model", "64", "--steps", "1", "--warmup", "0",
                 "--memory-limit", "12MiB", "--format", "json"]  # fmt: skip

    def dumped(self, *options):
        result = run(*self.ARGUMENTS, *options, "--dump-on-oom", self.folder / "oom.pickle", tool=ATTN_BENCH)
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual([row["status"] for row in rows], ["oom", "oom"])
        self.assertFalse(any(row["reason"].startswith("predicted") for row in rows))
        for name in ("oom.pickle", "oom-2.pickle"):
            snapshot = plain.load((self.folder / name).read_bytes())
            plain.replay(snapshot)
            self.assertEqual(snapshot["device_traces"][0][-2]["action"], "oom")
            self.assertGreater(plain.figures(snapshot)["end"], 0)
            self.assertIn(name, result.stderr)

    def test_every_row_that_runs_out_leaves_one(self):
        self.dumped()

    def test_isolated(self):
        self.dumped("--isolate")

    def test_every_tool(self):
        small = ["--device", "cpu", "--steps", "1", "--warmup", "0"]
        for tool, names, options in (
            (E2E_BENCH, ["oom.pickle"], ["--size", "tiny", "--context", "64", "--structure", "fused", "--memory-limit", "24MiB"]),
            (KERNEL_BENCH, ["oom.pickle"], ["--kernel", "add", "--rows", "4096", "--cols", "1024", "--memory-limit", "24MiB"]),
            (ALLREDUCE_BENCH, ["oom-rank0.pickle", "oom-rank1.pickle"],
             ["--world-size", "2", "--sizes", "16MiB", "--buffers", "plain", "--no-in-place", "--memory-limit", "24MiB"]),
        ):  # fmt: skip
            with self.subTest(tool=tool):
                result = run(*small, *options, "--dump-on-oom", self.folder / "oom.pickle", "--format", "json", tool=tool)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual([row["status"] for row in json.loads(result.stdout)["rows"]], ["oom"])
                for name in names:
                    self.assertIn("ok (", self.good("check", self.folder / name).stdout)
                    snapshot = plain.load((self.folder / name).read_bytes())
                    self.assertEqual(snapshot["device_traces"][0][-2]["action"], "oom")
                    self.assertGreater(plain.figures(snapshot)["end"], 0)
                    if tool == E2E_BENCH:
                        frames = {f["name"] for s in snapshot["segments"] for b in s["blocks"] for f in b.get("frames", ())}
                        self.assertLessEqual({"weights", "first moments", "QKV_MATMUL", "LAYER_1", "FWD_STEP"}, frames)
                    (self.folder / name).unlink()

    def test_rows_that_fit_leave_none(self):
        path = self.folder / "oom.pickle"
        result = run(*self.ARGUMENTS[:-4], "--dump-on-oom", path, tool=ATTN_BENCH)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse(path.exists())

    def test_bad_usage(self):
        for value, why in (("x.txt", "unknown ending"), (self.folder / "none" / "x.pickle", "No such file")):
            result = run("--dump-on-oom", value, tool=ATTN_BENCH)
            self.assertEqual(result.returncode, 2)
            self.assertIn(why, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
