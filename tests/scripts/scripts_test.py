#!/usr/bin/env python3
"""scripts/run and scripts/test: usage, bad usage, where packages are missing, and the verdict of tests that fail."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])


def run(script, *arguments, environment=None):
    return subprocess.run([str(SOURCE / "scripts" / script), *arguments], capture_output=True, text=True, check=False,
                          timeout=600, env=environment)


class Usage(unittest.TestCase):
    def test_help(self):
        for script in ("run", "test"):
            result = run(script, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Usage: scripts/" + script, result.stdout)
        self.assertIn("attn_bench", run("run", "--help").stdout)

    def test_bad_usage(self):
        for script, arguments, words in (("run", ["atn_bench"], ["atn_bench", "attn_bench"]), ("run", [], ["Usage"]),
                                         ("test", ["--preset", "fast"], ["fast", "release"]),
                                         ("test", ["--preset"], ["--preset"]),
                                         ("test", ["-j1", "--agian"], ["--agian", "--help"]),
                                         ("test", ["-R", "attention", "-y"], ["-y"])):
            with self.subTest(script=script, arguments=arguments):
                result = run(script, *arguments)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_missing_packages_are_named_where_they_may_not_be_installed(self):
        """With a dpkg-query that knows nothing, no sudo and a user id that is not root."""
        with tempfile.TemporaryDirectory() as folder:
            def fake(name, body):
                path = pathlib.Path(folder) / name
                path.write_text("#!/bin/sh\n" + body + "\n")
                path.chmod(0o755)
            fake("dpkg-query", "exit 1")
            fake("apt-get", "echo apt-get was called >&2; exit 1")
            fake("id", "echo 1000")
            fake("sudo", "exit 1")
            environment = dict(os.environ, PATH=folder + ":" + os.environ["PATH"])
            result = subprocess.run([str(SOURCE / "scripts/run"), "attn_bench"], capture_output=True, text=True,
                                    check=False, timeout=600, env=environment, stdin=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 1)
            self.assertIn("libopenblas-dev", result.stderr)
            self.assertIn("apt-get install", result.stderr)
            self.assertNotIn("apt-get was called", result.stderr)

    def optional(self, folder, apt_get, apt_cache="echo Package: $2", user=0):
        """What ensure_optional_packages says and asks of apt-get where two packages are missing."""
        log = pathlib.Path(folder) / "log"
        for name, body in (("dpkg-query", "exit 1"), ("id", f"echo {user}"), ("sudo", "exit 1"),
                           ("find", "echo one_Packages"), ("apt-cache", apt_cache),
                           ("apt-get", f"echo \"$@\" >>{log}; {apt_get}")):
            path = pathlib.Path(folder) / name
            path.write_text("#!/bin/sh\n" + body + "\n")
            path.chmod(0o755)
        command = f"set -o pipefail; . {SOURCE}/scripts/lib/common.sh; ensure_optional_packages one two; echo went on"
        result = subprocess.run(["bash", "-u", "-c", command], capture_output=True, text=True, check=False, timeout=600,
                                env=dict(os.environ, PATH=folder + ":" + os.environ["PATH"]), stdin=subprocess.DEVNULL)
        self.assertEqual((result.returncode, result.stdout), (0, "went on\n"))
        return result.stderr, log.read_text() if log.exists() else ""

    def test_optional_packages_are_installed_or_named(self):
        with tempfile.TemporaryDirectory() as folder:
            said, asked = self.optional(folder, "exit 0")
            self.assertEqual(said, "Installing: one two\n")
            self.assertEqual(asked, "".join(f"install -y --no-install-recommends {name}\n" for name in ("one", "two")))
        with tempfile.TemporaryDirectory() as folder:
            said, _ = self.optional(folder, 'case "$*" in *two) exit 100 ;; esac')
            self.assertIn("Not installed, so that what needs it is left out: two\n", said)
        with tempfile.TemporaryDirectory() as folder:
            # More than a pipe holds, of which the first line would do: the writer must not be cut off.
            said, asked = self.optional(folder, "exit 0", apt_cache="echo Package: $2; seq 100000")
            self.assertEqual((said, len(asked.splitlines())), ("Installing: one two\n", 2))
        with tempfile.TemporaryDirectory() as folder:
            said, asked = self.optional(folder, "exit 0", apt_cache="exit 100")
            self.assertIn("left out: one two\n", said)
            self.assertEqual(asked, "")
        with tempfile.TemporaryDirectory() as folder:
            said, asked = self.optional(folder, "exit 0", user=1000)
            self.assertEqual((said, asked), ("Not installed, so that what needs it is left out: one two\n", ""))


class Verdict(unittest.TestCase):
    """run_tests over a build folder of three tests: one passes, one fails the first time, one always."""

    def verdict(self, again, *tests):
        bodies = {"fine": "exit 0",
                  "once": "[ -e seen ] && exit 0; touch seen; "
                          "echo 'a.cpp:3: Failure'; echo '  two is not three'; exit 1",
                  "broken": "echo 'b.cpp:4: Failure'; echo '  one is not two'; seq 100; exit 1"}
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "CTestTestfile.cmake").write_text("".join(
                f'add_test({name} "sh" "-c" [=[{bodies[name]}]=])\n' for name in tests))
            command = (f". {SOURCE}/scripts/lib/common.sh; . {SOURCE}/scripts/lib/ctest.sh; "
                       f"run_tests {folder} {again} -j2")
            return subprocess.run(["bash", "-u", "-c", command], capture_output=True, text=True, check=False,
                                  timeout=600, cwd=folder)

    def test_all_pass(self):
        result = self.verdict("yes", "fine")
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_what_fails_once_is_named_and_passes_only_when_asked(self):
        result = self.verdict("yes", "fine", "once")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertTrue(result.stderr.endswith("(unstable, where not above too):\n  once\n"), result.stderr)
        self.assertIn("two is not three", result.stderr)
        result = self.verdict("no", "fine", "once")
        self.assertEqual(result.returncode, 8)
        self.assertIn("--- once\n  a.cpp:3: Failure\n    two is not three\n", result.stderr)

    def test_what_fails_twice_fails_and_its_reason_comes_last(self):
        result = self.verdict("yes", "fine", "broken", "once")
        self.assertEqual(result.returncode, 8)
        last = result.stderr[result.stderr.rindex("--- broken"):]
        self.assertIn("one is not two", last)
        self.assertNotIn("two is not three", last)
        self.assertLess(len(last.splitlines()), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
