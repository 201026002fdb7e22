#!/usr/bin/env python3
"""The commit that a build carries: right, kept up to date, absent without git, and no reason to compile again."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.environ["PROVENANCE_SCRIPT"]
CMAKE = os.environ["CMAKE_COMMAND"]
GIT = shutil.which("git")


class Provenance(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve() / "a project"
        self.root.mkdir()
        (self.root / "file").write_text("1")
        self.out = pathlib.Path(folder.name) / "git.hpp"

    def git(self, *arguments):
        command = [GIT, "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def header(self, source=None):
        subprocess.run([CMAKE, f"-DSOURCE={source or self.root}", f"-DOUT={self.out}", "-P", SCRIPT], check=True,
                       capture_output=True)
        return self.out.read_text()

    def commit(self):
        self.git("init", "-q")
        self.git("add", "file")
        self.git("commit", "-q", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def test_a_tarball_has_no_commit(self):
        self.assertIn('#define WM_GIT_SHA ""', self.header())

    @unittest.skipUnless(GIT, "git is not installed")
    def test_a_checkout_has_its_commit_and_says_when_it_was_changed(self):
        sha = self.commit()
        self.assertIn(f'#define WM_GIT_SHA "{sha}"', self.header())
        self.assertIn("#define WM_GIT_DIRTY false", self.header())
        (self.root / "new").write_text("not tracked")
        self.assertIn("#define WM_GIT_DIRTY false", self.header())
        (self.root / "file").write_text("2")
        self.assertIn("#define WM_GIT_DIRTY true", self.header())

    @unittest.skipUnless(GIT, "git is not installed")
    def test_the_header_is_touched_only_when_it_changes(self):
        self.commit()
        self.header()
        os.utime(self.out, (1, 1))
        self.header()
        self.assertEqual(self.out.stat().st_mtime, 1)
        (self.root / "file").write_text("2")
        self.header()
        self.assertGreater(self.out.stat().st_mtime, 1)

    @unittest.skipUnless(GIT, "git is not installed")
    def test_another_projects_checkout_around_it_is_not_its_own(self):
        self.commit()
        inner = self.root / "unpacked"
        inner.mkdir()
        self.assertIn('#define WM_GIT_SHA ""', self.header(inner))

    @unittest.skipUnless(GIT, "git is not installed")
    def test_a_repository_without_commits_has_none(self):
        self.git("init", "-q")
        self.assertIn('#define WM_GIT_SHA ""', self.header())


if __name__ == "__main__":
    unittest.main()
