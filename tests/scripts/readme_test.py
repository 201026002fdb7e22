#!/usr/bin/env python3
"""The README against the program: the options section, every command in it, every link.

WARPMETER_UPDATE_README=1 writes the options section anew.
"""
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

TOOL = os.environ["ATTN_BENCH"]
SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
README = SOURCE / "README.md"
SECTION = re.compile(r"(<!-- options of attn_bench:[^\n]*-->\n)(.*?)(<!-- end of options -->)", re.DOTALL)


def run(arguments, **keywords):
    return subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, timeout=60, **keywords)


class Readme(unittest.TestCase):
    def test_options_section(self):
        text = README.read_text()
        match = SECTION.search(text)
        self.assertIsNotNone(match)
        expected = "\n" + run(["--help-markdown"]).stdout.strip() + "\n\n"
        if os.environ.get("WARPMETER_UPDATE_README"):
            README.write_text(SECTION.sub(lambda m: m.group(1) + expected + m.group(3), text))
            return
        self.assertEqual(match.group(2), expected)

    def test_every_command_is_accepted(self):
        commands = []
        for block in re.findall(r"```bash\n(.*?)```", README.read_text(), re.DOTALL):
            commands += [line for line in block.splitlines() if line.startswith("scripts/run attn_bench")]
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
        prose = re.sub(r"```.*?```", "", README.read_text(), flags=re.DOTALL)  # C++ lambdas look like links
        links = re.findall(r"\]\(([^)#]+)\)", prose)
        self.assertTrue(links)
        for link in links:
            if "://" not in link:
                self.assertTrue((SOURCE / link).exists(), link)


if __name__ == "__main__":
    unittest.main(verbosity=2)
