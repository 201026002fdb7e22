#!/usr/bin/env python3
"""The README and the pages in docs/ against the program: the options section, every command, every link.

WARPMETER_UPDATE_DOCUMENTATION=1 writes the options section anew.
"""
import os
import re
import shlex
import subprocess
import tempfile
import unittest

import documentation

TOOL = os.environ["ATTN_BENCH"]
SECTION = re.compile(r"(<!-- options of attn_bench:[^\n]*-->\n)(.*?)(<!-- end of options -->)", re.DOTALL)


def run(arguments, **keywords):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, timeout=600, **keywords)


class Documentation(unittest.TestCase):
    def test_options_section(self):
        page, = (page for page in documentation.pages() if SECTION.search(page.read_text(encoding="utf-8")))
        text = page.read_text(encoding="utf-8")
        expected = "\n" + run(["--help-markdown"]).stdout.strip() + "\n\n"
        if os.environ.get("WARPMETER_UPDATE_DOCUMENTATION"):
            page.write_text(SECTION.sub(lambda m: m.group(1) + expected + m.group(3), text))
            return
        self.assertEqual(SECTION.search(text).group(2), expected)

    def test_every_command_is_accepted(self):
        commands = documentation.commands("scripts/run attn_bench")
        self.assertGreaterEqual(len(commands), 6)
        with tempfile.TemporaryDirectory() as folder:
            for command in commands:
                arguments = shlex.split(command)[2:]
                if "--resume" in arguments:
                    saved = arguments[arguments.index("--resume") + 1]
                    first = run(["--device", "cpu", "--impl", "flash", "--seq-len", "8", "--steps", "1", "-o", saved],
                                cwd=folder)
                    self.assertEqual(first.returncode, 0, first.stderr)
                if "--dry-run" not in arguments:
                    arguments.append("--dry-run")
                with self.subTest(command=command):
                    result = run(arguments, cwd=folder)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertNotEqual(result.stdout, "")

    def test_every_link_leads_somewhere(self):
        found = 0
        for page in documentation.pages():
            # C++ lambdas look like links; of what a page shows as an image only the file counts.
            prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            for link in re.findall(r"\]\(([^)]+)\)", prose):
                if "://" in link:
                    continue
                found += 1
                target, _, section = link.partition("#")
                target = (page.parent / target).resolve() if target else page
                self.assertTrue(target.exists(), f"{page.name}: {link}")
                if section:
                    self.assertIn(section, documentation.sections(target), f"{page.name}: {link}")
        self.assertGreater(found, 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
