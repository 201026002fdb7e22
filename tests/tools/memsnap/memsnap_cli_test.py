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
import shlex
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "scripts")]
import documentation  # noqa: E402
import plain  # noqa: E402
from common import MID, SMALL, TORCH_PYTHON, TOY, Case, run  # noqa: E402


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
        self.assertIn("- Out of memory: 1 time; it asked for 3814697 MiB with 142339 MiB free on the device\n",
                      self.good("summary", TOY).stdout)
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
            files = {"diff": "A B ", "record": ""}.get(command, "FILE ")
            self.assertIn(f"\nUsage: memsnap {command} {files}[options]\n", self.good(command, "--help").stdout)

    def test_outputs_that_cannot_be_written(self):
        """Said before anything is read: there is no such file to read."""
        for command, files, ending in (("summary", ["x"], "csv"), ("timeline", ["x"], "html"), ("convert", ["x"], "json"),
                                       ("diff", ["x", "y"], "md"), ("record", [], "pickle")):
            path = self.folder / "none" / f"x.{ending}"
            line = self.refused(command, *files, "-o", path)
            self.assertIn(f"--output '{path}': cannot be written: No such file or directory; accepted: file", line)
        path.parent.mkdir()
        path.mkdir()
        self.assertIn("cannot be written: Is a directory", self.refused("record", "-o", path))
        (path.parent / "full.json").symlink_to("/dev/full")  # what turns up only later is no bad usage
        result = run("convert", TOY, "-o", path.parent / "full.json")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1))
        self.assertIn("No space left on device", result.stderr)
        self.assertEqual(sorted(os.listdir(path.parent)), ["full.json", "x.pickle"])


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
