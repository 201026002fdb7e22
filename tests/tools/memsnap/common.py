"""What memsnap's tests share: the programs, calling them, a folder for each test."""

import os
import pathlib
import subprocess
import tempfile
import unittest

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
