#!/usr/bin/env python3
"""memsnap as its users run it, with Python's own pickle on the other side.

What needs PyTorch skips without it; WARPMETER_TORCH_PYTHON names a Python that has it.
"""

import csv
import io
import json
import os
import pathlib
import pickle
import pickletools
import random
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "scripts")]
import documentation  # noqa: E402
import plain  # noqa: E402

TOOL = os.environ["MEMSNAP"]
ATTN_BENCH = os.environ["ATTN_BENCH"]
E2E_BENCH = os.environ["E2E_BENCH"]
KERNEL_BENCH = os.environ["KERNEL_BENCH"]
ALLREDUCE_BENCH = os.environ["ALLREDUCE_BENCH"]
FIXTURES = pathlib.Path(os.environ["WARPMETER_FIXTURES"])
TORCH_PYTHON = os.environ.get("WARPMETER_TORCH_PYTHON")

TOY, MID = FIXTURES / "torch_snapshot_toy.pickle", FIXTURES / "torch_snapshot_mid.pickle"
SMALL = ["--attention", "--device", "cpu", "--seq-len", "64", "--d-model", "32", "--batch", "2"]


def run(*arguments, tool=TOOL, **keywords):
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600, **keywords
    )


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def good(self, *arguments, **keywords):
        result = run(*arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *arguments, **keywords):
        """One line, exit status 2; returns the line without the program's name."""
        result = run(*arguments, **keywords)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("memsnap: "), result.stderr)
        return result.stderr[len("memsnap: ") : -1]

    def converted(self, source, name, *options):
        path = self.folder / name
        self.good("convert", source, "-o", path, *options)
        return path


def strange():
    """What no allocator writes and every Python pickle may hold."""
    frame = {"name": "é\u20ac\U0001f600 \n\\u0041", "filename": "", "line": -3, "fx_node_op": "call", "deep": [[[()]]]}
    frames = [frame, frame, {"name": "g", "filename": "\ud800", "line": 2**40}]
    numbers = [0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**60, 2**61, -(2**61), 2**63 - 1]
    numbers += [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40), 7**1000, True, False, None]
    numbers += [0.0, -0.0, 1.5, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")]
    events = [
        {"action": "alloc", "addr": 2**64 - 4096, "size": 100, "stream": -5, "time_us": 3, "frames": frames, "x": numbers},
        {"action": "something_new", "what": {"a": (1,), 2: (1, 2), (3, "k"): (1, 2, 3, 4), None: {}, 1.5: [], True: ()}},
        {"action": "oom", "size": 1, "device_free": 0, "frames": ()},
    ]
    segment = {
        "device": 0, "address": 2**64 - 4096, "total_size": 512, "segment_pool_id": (2**40, -1), "stream": 2**62,
        "segment_type": "huge", "blocks": [
            {"size": 512, "state": "active_awaiting_free", "history": [{"addr": 1, "real_size": 3}], "requested_size": 7}
        ],
    }  # fmt: skip
    shared = ["shared"]
    return {
        "segments": [segment], "device_traces": [[], events], "external_annotations": [
            {"stage": "START", "name": "n" * 300, "device": 1, "time_us": -5, "extra": shared},
            {"stage": "elsewhere", "name": "", "device": -1, "time_us": 2**62},
        ],
        "allocator_settings": {"again": shared, "text": "x" * 70000, "long": list(range(2500))}, "more": numbers, 7: "seven",
    }  # fmt: skip


class RoundTrip(Case):
    def snapshots(self):
        yield "strange", strange()
        for path in (TOY, MID):
            yield path.stem, plain.load(path.read_bytes())

    def test_pythons_pickles_read_and_written_for_python(self):
        for name, snapshot in self.snapshots():
            for protocol in range(6):
                source = self.folder / "source.pickle"
                source.write_bytes(pickle.dumps(snapshot, protocol=protocol))
                for ours in (2, 3, 4):
                    with self.subTest(name=name, read=protocol, written=ours):
                        data = self.converted(source, "out.pickle", "--protocol", ours).read_bytes()
                        read = plain.load(data)
                        if name == "strange":  # () of frames is read as the list that every other file has
                            read["device_traces"][1][2]["frames"] = tuple(read["device_traces"][1][2]["frames"])
                        self.assertTrue(plain.same(read, snapshot))
                        opcodes = [opcode for opcode, _, _ in pickletools.genops(data)]
                        self.assertLessEqual(max(opcode.proto for opcode in opcodes), ours)
                        if name != "strange":  # which has integers beyond the viewer's
                            self.assertLessEqual({opcode.name for opcode in opcodes}, plain.VIEWER_OPCODES)

    def test_pythons_slow_pickler(self):
        # It writes the same protocols with other habits.
        for protocol in range(6):
            buffer = io.BytesIO()
            pickle._Pickler(buffer, protocol).dump(plain.load(TOY.read_bytes()))
            source = self.folder / "slow.pickle"
            source.write_bytes(buffer.getvalue())
            self.assertTrue(plain.same(plain.load(self.converted(source, "out.pickle").read_bytes()), plain.load(TOY.read_bytes())))

    def test_json_both_ways(self):
        for path in (TOY, MID):
            snapshot = plain.load(path.read_bytes())
            text = self.converted(path, "out.json").read_text()
            self.assertTrue(plain.same(json.loads(text), plain.as_json(snapshot)))
            again = self.converted(self.folder / "out.json", "again.pickle")
            self.assertTrue(plain.same(plain.as_json(plain.load(again.read_bytes())), plain.as_json(snapshot)))
            written = self.folder / "python.json"
            written.write_text(json.dumps(snapshot, indent=1))
            again = self.converted(written, "again.pickle")
            self.assertTrue(plain.same(plain.as_json(plain.load(again.read_bytes())), plain.as_json(snapshot)))

    def test_large_lists_come_in_batches(self):
        snapshot = {"segments": [], "device_traces": [[{"action": "oom", "size": i} for i in range(2501)]]}
        source = self.folder / "source.pickle"
        source.write_bytes(pickle.dumps(snapshot))
        data = self.converted(source, "out.pickle").read_bytes()
        self.assertTrue(plain.same(plain.load(data), snapshot))
        marks = []
        for opcode, _, _ in pickletools.genops(data):
            if opcode.name == "MARK":
                marks.append(0)
            elif opcode.name in ("SETITEMS", "APPENDS"):
                self.assertLessEqual(marks.pop(), 1000)
                if opcode.name == "SETITEMS" and marks:
                    marks[-1] += 1


class Summary(Case):
    def held_against_python(self, path, device=0):
        document = json.loads(self.good("summary", path, "--format", "json").stdout)
        self.assertEqual(document["schema"], "warpmeter-memsnap/1")
        found = next(each for each in document["devices"] if each["device"] == device)
        snapshot = plain.load(path.read_bytes())
        expected = plain.figures(snapshot, device)
        self.assertEqual(found["events"], expected["events"])
        self.assertEqual(found["actions"], expected["actions"])
        self.assertEqual(found["begin"]["allocated_bytes"], expected["begin"])
        self.assertEqual(found["peak"]["allocated_bytes"], expected["peak"])
        self.assertEqual(found["peak"]["event"], expected["peak_event"])
        self.assertEqual(found["end"]["allocated_bytes"], expected["end"])
        self.assertEqual(found["end"]["reserved_bytes"], expected["reserved"])
        self.assertEqual(found["fragmentation"]["segments"], expected["segments"])
        self.assertEqual(found["fragmentation"]["inactive_bytes"], expected["inactive"])
        for table in ("peak_by_category", "peak_by_operation"):
            self.assertEqual(sum(row["bytes"] for row in found[table]), expected["peak"])
        return found

    def test_pytorchs_snapshots(self):
        toy = self.held_against_python(TOY)
        self.assertEqual(toy["oom"], {"count": 1, "last_requested_bytes": 4000000000000, "last_device_free_bytes": 149253390336})
        mid = self.held_against_python(MID)
        self.assertEqual(mid["peak"]["phase"], "Optimizer.step#AdamW.step")

    def test_random_histories(self):
        chance = random.Random(11)
        for _ in range(20):
            base, live, pending, trace, holes = 1 << 40, {}, {}, [], []
            top, quiet = base, [0]  # quiet: where nothing was pending, so that a trace may begin there
            for _ in range(chance.randrange(200)):
                what = chance.random()
                if what < 0.5:
                    size = chance.choice([1, 512, 1000, 4096, 100000])
                    fitting = [hole for hole in holes if hole[1] == plain.rounded(size)]
                    if fitting:
                        address = fitting[0][0]
                        holes.remove(fitting[0])
                    else:
                        address, top = top, top + plain.rounded(size)
                    live[address] = size
                    trace.append({"action": "alloc", "addr": address, "size": size})
                elif live and what < 0.8:
                    address = chance.choice(sorted(live))
                    pending[address] = live.pop(address)
                    trace.append({"action": "free_requested", "addr": address, "size": pending[address]})
                elif pending:
                    address = chance.choice(sorted(pending))
                    size = pending.pop(address)
                    holes.append((address, plain.rounded(size)))
                    trace.append({"action": "free_completed", "addr": address, "size": size})
                if not pending:
                    quiet.append(len(trace))
            blocks = [(address, size, "active_allocated") for address, size in live.items()]
            blocks += [(address, size, "active_pending_free") for address, size in pending.items()]
            blocks += [(address, size, "inactive") for address, size in holes]
            blocks = [
                {"address": address, "size": plain.rounded(size), "requested_size": size, "state": state, "frames": []}
                for address, size, state in sorted(blocks)
            ]
            segments = [{"device": 0, "address": base, "total_size": top - base, "blocks": blocks}] if blocks else []
            trace = trace[chance.choice(quiet) :]
            path = self.folder / "random.pickle"
            path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace]}))
            if trace or segments:
                self.held_against_python(path)

    def test_tables_as_markdown_and_csv(self):
        text = self.good("summary", MID).stdout
        self.assertIn("- Peak: 145.26 MiB allocated", text)
        self.assertIn("| aten::mm ", text)
        self.assertIn("**Phases**", text)
        path = self.folder / "out.csv"
        self.assertEqual(self.good("summary", MID, "-o", path, "--limit", "3").stdout, "")
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        peak = [row for row in rows if row["table"] == "totals" and row["name"] == "peak allocated"]
        self.assertEqual([int(row["bytes"]) for row in peak], [plain.figures(plain.load(MID.read_bytes()))["peak"]])
        self.assertEqual(sum(row["table"] == "largest_at_peak" for row in rows), 3)

    def test_what_was_recorded(self):
        path = self.folder / "out.pickle"
        big = {"workload": "a\x1b|b", "predicted_peak_bytes": 2**80}
        for recording, lines in ((5, 0), ({"workload": 5}, 0), ({5: "x", "predicted_peak_bytes": 1}, 0), (big, 1)):
            path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]], "recording": recording}))
            text = self.good("summary", path).stdout
            self.assertEqual(text.count("- Recorded: "), lines)
            self.assertNotIn("\x1b", text)
            self.assertNotIn("predicts", text)
            json.loads(self.good("summary", path, "--format", "json").stdout)

    def test_diff(self):
        text = self.good("diff", TOY, MID).stdout
        self.assertRegex(text, r"\| peak allocated +\| +66\.28 \| +145\.26 \| +\+78\.98 \|")
        document = json.loads(self.good("diff", TOY, MID, "--format", "json").stdout)
        totals = {row["name"]: row for row in document["devices"][0]["totals"]}
        expected = [plain.figures(plain.load(path.read_bytes()))["peak"] for path in (TOY, MID)]
        self.assertEqual([totals["peak allocated"]["a_bytes"], totals["peak allocated"]["b_bytes"]], expected)
        self.assertEqual(totals["peak allocated"]["change_bytes"], expected[1] - expected[0])


class Check(Case):
    def test_good_and_bad(self):
        self.assertRegex(self.good("check", MID).stdout, r"ok \(36 segments, 136 blocks, 699 events\)")
        snapshot = plain.load(MID.read_bytes())
        snapshot["segments"][3]["blocks"][0]["size"] += 512
        path = self.folder / "bad.pickle"
        path.write_bytes(pickle.dumps(snapshot))
        result = run("check", path)
        self.assertEqual(result.returncode, 1)
        self.assertIn(": segments[3]", result.stdout)
        self.assertEqual(result.stdout.count("\n"), 1)


class Hostile(Case):
    def test_refusals_are_one_line(self):
        evil = self.folder / "evil.pickle"
        touched = self.folder / "touched"

        class Run:
            def __reduce__(self):
                return os.system, (f"touch {touched}",)

        for protocol in range(6):
            evil.write_bytes(pickle.dumps({"segments": [], "device_traces": [Run()]}, protocol=protocol))
            for command in ("summary", "check"):
                self.assertIn("would import and run code; a snapshot is data alone: refused", self.refused(command, evil))
        self.assertFalse(touched.exists())
        for data in (b"", b"\x80", b"hello", b"{", b"[]", pickle.dumps({1, 2}), pickle.dumps(b"x"), b"\x00" * 100):
            evil.write_bytes(data)
            self.refused("summary", evil)
        whole = TOY.read_bytes()
        for size in range(0, len(whole) - 1, 4099):
            evil.write_bytes(whole[:size])
            self.refused("summary", evil)

    def test_names_with_control_characters(self):
        self.assertNotIn("\x1b", self.refused("summary", "no\x1b[31m\nfile"))
        text = "\x1b[31m"
        event = {"action": "alloc", "addr": 4096, "size": 512, "time_us": 5, "category": text}
        event["frames"] = [{"name": text, "filename": text + ".cpp", "line": 3}]
        notes = [{"stage": "START", "name": text, "device": 0, "time_us": 1}]
        path = self.folder / "\x1b.pickle"
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]], "external_annotations": notes}))
        for arguments in (["summary", path], ["diff", path, path], ["summary", path, "--format", "json"]):
            self.assertNotIn("\x1b", self.good(*arguments).stdout)


class Usage(Case):
    def test_bad_usage(self):
        self.assertIn("summary, timeline, diff, check, convert, record", self.refused())
        self.assertIn("there is none of that name", self.refused("sumary", TOY))
        self.assertIn("takes one file, not 0", self.refused("summary"))
        self.assertIn("takes two files, not 1", self.refused("diff", TOY))
        self.assertIn("--formt", self.refused("summary", TOY, "--formt", "json"))
        self.assertIn("accepted: md, json, csv", self.refused("summary", TOY, "--format", "html"))
        self.assertIn("unknown ending", self.refused("summary", TOY, "-o", "x.jsonl"))
        self.assertIn("unknown ending", self.refused("convert", TOY, "-o", "x.txt"))
        self.assertIn("nothing to write to", self.refused("timeline", TOY))
        self.assertIn("accepted: 2, 3 or 4", self.refused("convert", TOY, "-o", "x.pickle", "--protocol", "5"))
        self.assertIn("No such file", self.refused("summary", self.folder / "none"))

    def test_files_that_look_like_options(self):
        (self.folder / "-x.pickle").write_bytes(TOY.read_bytes())
        self.good("check", "--", "-x.pickle", cwd=self.folder)

    def test_help_and_version(self):
        self.assertIn("memsnap record", self.good("--help").stdout)
        self.assertRegex(self.good("--version").stdout, r"^memsnap \(warpmeter \d")
        for command in ("summary", "timeline", "diff", "check", "convert", "record"):
            self.assertIn(f"memsnap {command}", self.good(command, "--help").stdout)

    def test_outputs_that_cannot_be_written(self):
        result = run("convert", TOY, "-o", self.folder / "none" / "x.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("No such file or directory", result.stderr)


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


class Readme(Case):
    def test_every_command_works_in_its_order(self):
        commands = documentation.commands("scripts/run memsnap")
        self.assertGreaterEqual(len(commands), 7)
        for command in commands:
            arguments = shlex.split(command)[2:]
            if arguments[0] == "record":  # the same at a size for tests, wherever they run
                for option, size in (("--seq-len", "64"), ("--size", "tiny"), ("--context", "16")):
                    if option in arguments:
                        arguments[arguments.index(option) + 1] = size
                arguments += ["--device", "cpu"]
            with self.subTest(command=command):
                self.good(*arguments, cwd=self.folder)


class Perfetto(Case):
    def test_counters_peak_where_the_summary_does(self):
        trace = json.loads(self.converted(MID, "out.trace.json").read_text())
        counters = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "memory"]
        self.assertEqual(max(e["args"]["allocated"] for e in counters), plain.figures(plain.load(MID.read_bytes()))["peak"])
        stacked = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "by category"]
        self.assertEqual([sum(e["args"].values()) for e in stacked], [e["args"]["allocated"] for e in counters])
        phases = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"]
        self.assertEqual(phases.count("Optimizer.step#AdamW.step"), 2)


@unittest.skipUnless(TORCH_PYTHON, "WARPMETER_TORCH_PYTHON names no Python with PyTorch")
class PyTorch(Case):
    def test_memory_viz_takes_what_is_written(self):
        recorded = self.folder / "recorded.pickle"
        self.good("record", *SMALL, "--impl", "naive", "--steps", "2", "-o", recorded)
        model = self.folder / "model.pickle"
        self.good("record", "--device", "cpu", "--size", "tiny", "--context", "32", "--mode", "train_step", "-o", model)
        files = [recorded, model, self.converted(MID, "protocol2.pickle", "--protocol", "2"), self.converted(TOY, "protocol4.pickle")]
        script = """
import pickle, sys
from torch.cuda import _memory_viz as viz
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        snapshot = pickle.load(file)
    print(len(viz.segsum(snapshot)), len(viz.trace(snapshot)), len(viz.trace_plot(snapshot)), len(viz.segment_plot(snapshot)))
"""
        result = subprocess.run([TORCH_PYTHON, "-c", script, *map(str, files)], capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.split("\n")
        self.assertEqual(len(lines), len(files) + 1)
        for line in lines[:-1]:
            self.assertTrue(all(int(length) > 100 for length in line.split()), line)


if __name__ == "__main__":
    unittest.main(verbosity=1)
