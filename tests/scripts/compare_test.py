#!/usr/bin/env python3
"""scripts/compare as a process: pairs, verdicts, history, refusals, exit statuses, three kinds of output.

WARPMETER_UPDATE_GOLDEN=1 writes the golden texts anew.

Over 600 lines: every verdict and refusal stands here beside the others, on one set of helpers and golden texts.
"""

import json
import os
import pathlib
import pty
import shlex
import subprocess
import sys
import tempfile
import unittest

import documentation

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
SCRIPT = SOURCE / "scripts/compare"
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
ATTN_BENCH = os.environ.get("ATTN_BENCH")


def document(rows, **changes):
    base = {
        "schema": "warpmeter/1",
        "tool": "attn_bench",
        "version": {"project": "0.1.0", "git_sha": "aaaaaaaaaaaaaaaa", "dirty": False, "build_type": "Release"},
        "argv": ["attn_bench"],
        "started_at": "2026-01-31T12:00:00Z",
        "device": {"name": "NVIDIA H200", "uuid": "GPU-1", "sm": 90, "memory_mib": 143155},
        "libraries": {},
        "settings": {"timer": "device", "cache": "cold"},
        "row_keys": ["impl", "dtype", "seq_len"],
        "rows": rows,
        "summary": {"rows": len(rows)},
    }
    base.update(changes)
    return base


def row(impl="flash", seq_len=1024, fwd_ms=1.0, status="ok", dtype="bf16", **figures):
    found = {"impl": impl, "dtype": dtype, "seq_len": seq_len}
    if fwd_ms is not None:
        found.update(
            fwd_ms=fwd_ms,
            fwd_min_ms=0.998 * fwd_ms,
            fwd_noise=0.002,
            fwd_n=60,
            fwd_clock_mhz=1980,
            fwd_peak_mem_mib=64.5,
        )
    found.update(figures)
    found.update(status=status, reason=None if status == "ok" else "because", rerun=f"attn_bench --impl {impl}")
    return found


class WithFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)
        return name

    def run_script(self, *arguments, **keywords):
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=self.folder,
            **keywords,
        )

    def words(self, base, new, *arguments):
        result = self.run_script(base, new, "--json", *arguments)
        self.assertEqual(result.stderr, "")
        return {
            (line["config"]["impl"], line["config"]["seq_len"], line["field"]): line["verdict"]
            for line in json.loads(result.stdout)["lines"]
        }

    def refuses(self, arguments, *expected):
        result = self.run_script(*arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result)
        self.assertRegex(result.stderr, r"\Ascripts/compare: [^\n]+\n\Z")
        for text in expected:
            self.assertIn(text, result.stderr)


class Pairs(WithFiles):
    def pair(self):
        base = [
            row(),
            row(seq_len=2048, fwd_ms=4.0),
            row(seq_len=4096, fwd_ms=16.0),
            row("naive"),
            row("naive", seq_len=2048, fwd_noise=0.2),
            row("naive", seq_len=4096, fwd_ms=None, status="oom"),
            row("fused"),
            row("fused", seq_len=2048),
            row("fused", seq_len=4096, fwd_ms=None, status="oom"),
            row("old"),
        ]
        new = [
            row("naive", fwd_ms=1.1),
            row(fwd_ms=1.004),
            row(seq_len=2048, fwd_ms=3.6, fwd_peak_mem_mib=80.25),
            row(seq_len=4096, fwd_ms=16.9),
            row("naive", seq_len=2048, fwd_ms=1.05, fwd_noise=0.2),
            row("naive", seq_len=4096, fwd_ms=None, status="oom"),
            row("fused", fwd_ms=None, status="mismatch"),
            row("fused", seq_len=2048, fwd_ms=None, status="not_run"),
            row("fused", seq_len=4096, fwd_ms=9.0),
            row("young"),
            row("young", seq_len=2048),
        ]
        later = {
            "version": {"git_sha": "bbbbbbbbbbbbbbbb", "dirty": True, "build_type": "Release"},
            "started_at": "2026-02-01T09:30:00Z",
        }
        return self.file("base.json", document(base)), self.file("new.json", document(new, **later))

    def test_each_row_gets_its_verdict(self):
        base, new = self.pair()
        self.assertEqual(
            self.words(base, new),
            {
                ("flash", 1024, "fwd_ms"): "SAME",
                ("flash", 2048, "fwd_ms"): "FASTER",
                ("flash", 4096, "fwd_ms"): "SLOWER",
                ("naive", 1024, "fwd_ms"): "SLOWER",
                ("naive", 2048, "fwd_ms"): "UNCLEAR",
                ("fused", 1024, "fwd_ms"): "LOST",
                ("fused", 2048, "fwd_ms"): "LOST",
                ("fused", 4096, "fwd_ms"): "GAINED",
            },
        )

    def test_json_has_everything(self):
        base, new = self.pair()
        found = json.loads(self.run_script(base, new, "--json").stdout)
        self.assertEqual(found["schema"], "warpmeter-compare/1")
        self.assertEqual(found["base"]["git_sha"], "aaaaaaaaaaaaaaaa")
        self.assertEqual(found["only_base"], [{"impl": "old", "dtype": "bf16", "seq_len": 1024}])
        self.assertEqual([config["seq_len"] for config in found["only_new"]], [1024, 2048])
        self.assertEqual(found["unmeasured"], 1)
        line = found["lines"][1]
        self.assertEqual((line["base"], line["new"], line["verdict"]), (4.0, 3.6, "FASTER"))
        self.assertAlmostEqual(line["ratio"], 0.9)
        self.assertEqual(line["memory"], [{"field": "fwd_peak_mem_mib", "base": 64.5, "new": 80.25}])
        self.assertEqual(line["rerun"], "attn_bench --impl flash")
        # A mismatch is a regression; a row whose turn did not come is none.
        self.assertEqual(
            found["summary"],
            {
                "SLOWER": 2,
                "FASTER": 1,
                "SAME": 1,
                "UNCLEAR": 1,
                "LOST": 2,
                "GAINED": 1,
                "geometric_mean_ratio": found["summary"]["geometric_mean_ratio"],
                "regressions": 3,
            },
        )

    def test_golden(self):
        base, new = self.pair()
        for name, arguments in (
            ("compare.txt", []),
            ("compare.md", ["--md"]),
            ("compare_only.md", ["--md", "--only", "slower,lost"]),
        ):
            result = self.run_script(base, new, *arguments)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.golden(name, result.stdout)

    def golden(self, name, text):
        path = GOLDEN / name
        if os.environ.get("WARPMETER_UPDATE_GOLDEN"):
            path.write_text(text)
        self.assertEqual(text, path.read_text())

    def test_fail_on_regression(self):
        base, new = self.pair()
        for arguments, status in (
            ([], 0),
            (["--fail-on-regression"], 1),
            (["--fail-on-regression", "5"], 1),
            (["--fail-on-regression=5%"], 1),
        ):
            self.assertEqual(self.run_script(base, new, *arguments).returncode, status, arguments)
        mild = self.file("mild.json", document([row(fwd_ms=1.06)]))
        start = self.file("start.json", document([row()]))
        for arguments, status in (
            (["--fail-on-regression"], 1),
            (["--fail-on-regression", "5%"], 1),
            (["--fail-on-regression", "6.5"], 0),
        ):
            self.assertEqual(self.run_script(start, mild, *arguments).returncode, status, arguments)
            # The files may follow the option.
            self.assertEqual(self.run_script(*arguments, start, mild).returncode, status, arguments)
        result = self.run_script(start, mild, "--fail-on-regression")
        self.assertEqual(result.stderr, "scripts/compare: 1 of 1 rows are worse\n")
        self.assertEqual(self.run_script(mild, start, "--fail-on-regression").returncode, 0)

    def test_effect(self):
        base, new = self.file("a.json", document([row()])), self.file("b.json", document([row(fwd_ms=1.04)]))
        self.assertEqual(list(self.words(base, new).values()), ["SLOWER"])
        self.assertEqual(list(self.words(base, new, "--effect", "5%").values()), ["SAME"])

    def test_stdin_and_json_lines(self):
        base, new = self.pair()
        whole = json.loads((self.folder / new).read_text())
        header = {name: value for name, value in whole.items() if name not in ("rows", "summary")}
        lines = [{"type": "header", **header}] + [{"type": "row", **one} for one in whole["rows"]]
        text = "".join(json.dumps(line) + "\n" for line in lines)  # without a summary: the run was cut short
        by_pipe = json.loads(self.run_script(base, "-", "--json", input=text).stdout)
        by_file = json.loads(self.run_script(base, new, "--json").stdout)
        self.assertEqual(by_pipe["lines"], by_file["lines"])
        self.assertIn("stdin", by_pipe["notes"][0])

    def test_samples_are_used(self):
        """The same medians; in one run the parts lie 6% apart, which the noise does not show."""
        wandering = [1 + 0.03 * (-1) ** part for part in range(8) for _ in range(10)]
        base = self.file("a.json", document([row()]))
        plain = self.file("b.json", document([row(fwd_ms=1.05)]))
        sampled = self.file("c.json", document([row(fwd_ms=1.05, fwd_samples_ms=wandering)]))
        self.assertEqual(list(self.words(base, plain).values()), ["SLOWER"])
        self.assertEqual(list(self.words(base, sampled).values()), ["UNCLEAR"])

    def test_phases_and_units_of_other_tools(self):
        one = {
            "backend": "nccl",
            "tensor_size": 1024,
            "time_us": 20.0,
            "time_min_us": 19.9,
            "time_noise": 0.004,
            "time_n": 100,
            "status": "ok",
            "reason": None,
            "rerun": "x",
        }
        step = {
            "backend": "step",
            "tensor_size": 1,
            "fwd_s": 2.0,
            "bwd_s": 4.0,
            "status": "ok",
            "reason": None,
            "rerun": "x",
        }
        keys = {"tool": "allreduce_bench", "row_keys": ["backend", "tensor_size"]}
        base = self.file("a.json", document([one, step], **keys))
        new = self.file(
            "b.json", document([{**one, "time_us": 25.0, "time_min_us": 24.8}, {**step, "bwd_s": 5.0}], **keys)
        )
        result = json.loads(self.run_script(base, new, "--json").stdout)
        self.assertEqual(
            [(line["field"], line["verdict"]) for line in result["lines"]],
            [("time_us", "SLOWER"), ("fwd_s", "SAME"), ("bwd_s", "SLOWER")],
        )

    def test_a_phase_counts_once_and_its_cold_first_run_not_at_all(self):
        """e2e_bench gives seconds beside milliseconds, as the notes' tables have them, and the first step's time."""
        base = self.file("a.json", document([row(fwd_s=0.001, fwd_first_ms=20.0)]))
        new = self.file("b.json", document([row(fwd_s=0.001, fwd_first_ms=40.0)]))
        found = self.run_script(base, new, "--json", "--fail-on-regression")
        self.assertEqual(found.returncode, 0)
        lines = json.loads(found.stdout)["lines"]
        self.assertEqual([(line["field"], line["verdict"]) for line in lines], [("fwd_ms", "SAME")])
        older = self.file("c.json", document([{**row(fwd_ms=None), "fwd_s": 0.001, "fwd_noise": 0.002, "fwd_n": 60}]))
        lines = json.loads(self.run_script(base, older, "--json").stdout)["lines"]
        self.assertEqual([(line["field"], line["verdict"]) for line in lines], [("fwd_s", "SAME")])

    def test_plain_code_is_no_phase(self):
        """kernel_bench's time of plain code for the same bytes says what the memory did, not what the build does."""
        base = self.file("a.json", document([row(fwd_plain_ms=0.9, fwd_plain_share=0.9)]))
        new = self.file("b.json", document([row(fwd_plain_ms=2.0, fwd_plain_share=2.0)]))
        found = self.run_script(base, new, "--json", "--fail-on-regression")
        self.assertEqual(found.returncode, 0)
        self.assertEqual([line["field"] for line in json.loads(found.stdout)["lines"]], ["fwd_ms"])

    def test_a_time_without_samples_is_no_surer_than_its_row(self):
        """e2e_bench measures communication once, and takes what of it is exposed from the difference of two steps."""
        for field, noise, word in (("comm_ms", 0.4, "UNCLEAR"), ("comm_ms", 0.002, "SLOWER"),
                                   ("exposed_ms", 0.4, "UNCLEAR"), ("exposed_ms", 0.002, "SLOWER"),
                                   ("exposed_ms", 0.02, "UNCLEAR")):  # 2% of 10 ms are 0.2 ms
            with self.subTest(field=field, noise=noise):
                base = self.file("a.json", document([row(fwd_ms=10.0, fwd_noise=noise, **{field: 0.5})]))
                new = self.file("b.json", document([row(fwd_ms=10.0, fwd_noise=noise, **{field: 0.9})]))
                found = self.run_script(base, new, "--json", "--fail-on-regression")
                line = json.loads(found.stdout)["lines"][1]
                self.assertEqual((line["field"], line["verdict"], line["base_noise"]), (field, word, None))
                self.assertEqual(found.returncode, 1 if word == "SLOWER" else 0)

    def test_a_large_uncertainty_is_a_factor(self):
        """Beside the ratio that it multiplies or divides: 0.03 +- 331% would read as no change at all."""
        base = self.file("a.json", document([row(fwd_ms=30.0, fwd_noise=3.0)]))
        new = self.file("b.json", document([row(fwd_ms=1.0, fwd_noise=0.5)]))
        line = next(line for line in self.run_script(base, new).stdout.splitlines() if "fwd" in line and "ms" in line)
        self.assertRegex(line, r"^FASTER .* 0\.033 +8\.6x$")  # exp(2 * hypot(1.063, 0.177))

    def test_rows_that_repeat_count_once(self):
        base = self.file("a.json", document([row(), row(fwd_ms=2.0), row(fwd_ms=None, status="error")]))
        new = self.file("b.json", document([row(fwd_ms=2.0)]))
        found = json.loads(self.run_script(base, new, "--json").stdout)
        self.assertEqual([line["verdict"] for line in found["lines"]], ["SAME"])
        self.assertIn("2 rows have the configuration of another", " ".join(found["notes"]))

    def test_a_torn_sweep_is_said_to_be_one(self):
        base = self.file("a.json", document([row(seq_len=n) for n in range(1, 11)]))
        new = self.file("b.json", document([row(seq_len=n, fwd_ms=(0.9, 1, 1.1)[n % 3]) for n in range(1, 11)]))
        self.assertIn("the machine moved more", self.run_script(base, new).stdout)
        calm = self.file("c.json", document([row(seq_len=n, fwd_ms=(1, 1, 1.1)[n % 3]) for n in range(1, 11)]))
        self.assertNotIn("the machine moved more", self.run_script(base, calm).stdout)

    def test_a_debug_build_is_named(self):
        debug = {"version": {"git_sha": None, "build_type": "Debug"}}
        base, new = self.file("a.json", document([row()])), self.file("b.json", document([row()], **debug))
        self.assertIn("b.json: built as Debug", self.run_script(base, new).stdout)

    def test_colours_on_a_terminal_alone(self):
        base, new = self.pair()
        self.assertNotIn("\033", self.run_script(base, new).stdout)
        for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
            environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
            leader, follower = pty.openpty()
            with subprocess.Popen(
                [sys.executable, str(SCRIPT), base, new],
                stdout=follower,
                cwd=self.folder,
                env={**environment, **variables},
            ) as process:
                os.close(follower)
                text = b""
                while True:
                    try:
                        piece = os.read(leader, 65536)
                    except OSError:  # EIO: the other end is closed
                        break
                    if not piece:
                        break
                    text += piece
                process.wait(timeout=600)
            os.close(leader)
            self.assertEqual(b"\033[31mSLOWER" in text, coloured)

    def test_a_reader_that_leaves(self):
        base, new = self.pair()
        result = subprocess.run(
            f"{sys.executable} {SCRIPT} {base} {new} --md | true",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=self.folder,
        )
        self.assertEqual(result.stderr, "")


class Refusals(WithFiles):
    def test_bad_usage(self):
        base = self.file("a.json", document([row()]))
        for arguments, words in (
            ([], ["FILE"]),
            ([base], ["alone"]),
            (["-", "-"], ["only once"]),
            ([base, base, "--md", "--json"], ["--md and --json"]),
            ([base, base, "--effect", "0"], ["--effect 0"]),
            ([base, base, "--effect", "x"], ["--effect", "'x'"]),
            ([base, base, "--only", "slow"], ["'slow'", "slower"]),
            ([base, base, "--fail-on-regression=many"], ["--fail-on-regression", "'many'"]),
            ([base, base, "--nonsense"], ["--nonsense"]),
            ([base, base, "--fail"], ["--fail"]),
        ):
            with self.subTest(arguments=arguments):
                self.refuses(arguments, *words)

    def test_files_that_are_no_results(self):
        base = self.file("a.json", document([row()]))
        deep = "[" * 5000
        for name, content in (
            ("empty.json", ""),
            ("text.json", "hello"),
            ("other.json", '{"a": 1}'),
            ("deep.json", deep),
            ("new_schema.json", document([row()], schema="warpmeter/9")),
            ("binary.json", "\0\1\2"),
        ):
            with self.subTest(name=name):
                self.refuses([base, self.file(name, content)], name)
        self.refuses([base, "missing.json"], "missing.json", "No such file")

    def test_a_truncated_file_counts_what_it_has(self):
        base = self.file("a.json", document([row(), row("naive")]))
        text = json.dumps(document([row(), row("naive")]))
        cut = self.file("cut.json", text[: text.index('"naive"')])
        found = json.loads(self.run_script(base, cut, "--json").stdout)
        self.assertEqual([line["config"]["impl"] for line in found["lines"]], ["flash"])
        self.assertIn("breaks off", " ".join(found["notes"]))

    def test_nonsense_in_rows_is_no_crash(self):
        base = self.file("a.json", document([row(), row("naive", fwd_noise=-1, fwd_n="many", fwd_samples_ms=[1, "x"])]))
        new = self.file("b.json", document([row(fwd_ms=0), row("naive", fwd_ms=1e308), 7, [], {"impl": {"a": 1}}]))
        result = self.run_script(base, new, "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual([line["verdict"] for line in json.loads(result.stdout)["lines"]], ["LOST", "LOST"])

    def test_different_things(self):
        base = self.file("a.json", document([row()]))
        other = {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-9", "sm": 90, "memory_mib": 1}
        twin = {"name": "NVIDIA H200", "uuid": "GPU-2", "sm": 90, "memory_mib": 1}
        for name, changes, option, words in (
            ("device", {"device": other}, "--allow-different-device", ["NVIDIA H200 and NVIDIA H100 80GB HBM3"]),
            ("twin", {"device": twin}, "--allow-different-device", ["NVIDIA H200 GPU-1 and NVIDIA H200 GPU-2"]),
            (
                "cache",
                {"settings": {"timer": "device", "cache": "hot"}},
                "--allow-different-settings",
                ["--cache was cold and hot"],
            ),
            (
                "duty cycle",
                {"settings": {"timer": "device", "cache": "cold", "duty_cycle": 0.25}},
                "--allow-different-settings",
                ["--duty-cycle was 1.0 and 0.25"],
            ),
            (
                "timer",
                {"settings": {"timer": "wall", "cache": "cold"}},
                "--allow-different-settings",
                ["--timer was device and wall"],
            ),
            ("tool", {"tool": "e2e_bench"}, "--allow-different-keys", ["attn_bench and of e2e_bench"]),
            (
                "keys",
                {"row_keys": ["impl", "dtype", "seq_len", "kv_len"]},
                "--allow-different-keys",
                ["only one has kv_len"],
            ),
        ):
            with self.subTest(name=name):
                new = self.file(f"{name}.json", document([row(fwd_ms=2.0, kv_len=1)], **changes))
                self.refuses([base, new], option, *words)
                result = self.run_script(base, new, option, "--json")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertEqual(json.loads(result.stdout)["summary"]["SLOWER"], 1)

    def test_other_flushes(self):
        """Before flushes left a GPU's L2 clean, cold samples wrote the flush's lines back: no kernel became faster."""
        made = {}
        for name, settings in {"cold": {"cache": "cold"}, "clean": {"cache": "cold", "cache_flush": "clean"},
                               "hot": {"cache": "hot"}, "null": {"cache": "hot", "cache_flush": None}}.items():
            made[name] = self.file(f"{name}.json", document([row()], settings={"timer": "device", **settings}))
            cpu = document([row()], settings={"timer": "device", **settings}, device={"cpu": "EPYC", "cores": 2})
            made[f"cpu {name}"] = self.file(f"cpu_{name}.json", cpu)
        self.refuses([made["cold"], made["clean"]], "--allow-different-settings", "left the L2 dirty and clean")
        self.refuses([made["clean"], made["clean"], made["cold"]], "--allow-different-settings",
                     "left the L2 clean and dirty")
        for base, new, options in (("clean", "clean", []), ("hot", "null", []), ("cpu cold", "cpu clean", []),
                                   ("cold", "clean", ["--allow-different-settings"])):
            with self.subTest(base=base, new=new):
                result = self.run_script(made[base], made[new], *options)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_nothing_in_common(self):
        base, new = self.file("a.json", document([row()])), self.file("b.json", document([row("naive")]))
        self.refuses([base, new], "no configuration")

    def test_help(self):
        result = self.run_script("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for text in ("the rule:", "SLOWER", "UNCLEAR", "--allow-different-device", "Exit status"):
            self.assertIn(text, result.stdout)


class History(WithFiles):
    def build(self, sha, day, rows):
        return document(
            rows,
            version={"git_sha": sha * 16, "dirty": False, "build_type": "Release"},
            started_at=f"2026-02-{day:02}T10:00:00Z",
        )

    def files(self):
        builds = [
            ("c", 3, [row(fwd_ms=0.9), row("naive", fwd_ms=2.2)]),
            ("a", 1, [row(), row("naive", fwd_ms=2.0)]),
            ("b", 2, [row(fwd_ms=0.95), row("naive", fwd_ms=None, status="oom"), row("fused")]),
        ]
        return [self.file(f"{sha}.json", self.build(sha, day, rows)) for sha, day, rows in builds]

    def test_oldest_to_newest_with_a_verdict(self):
        found = json.loads(self.run_script(*self.files(), "--json").stdout)
        self.assertEqual([column["title"] for column in found["columns"]], ["a" * 10, "b" * 10, "c" * 10])
        self.assertEqual(
            [(line["config"]["impl"], line["medians"], line["verdict"]) for line in found["lines"]],
            [
                ("flash", [1.0, 0.95, 0.9], "FASTER"),
                ("naive", [2.0, None, 2.2], "SLOWER"),
                ("fused", [None, 1.0, None], None),
            ],
        )

    def test_golden(self):
        files = self.files()
        for name, arguments in (("history.txt", []), ("history.md", ["--md"])):
            text = self.run_script(*files, *arguments).stdout
            path = GOLDEN / name
            if os.environ.get("WARPMETER_UPDATE_GOLDEN"):
                path.write_text(text)
            self.assertEqual(text, path.read_text())

    def test_fail_on_regression(self):
        files = self.files()
        self.assertEqual(self.run_script(*files, "--fail-on-regression").returncode, 1)
        self.assertEqual(self.run_script(*files, "--fail-on-regression", "11").returncode, 0)

    def test_runs_of_one_build_are_pooled(self):
        """Two runs of the old build 8% apart: 5% more is no longer beyond them."""
        names = [
            self.file("1.json", self.build("a", 1, [row(fwd_ms=0.96)])),
            self.file("2.json", self.build("a", 2, [row(fwd_ms=1.04)])),
            self.file("3.json", self.build("b", 3, [row(fwd_ms=1.05)])),
        ]
        found = json.loads(self.run_script(*names, "--json").stdout)
        self.assertEqual([len(column["files"]) for column in found["columns"]], [2, 1])
        self.assertEqual((found["lines"][0]["medians"], found["lines"][0]["verdict"]), ([1.0, 1.05], "UNCLEAR"))

    def test_runs_of_a_single_build_stand_side_by_side(self):
        names = [
            self.file(f"{hour}.json", document([row(fwd_ms=value)], started_at=f"2026-02-01T{hour}:00:00Z"))
            for hour, value in (("12", 1.2), ("10", 1.0), ("11", 1.1))
        ]
        found = json.loads(self.run_script(*names, "--json").stdout)
        self.assertEqual([column["title"] for column in found["columns"]], ["10:00:00", "11:00:00", "12:00:00"])
        self.assertEqual(found["lines"][0]["medians"], [1.0, 1.1, 1.2])

    def test_a_file_of_several_results(self):
        text = "\n".join(json.dumps(self.build(sha, day, [row()])) for day, sha in enumerate("abc", 1))
        found = json.loads(self.run_script(self.file("all.json", text), "--json").stdout)
        self.assertEqual(len(found["columns"]), 3)


class Readme(WithFiles):
    def test_its_commands(self):
        commands = documentation.commands("scripts/compare")
        self.assertGreaterEqual(len(commands), 3)
        for command in commands:
            with self.subTest(command=command):
                arguments = shlex.split(command)[1:]
                for day, name in enumerate([word for word in arguments if word.endswith(".json")], 1):
                    self.file(name, document([row()], started_at=f"2026-02-{day:02}T10:00:00Z"))
                result = self.run_script(*arguments)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn("1 SAME", result.stdout)


@unittest.skipUnless(ATTN_BENCH, "no attn_bench in this build")
class WithTheTool(WithFiles):
    def test_what_attn_bench_writes(self):
        for name in ("a.json", "b.jsonl"):
            subprocess.run(
                [
                    ATTN_BENCH,
                    "--device",
                    "cpu",
                    "--impl",
                    "flash,naive",
                    "--seq-len",
                    "16,32",
                    "--batch",
                    "1",
                    "--d-model",
                    "16",
                    "--steps",
                    "5",
                    "--samples",
                    "-o",
                    name,
                ],
                cwd=self.folder,
                check=True,
                capture_output=True,
                timeout=600,
            )
        found = json.loads(self.run_script("a.json", "b.jsonl", "--json").stdout)
        self.assertEqual(len(found["lines"]), 8)
        self.assertTrue(all(line["ratio"] > 0 for line in found["lines"]))
        self.assertEqual(sum(found["summary"][word] for word in ("SLOWER", "FASTER", "SAME", "UNCLEAR")), 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
