#!/usr/bin/env python3
"""The scripts' Python by a linter: flake8 or Ruff, whichever is here; skips where neither is."""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
#: E203 and W503 contradict the formatter; imports follow the line that makes them possible (E402).
FLAKE8 = ["-m", "flake8", "--isolated", "--max-line-length", "120", "--extend-ignore", "E203,W503,E402"]


def linter():
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-m", "flake8", "--version"], capture_output=True,
                                                     check=False).returncode == 0:
            return [python, *FLAKE8]
    ruff = shutil.which("ruff")
    return [ruff, "check"] if ruff else None


def sources():
    """Python files of scripts/ and of its tests, those without an ending too."""
    found = []
    for folder in ("scripts", "tests/scripts"):
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.is_file() and (path.suffix == ".py" or not path.suffix and path.read_bytes()[:80].startswith(b"#!")
                                   and b"python" in path.read_bytes()[:80].splitlines()[0]):
                found.append(str(path))
    return found


class Lint(unittest.TestCase):
    def test_clean(self):
        command = linter()
        if command is None:
            self.skipTest("neither flake8 nor ruff is here")
        files = sources()
        self.assertIn(str(SOURCE / "scripts/report"), files)
        result = subprocess.run([*command, *files], capture_output=True, text=True, check=False, timeout=600)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_for_the_oldest_python(self):
        """Grammar of Python 3.9, which the scripts promise."""
        import ast
        for path in sources():
            with self.subTest(path=path):
                ast.parse(pathlib.Path(path).read_text(encoding="utf-8"), path, feature_version=(3, 9))

    def test_only_the_standard_library(self):
        """Beside it the scripts import each other, matplotlib (plots), PyTorch and Triton (their peers)."""
        import ast
        if not hasattr(sys, "stdlib_module_names"):
            self.skipTest("this Python does not list its modules")
        allowed = {"warpmeter", "warpmeter_peers", "matplotlib", "torch", "triton", *sys.stdlib_module_names}
        for path in sources():
            if "/tests/" in path:
                continue
            tree = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                    [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
                for name in names:
                    self.assertIn(name.split(".")[0], allowed, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
