#!/usr/bin/env python3
"""scripts/report: golden pages and texts, its options, and files that are broken, hostile or not ours.

WARPMETER_UPDATE_GOLDEN=1 writes the golden files anew.
"""

import html.parser
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path[:0] = [str(SOURCE / "scripts/lib"), str(SOURCE / "tests/scripts"), str(pathlib.Path(__file__).parent)]
import documentation  # noqa: E402
import report_samples  # noqa: E402

GOLDEN = pathlib.Path(__file__).parent / "golden"
SAMPLE = SOURCE / "tests/reports/golden/sample.json"
#: Elements without an end tag.
VOID = {"meta", "link", "br", "img", "hr", "input"}


def report(*arguments, data=None, environment=None, cwd=None, python=sys.executable):
    return subprocess.run(
        [python, str(SOURCE / "scripts/report"), *map(str, arguments)],
        input=data,
        capture_output=True,
        check=False,
        timeout=6000,
        env=environment,
        cwd=cwd,
    )


class Page(html.parser.HTMLParser):
    """Checks that elements nest, and gathers what a test asks about."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.texts, self.attributes = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        assert len(attrs) == len(dict(attrs))
        self.attributes += [(tag, name, value) for name, value in attrs.items()]
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def made(self, *arguments, data=None, status=0):
        done = report(*arguments, data=data)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        self.assertEqual(done.stderr, b"")
        return done.stdout.decode()

    def refused(self, *arguments, data=None, words=(), status=2):
        done = report(*arguments, data=data)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, status, text)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(len(text.splitlines()), 1, text)
        self.assertTrue(text.startswith("scripts/report: "), text)
        for word in words:
            self.assertIn(word, text)

    def sample(self, name="attention", **options):
        path = self.folder / (name + ".json")
        path.write_text(json.dumps(report_samples.ALL[name](**options)))
        return path


class Golden(Case):
    def check(self, name, text):
        path = GOLDEN / name
        if os.environ.get("WARPMETER_UPDATE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8").splitlines()
        self.assertEqual(expected, text.splitlines(), f"{name}: WARPMETER_UPDATE_GOLDEN=1 writes it anew")

    def made_in(self, name, *arguments):
        """Run beside the file, so that its name is what the page says."""
        done = report(name + ".json", *arguments, cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout.decode()

    def test_pages(self):
        """Without the style and the script, whose changes are not the page's."""
        self.sample("attention", lengths=(256, 1024, 4096), dtypes=("bf16",))
        self.sample("model")
        for name in ("attention", "model"):
            text = self.made_in(name)
            text = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", text, flags=re.DOTALL)
            text = re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-", text)
            self.check(f"report_{name}.html", text.replace("><", ">\n<"))

    def test_markdown(self):
        self.sample("attention", lengths=(256, 1024, 4096), dtypes=("bf16",))
        self.sample("model")
        self.sample("collectives")
        (self.folder / "sample.json").write_bytes(SAMPLE.read_bytes())
        for name in ("attention", "model", "collectives", "sample"):
            self.check(f"report_{name}.md", self.made_in(name, "--md"))


class Content(Case):
    def test_the_page_is_well_formed_and_whole(self):
        text = self.made(self.sample())
        page = Page(text)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for link in page.links:
            self.assertIn(link[1:], page.ids)
        self.assertEqual(page.tags.count("h1"), 1)
        self.assertEqual(page.tags.count("main"), 1)
        # Two phases in time and speed, three of memory, in four panels each; a roofline a dtype.
        self.assertEqual(len(re.findall('<svg class="plot"', text)), 7 * 4 + 2)
        self.assertEqual(text.count("<title id="), text.count("<desc id="))
        for tag, name, value in page.attributes:
            self.assertFalse(name.startswith("on"), (tag, name))
            if name in ("src", "href", "action", "data"):
                self.assertTrue(value.startswith(("#", "data:,")), value)
            self.assertNotEqual(name, "style")
        self.assertNotRegex(text, r"@import|url\(|https?://")

    def test_what_was_fastest_and_what_failed(self):
        text = self.made(self.sample())
        self.assertIn(
            "attn_bench measured 60 configurations of naive, fused and flash on NVIDIA H200 on 31 January 2026: "
            "51 ok, 8 oom, 1 mismatch.",
            text,
        )
        self.assertIn("predicted peak 40.1 GiB, free 24.0 GiB", text)
        self.assertIn("fused, seq_len 256 (bf16 · d_model 128)", text)
        # 0.7 x 800 against 0.3 x 800 at the same length; in fp32 flash has a third of tf32's ceiling.
        self.assertIn("flash, 2.3x", text)
        self.assertIn("matmul tf32 / 3 138 TFLOP/s", text)

    def test_rows_without_figures_stand_at_the_top_edge(self):
        text = self.made(self.sample())
        self.assertIn("naive, seq_len 16384: oom, predicted peak 40.1 GiB, free 24.0 GiB", text)
        self.assertIn("fused, seq_len 16384: oom, backward: requested 8.0 GiB, free 1.5 GiB", text)
        forward, backward = (
            re.search(f'<h3 id="s1-{phase}-ms">.*?</div>', text, re.DOTALL).group() for phase in ("fwd", "bwd")
        )
        self.assertEqual(forward.count('class="cross'), 4 + 1)
        self.assertEqual(backward.count('class="cross'), 8 + 1)

    def test_every_rerun_line_and_the_command_are_there(self):
        text = self.made(self.sample())
        for row in report_samples.attention()["rows"]:
            self.assertIn(f"<code>{row['rerun']}</code>", text)
        self.assertIn("<code>build/bin/attn_bench --format json</code>", text)

    def test_several_files_of_several_tools(self):
        other = self.folder / "cpu.json"
        other.write_text(json.dumps(report_samples.attention(device={"cpu": "Xeon", "cores": 16, "isa": "avx512"})))
        text = self.made(self.sample("attention"), other, self.sample("collectives"), "--title", "All <of> them")
        Page(text)
        self.assertIn("<h1>All &lt;of&gt; them</h1>", text)
        self.assertIn("attn_bench measured 120 configurations of naive, fused and flash on NVIDIA H200 and Xeon", text)
        self.assertIn("<figcaption>Xeon (16 cores, avx512) · fp32 · d_model 64</figcaption>", text)
        self.assertIn("allreduce_bench: Bandwidth", text)

    def test_the_same_sweep_twice(self):
        again = self.folder / "again.json"
        changed = report_samples.attention()
        changed["version"]["git_sha"] = "f" * 40
        again.write_text(json.dumps(changed))
        text = self.made(self.sample(), again)
        self.assertIn("flash (0123456789)", text)
        self.assertIn("flash (ffffffffff)", text)

    def test_bandwidth_and_latency_against_size(self):
        text = self.made(self.sample("collectives"))
        self.assertEqual(len(re.findall('<svg class="plot"', text)), 4)
        self.assertIn(">64 KiB</text>", text)
        self.assertIn("p2p-cuda, bytes 1 KiB: 6 µs (noise 2.00%, 50 samples)", text)

    def test_an_axis_of_names(self):
        text = self.made(self.sample("model"))
        self.assertEqual(len(re.findall('<svg class="plot"', text)), 4)
        self.assertIn("fused, 2.5x", text)
        self.assertIn("naive, size xl: oom", text)

    def test_one_row_and_none(self):
        one = report_samples.attention()
        one["rows"] = one["rows"][:1]
        self.assertIn("measured 1 configuration", self.made("-", data=json.dumps(one).encode()))
        one["rows"] = []
        text = self.made("-", data=json.dumps(one).encode())
        Page(text)
        self.assertIn("There are no rows.", text)

    def test_a_debug_build_is_said(self):
        changed = report_samples.attention()
        changed["version"]["build_type"] = "Debug"
        self.assertIn("A debug build", self.made("-", data=json.dumps(changed).encode()))


class Options(Case):
    def test_stdin_to_a_file(self):
        path = self.folder / "page.html"
        data = SAMPLE.with_suffix(".jsonl").read_bytes()
        self.assertEqual(self.made("-", "-o", path, data=data), "")
        self.assertIn("<!DOCTYPE html>", path.read_text(encoding="utf-8"))
        self.assertEqual([each.name for each in self.folder.iterdir()], ["page.html"])
        self.assertEqual(path.stat().st_mode & 0o777, 0o666 & ~_umask())

    def test_the_ending_chooses_markdown(self):
        path = self.folder / "text.md"
        self.made(SAMPLE, "-o", path)
        self.assertTrue(path.read_text(encoding="utf-8").startswith("# attn_bench on NVIDIA H200\n"))

    def test_help(self):
        self.assertIn("scripts/report - -o page.html", self.made("--help"))

    def test_the_commands_of_the_readme(self):
        from warpmeter import report as module

        commands = documentation.commands("scripts/report")
        self.assertEqual(len(commands), 4)
        for command in commands:
            options = module.parse_arguments(shlex.split(command)[1:])
            self.assertTrue(options.output or options.md or options.png)

    def test_bad_usage_is_one_line(self):
        self.refused(words=["FILE"])
        self.refused("--markdown", SAMPLE, words=["--markdown"])
        self.refused("-", "-", data=b"", words=["stdin"])
        self.refused(SAMPLE, "-o", self.folder / "no" / "such" / "folder.html", words=["cannot write", "No such file"])
        self.refused("/nonexistent.json", words=["/nonexistent.json", "No such file"])

    def test_a_refused_file_leaves_the_output_alone(self):
        path = self.folder / "page.html"
        path.write_text("before")
        self.refused("-", "-o", path, data=b"{}", words=["stdin", "schema"])
        self.assertEqual(path.read_text(), "before")

    def test_a_closed_pipe(self):
        command = f"'{sys.executable}' '{SOURCE}/scripts/report' '{SAMPLE}' | head -c 100"
        done = subprocess.run(
            ["bash", "-c", "set -o pipefail; " + command], capture_output=True, check=False, timeout=600
        )
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def reading(self):
        """The script while it waits for stdin, Ctrl-C already sent."""
        process = subprocess.Popen([sys.executable, str(SOURCE / "scripts/report"), "-"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.addCleanup(process.kill)
        process.stdin.write(b" " * (1 << 20))  # more than a pipe holds: it has begun to read
        process.stdin.flush()
        self.wait_until_it_sleeps(process)
        process.send_signal(signal.SIGINT)
        self.assertIn(b"Ctrl-C again gives up", process.stderr.readline())
        return process

    def wait_until_it_sleeps(self, process):
        """In read(), that is: seen asleep several times on end."""
        asleep = 0
        for _ in range(10000):
            state = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            asleep = asleep + 1 if state == "S" else 0
            if asleep == 8:
                return
            time.sleep(0.02)
        self.fail("it never waited for stdin")

    def test_ctrl_c_is_for_the_tool_before_it(self):
        """What the tool still writes after Ctrl-C is waited for."""
        out, err = self.reading().communicate(SAMPLE.read_bytes(), timeout=600)
        self.assertEqual(err, b"")
        self.assertIn("The run was stopped early", out.decode())

    def test_a_second_ctrl_c_gives_up(self):
        process = self.reading()
        self.wait_until_it_sleeps(process)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        out, err = process.communicate()
        self.assertEqual((out, err), (b"", b""))

    def test_png_without_matplotlib(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('hidden by a test')\n")
        environment = dict(os.environ, PYTHONPATH=str(self.folder))
        done = report(SAMPLE, "--png", self.folder / "plots.png", environment=environment)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(b"apt-get install python3-matplotlib", done.stderr)
        self.assertFalse((self.folder / "plots.png").exists())

    def test_png(self):
        python = next(filter(_has_matplotlib, (sys.executable, "/usr/bin/python3")), None)
        if python is None:
            self.skipTest("no matplotlib here")
        paths = report_samples.write(self.folder)
        for name, path in paths.items():
            picture = self.folder / (name + ".png")
            done = report(path, "--png", picture, python=python)
            self.assertEqual((done.returncode, done.stdout), (0, b""), done.stderr.decode())
            self.assertTrue(picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n"))
            self.assertGreater(picture.stat().st_size, 20000)

    def test_no_bytes_that_are_no_text(self):
        done = report("-", "--title", "\udcff\udc80", data=SAMPLE.read_bytes())
        self.assertEqual(done.returncode, 0)
        done.stdout.decode("utf-8")


def _has_matplotlib(python):
    command = [python, "-c", "import matplotlib"]
    return os.path.exists(python) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Broken(Case):
    def test_every_part_of_a_file_gives_a_page_that_says_so(self):
        data = SAMPLE.with_suffix(".jsonl").read_bytes()
        for size in range(900, len(data), 1500):
            text = self.made("-", data=data[:size])
            Page(text)
            self.assertRegex(text, "breaks off|did not finish")

    def test_an_interrupted_run(self):
        text = self.made(SAMPLE)
        self.assertIn("The run was stopped early: 2 configurations not measured.", text)
        self.assertIn("interrupted", text)


class Hostile(Case):
    TEXTS = (
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '" onload="alert(1)',
        "'><svg/onload=1>",
        "]]><!--",
        "`${1}`",
        "\x00\x1b[31m\u202e",
        "\ud800",
        "&lt;b&gt;",
        "| a | <b> `` ``` * _x_ [l](javascript:1)",
    )

    def test_texts_from_a_file_stay_texts(self):
        for hostile in self.TEXTS:
            sample = report_samples.attention(lengths=(256, 512))
            for name in ("tool", "started_at"):
                sample[name] = hostile
            for name in ("version", "device", "libraries", "settings", "summary"):
                sample[name] = {**sample[name], hostile: hostile, "name": hostile}
            sample["argv"] = [hostile]
            for row in sample["rows"]:
                row.update(
                    {"impl": hostile, "dtype": hostile, "kernel": hostile, "rerun": hostile, "fwd_bound": hostile}
                )
                row.update({"status": "error", "reason": hostile} if row["seq_len"] == 512 else {})
            data = json.dumps(sample).encode()
            with self.subTest(text=hostile):
                text = self.made("-", data=data)
                page = Page(text)
                self.assertEqual(page.tags.count("script"), 1)
                self.assertEqual(page.tags.count("img"), 0)
                self.assertFalse([name for _, name, _ in page.attributes if name.startswith("on")])
                self.assertNotIn("\x00", text)
                self.assertNotIn("\x1b", text)
                self.assertNotIn("\u202e", text)
                text = self.made("-", "--md", data=data)
                outside = re.sub(r"(?ms)^(`{3,})sh\n.*?^\1$", "", text)
                self.assertNotRegex(outside, r"(?<!\\)<")

    def test_figures_that_cannot_be(self):
        for figure in (
            "-1",
            "1e999",
            "NaN",
            "-Infinity",
            "1e-320",
            "9" * 400,
            '"fast"',
            "[]",
            "{}",
            "true",
            "null",
            "0",
        ):
            data = json.dumps(report_samples.attention(lengths=(256, 512))).encode()
            for name in (
                "fwd_ms",
                "fwd_tflops",
                "fwd_flops",
                "fwd_bytes",
                "fwd_peak_mem_mib",
                "fwd_bound_share",
                "fwd_noise",
                "seq_len",
                "read_gbps",
                "matmul_fp32_tflops",
            ):
                data = re.sub(rf'"{name}": [0-9.e+-]+'.encode(), f'"{name}": {figure}'.encode(), data)
            with self.subTest(figure=figure[:20]):
                Page(self.made("-", data=data))
                self.made("-", "--md", data=data)

    def test_deep_and_wide(self):
        sample = report_samples.attention(lengths=(256,))
        deep = (
            json.dumps(sample)
            .encode()
            .replace(b'"libraries": {', b'"libraries": ' + b'{"a": ' * 900 + b"{}" + b"}" * 900 + b', "more": {')
        )
        Page(self.made("-", data=deep))
        self.refused("-", data=b"[" * 10**6, words=["stdin"])
        sample["rows"] = [
            dict(sample["rows"][0], impl=f"i{number}", dtype=f"t{number}", seq_len=number + 1) for number in range(3000)
        ]
        text = self.made("-", data=json.dumps(sample).encode())
        Page(text)
        self.assertLess(len(text), 10**7)
        self.assertIn("left out", text)

    def test_a_hundred_implementations_in_one_panel(self):
        sample = report_samples.attention(lengths=(256, 512), widths=(64,), dtypes=("bf16",))
        flash = [row for row in sample["rows"] if row["impl"] == "flash"]
        sample["rows"] = [dict(row, impl=f"variant_{number}") for number in range(100) for row in flash]
        text = self.made("-", data=json.dumps(sample).encode())
        self.assertIn("panels show 12 series, 88 more ones at most left out", text)

    def test_what_is_not_ours(self):
        for data in (
            b"",
            b"{}",
            b"[]",
            b"\x89PNG\r\n\x1a\n",
            b"impl,seq_len\n",
            b'{"schema": "warpmeter/9"}',
            b"\xff\xfe{\x00",
        ):
            self.refused("-", data=data, words=["stdin"])


if __name__ == "__main__":
    unittest.main(verbosity=1)
