#!/usr/bin/env python3
"""scripts/nsys_profile with a fake nsys on PATH: what it is asked for, what is printed, ranks, failures."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import documentation

SOURCE = pathlib.Path(os.environ["WARPMETER_SOURCE"])
SCRIPT = SOURCE / "scripts/nsys_profile"
sys.path.insert(0, str(SOURCE / "scripts/lib"))
from warpmeter import nsys  # noqa: E402

# Writes its arguments down, runs the tool, writes a report where it is told to (with %q{} filled in, as nsys does), and
# answers `stats` with a table. FAKE_NSYS says what else it does.
FAKE_NSYS = r"""
import json, os, re, subprocess, sys
mode = os.environ.get("FAKE_NSYS", "")
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\n")
if sys.argv[1] == "profile":
    options = [word for word in sys.argv[2:] if word.startswith("--")]
    output = next(word[9:] for word in options if word.startswith("--output="))
    output = re.sub(r"%q\{(\w+)\}", lambda m: os.environ[m.group(1)], output)
    rest = sys.argv[2:]
    while rest[0].startswith("--"):
        rest.pop(0)
    status = subprocess.call(rest)
    if mode != "no report":
        open(output + ".nsys-rep", "w").write("report")
    sys.exit(status)
report = sys.argv[sys.argv.index("--report") + 1]
assert os.path.exists(sys.argv[-1])
if mode == "old" and "_" in report:
    print(f"ERROR: Report '{report}' could not be found.")
    sys.exit(0)
if mode == "broken tables" and report == "nvtx_kern_sum":
    print("the database is locked", file=sys.stderr)
    sys.exit(1)
print("Generating SQLite file x.sqlite from x.nsys-rep")
print(f"Processing [x.sqlite] with [{report}.py]...")
print(f"\n ** Summary ({report}):\n\n Time (%)  Name\n --------  ----\n    100.0  {report}-row\n")
"""


class WithFake(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        (self.folder / "bin").mkdir()
        self.program("nsys", FAKE_NSYS)
        self.program("tool", "import sys; print('measured', *sys.argv[1:])")
        self.log = self.folder / "log"

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if name not in nsys.RANK_VARIABLES}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "FAKE_LOG": str(self.log), **more}

    def run_script(self, *arguments, **more):
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            cwd=self.folder,
            env=self.environment(**more),
        )

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


class Profile(WithFake):
    def test_what_nsys_is_asked_for(self):
        result = self.run_script("tool", "--impl", "flash", "--steps", "3")
        self.assertEqual(result.returncode, 0, result)
        profile, *stats = self.calls()
        tool = str(self.folder / "bin/tool")
        self.assertEqual(
            profile,
            [
                "profile",
                "--trace=cuda,nvtx,osrt",
                "--sample=none",
                "--cpuctxsw=none",
                "--force-overwrite=true",
                "--stats=false",
                "--show-output=true",
                "--output=tool",
                tool,
                "--impl",
                "flash",
                "--steps",
                "3",
            ],
        )
        self.assertEqual([call[:3] for call in stats], [["stats", "--report", name] for name in nsys.REPORTS])
        self.assertTrue(all(call[-1] == "tool.nsys-rep" for call in stats))

    def test_what_is_printed(self):
        result = self.run_script("tool", "--help")  # the tool's own option, not the script's
        lines = result.stdout.splitlines()
        self.assertEqual(lines[0], "measured --help")
        for name in ("nvtx_sum", "nvtx_kern_sum", "cuda_gpu_kern_sum"):
            self.assertIn(f"{name}:", lines)
            self.assertIn(f"    100.0  {name}-row", lines)
        self.assertNotIn("Processing", result.stdout)
        self.assertNotIn("Generating", result.stdout)
        self.assertEqual(result.stderr, "scripts/nsys_profile: report: tool.nsys-rep\n")
        self.assertTrue((self.folder / "tool.nsys-rep").exists())

    def test_a_range(self):
        self.run_script("--range", "ATTN_FLASH_FWD", "-o", "fwd.nsys-rep", "tool")
        profile = self.calls()[0]
        for word in (
            "--capture-range=nvtx",
            "--nvtx-capture=ATTN_FLASH_FWD",
            "--capture-range-end=stop",
            "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
            "--output=fwd",
        ):
            self.assertIn(word, profile)
        self.assertTrue((self.folder / "fwd.nsys-rep").exists())

    def test_memory(self):
        self.run_script("--memory", "tool")
        self.assertIn("--cuda-memory-usage=true", self.calls()[0])

    def test_ranks_write_a_file_each(self):
        for variable in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"):
            for rank in ("0", "3"):
                result = self.run_script("tool", **{variable: rank})
                self.assertEqual(result.returncode, 0, result)
                self.assertIn(f"--output=tool_rank%q{{{variable}}}", self.calls()[-4])
                self.assertTrue((self.folder / f"tool_rank{rank}.nsys-rep").exists())
                self.assertEqual(self.calls()[-1][-1], f"tool_rank{rank}.nsys-rep")
        # Open MPI says more than what srun passes on.
        self.run_script("tool", SLURM_PROCID="7", OMPI_COMM_WORLD_RANK="1")
        self.assertTrue((self.folder / "tool_rank1.nsys-rep").exists())

    def test_a_name_with_the_rank_in_it(self):
        self.run_script("-o", "r%q{RANK}_mine", "tool", RANK="2")
        self.assertTrue((self.folder / "r2_mine.nsys-rep").exists())

    def test_a_program_of_the_suite_by_name(self):
        if not (SOURCE / "build/bin/attn_bench").exists():
            self.skipTest("build/bin has no attn_bench")
        result = self.run_script("--dry-run", "attn_bench", "--list")
        self.assertIn(str(SOURCE / "build/bin/attn_bench") + " --list", result.stdout)

    def test_dry_run_runs_nothing(self):
        result = self.run_script("--dry-run", "tool", "a b")
        self.assertEqual((result.returncode, result.stderr, self.calls()), (0, "", []))
        self.assertEqual(len(result.stdout.splitlines()), 4)
        self.assertIn("'a b'", result.stdout)


class Readme(WithFake):
    def test_its_commands(self):
        self.program("attn_bench", "")
        commands = documentation.commands("scripts/nsys_profile")
        self.assertTrue(commands)
        for command in commands:
            result = self.run_script("--dry-run", *shlex.split(command)[1:])
            self.assertEqual((result.returncode, result.stderr), (0, ""), command)
            self.assertIn("attn_bench --impl flash", result.stdout)


class Failures(WithFake):
    def test_without_nsys_one_line_and_3(self):
        (self.folder / "bin/nsys").unlink()
        elsewhere = [place for place in nsys.USUAL_PLACES if os.access(place, os.X_OK)]
        for arguments in (["tool"], ["--nsys", "no-such-nsys", "tool"]):
            if arguments == ["tool"] and (elsewhere or self.on_path_besides()):
                continue
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stdout), (3, ""))
            self.assertRegex(result.stderr, r"\Ascripts/nsys_profile: [\w-]*nsys was not found: install [^\n]+\n\Z")

    def on_path_besides(self):
        return any(os.access(os.path.join(folder, "nsys"), os.X_OK) for folder in os.environ["PATH"].split(":"))

    def test_bad_usage(self):
        for arguments, word in (
            ([], "TOOL"),
            (["--nonsense", "tool"], "--nonsense"),
            (["--range", "a@b", "tool"], "--range"),
            (["no-such-tool"], "no-such-tool"),
            (["-o", "nowhere/x", "tool"], "nowhere"),
        ):
            result = self.run_script(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertRegex(result.stderr, r"\Ascripts/nsys_profile: [^\n]+\n\Z")
            self.assertIn(word, result.stderr)
        self.assertEqual(self.calls(), [])

    def test_the_tools_status_is_kept(self):
        self.program("tool", "import sys; sys.exit(7)")
        result = self.run_script("tool")
        self.assertEqual(result.returncode, 7)
        self.assertIn("ended with status 7", result.stderr)
        self.assertIn("nvtx_sum:", result.stdout)

    def test_no_report(self):
        (self.folder / "tool.nsys-rep").write_text("an older run's")
        result = self.run_script("tool", FAKE_NSYS="no report")
        self.assertEqual(result.returncode, 1)
        self.assertIn("wrote no report", result.stderr)
        result = self.run_script("--range", "NOTHING", "tool", FAKE_NSYS="no report")
        self.assertIn("was there a range 'NOTHING'?", result.stderr)

    def test_a_table_that_fails(self):
        result = self.run_script("tool", FAKE_NSYS="broken tables")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no table nvtx_kern_sum: the database is locked", result.stderr)
        self.assertIn("cuda_gpu_kern_sum-row", result.stdout)

    def test_an_older_nsys_with_other_names(self):
        result = self.run_script("tool", FAKE_NSYS="old")
        self.assertEqual(result.returncode, 0, result)
        for name in ("nvtxsum-row", "nvtxkernsum-row", "gpukernsum-row"):
            self.assertIn(name, result.stdout)

    def test_ctrl_c_goes_to_the_tool_and_the_tables_still_come(self):
        self.program(
            "tool",
            "import signal, sys, time\n"
            "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"
            "print('ready', flush=True)\n"
            "time.sleep(30)",
        )
        # The fake ends as nsys does: it waits for the tool, then writes its report.
        self.program(
            "nsys",
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            + FAKE_NSYS.replace(
                "subprocess.call(rest)",
                "subprocess.call(rest, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))",
            ),
        )
        with subprocess.Popen(
            [sys.executable, str(SCRIPT), "tool"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
            start_new_session=True,
        ) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130)
        self.assertIn("nvtx_sum-row", out)

    def test_help(self):
        result = self.run_script("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for text in ("TOOL [ARGS...]", "--range", "Exit status", "mpirun"):
            self.assertIn(text, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
