#!/usr/bin/env python3
"""Pages of scripts/report in a headless browser: drawn, readable on a phone and in the dark, silent, off the network.

Skips, saying so, where there is no Chromium. WARPMETER_SCREENSHOTS=FOLDER keeps what it saw.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser  # noqa: E402
import report_samples  # noqa: E402

#: Widths in CSS pixels: the narrowest phone that is around, a usual one, a tablet, a screen.
WIDTHS = (320, 375, 768, 1400)

QUESTIONS = pathlib.Path(__file__).with_name("page_questions.js").read_text(encoding="utf-8")


@unittest.skipUnless(browser.find(), "no Chromium or Chrome on the PATH, and WARPMETER_BROWSER names none")
class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        paths = report_samples.write(cls.folder)
        paths["sample"] = SOURCE / "tests/reports/golden/sample.json"
        both = [paths["attention"], cls.folder / "cpu.json"]
        both[1].write_text(json.dumps(report_samples.attention(device={"cpu": "Xeon", "cores": 16, "isa": "avx512"})))
        cls.pages = {name: cls.made(name, path) for name, path in paths.items()}
        cls.pages["both"] = cls.made("both", *both, paths["collectives"])
        cls.browser = browser.Browser(browser.find())
        cls.addClassCleanup(cls.browser.close)
        cls.seen = {}
        for name in cls.pages:
            for width in WIDTHS:
                for dark in (False, True):
                    cls.open(name, width=width, dark=dark)
                    cls.seen[name, width, dark] = {
                        "complaints": cls.browser.complaints(),
                        "requests": cls.browser.requests(),
                        **cls.browser.evaluate(QUESTIONS),
                    }

    @classmethod
    def made(cls, name, *files):
        page = cls.folder / (name + ".html")
        command = [sys.executable, str(SOURCE / "scripts/report"), *map(str, files), "-o", str(page)]
        subprocess.run(command, check=True, timeout=600)
        return page

    @classmethod
    def open(cls, name, **look):
        cls.browser.look(**look)
        cls.browser.open(str(cls.pages[name]))
        if os.environ.get("WARPMETER_SCREENSHOTS"):
            words = [name, *(f"{key}-{value}" for key, value in look.items())]
            path = os.path.join(os.environ["WARPMETER_SCREENSHOTS"], "_".join(words) + ".png")
            cls.browser.screenshot(path, whole=True)

    def looks(self):
        """Every look at every page: its name and what was seen. A failure says which."""
        for (name, width, dark), seen in self.seen.items():
            yield name, width, dark, seen

    def test_silent_and_off_the_network(self):
        for name, width, dark, seen in self.looks():
            with self.subTest(page=name, width=width, dark=dark):
                self.assertEqual(seen["complaints"], [])
                self.assertEqual(seen["requests"], ["file://" + str(self.pages[name])])

    def test_the_page_never_scrolls_sideways(self):
        for name, width, dark, seen in self.looks():
            with self.subTest(page=name, width=width, dark=dark):
                self.assertEqual(seen["inner"], width)
                self.assertLessEqual(seen["scrolled"], width)
                self.assertLessEqual(seen["scrolled_opened"], width)

    def test_every_plot_is_drawn(self):
        # Two phases in time and speed and three of memory, in four panels each, and a roofline a dtype; the CPU of
        # "both" has no measured ceilings and so no rooflines.
        plots = {"attention": 30, "collectives": 4, "model": 4, "sample": 15, "both": 28 + 30 + 4}
        # A point for every figure that has a chart: forward and backward twice more in the roofline.
        charted = ("fwd_ms", "bwd_ms", "fwd_tflops", "bwd_tflops", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
                   "bwd_peak_mem_mib", "fwd_tflops", "bwd_tflops")  # fmt: skip
        rows = report_samples.attention()["rows"]
        points = sum(row.get(name) is not None for row in rows for name in charted)
        for name, width, dark, seen in self.looks():
            with self.subTest(page=name, width=width, dark=dark):
                self.assertEqual(seen["plots"], plots[name])
                self.assertEqual(seen["bad_plots"], 0)
                if name == "attention":
                    self.assertEqual(seen["marks"], points)

    def test_text_is_readable(self):
        for name, width, dark, seen in self.looks():
            with self.subTest(page=name, width=width, dark=dark):
                self.assertEqual(seen["bad_texts"], [])
                ratio, where = seen["contrast"]
                self.assertGreaterEqual(ratio, 4.5, where)
                self.assertGreaterEqual(seen["smallest"], 8)

    def test_light_and_dark_differ(self):
        for name in self.pages:
            self.assertNotEqual(self.seen[name, 375, False]["ground"], self.seen[name, 375, True]["ground"])

    def test_by_keyboard(self):
        """The first stop leads past the navigation; every box that scrolls can be reached, and says what it is."""
        self.open("attention", width=375)
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        self.assertEqual(self.browser.evaluate("document.activeElement.textContent"), "Skip to the results")
        self.assertGreaterEqual(self.browser.evaluate("document.activeElement.getBoundingClientRect().left"), 0)
        unreachable = """[...document.querySelectorAll('*')].filter(node => node.scrollWidth > node.clientWidth + 1
            && getComputedStyle(node).overflowX === 'auto' && !(node.tabIndex === 0 && node.getAttribute('aria-label'))
            && !node.querySelector('a')).length"""
        self.assertEqual(self.browser.evaluate(unreachable), 0)
        unnamed = """[...document.querySelectorAll('svg.plot')].filter(plot => plot.getAttribute('role') !== 'img' ||
            !plot.getAttribute('aria-labelledby').split(' ').every(id =>
            document.getElementById(id).textContent)).length"""
        self.assertEqual(self.browser.evaluate(unnamed), 0)

    def test_copy_buttons(self):
        self.open("attention", width=1400)
        commands = self.browser.evaluate("document.querySelectorAll('.cmd').length")
        self.assertEqual(commands, 61)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.cmd button').length"), commands)
        copied = self.browser.evaluate("""new Promise(done => {
            const clipboard = {writeText: text => (done(text), Promise.resolve())};
            Object.defineProperty(navigator, 'clipboard', {value: clipboard});
            document.querySelector('#provenance .cmd button').click();
        })""")
        self.assertEqual(copied, "build/bin/attn_bench --format json")

    def test_without_scripts(self):
        """Commands are text to select, and no button does nothing."""
        self.open("attention", width=375, scripts=False)
        self.addCleanup(self.browser.look, width=375)
        root = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        for selector, number in (("button", 0), ("svg.plot", 30), (".cmd code", 61)):
            found = self.browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]
            self.assertEqual(len(found), number, selector)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    import skipping

    skipping.main(verbosity=1)
