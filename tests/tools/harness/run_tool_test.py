#!/usr/bin/env python3
"""run_tool as a process, on a tool whose rows do what they are told: statuses, exit statuses, files, signals.

Over 600 lines: every way in which a run can end stands here beside the others, on one set of helpers.
"""
import json
import os
import pathlib
import pty
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = os.environ["FAKE_TOOL"]
VALIDATE = shlex.split(os.environ.get("WARPMETER_VALIDATE", ""))
# A sanitizer would turn signals into exits; what is tested are the signals.
for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
    os.environ[name] = ":".join(filter(None, [os.environ.get(name), "handle_segv=0:handle_abort=0"]))

BASE = ["--device", "cpu"]
#: Seconds after which something is taken to hang; rows that hang do so for twice as long. A busy machine may take its
#: time.
HANG = 300
documents = []  # every JSON document seen, validated at the end


def strict(text):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def run(*arguments, **keywords):
    keywords.setdefault("timeout", HANG)
    return subprocess.run([TOOL, *BASE, *arguments], capture_output=True, text=True, check=False, **keywords)


def measure(*arguments, **keywords):
    """The JSON document on stdout and the finished process."""
    result = run(*arguments, "--format", "json", **keywords)
    document = strict(result.stdout)
    documents.append(result.stdout)
    return document, result


def statuses(document):
    return [row["status"] for row in document["rows"]]


def own_lines(stderr):
    """What the tool itself said, without warnings about this machine or build."""
    about_machine = ("cores may be used", "container allows", "other programs", "debug build", "has sanitizers")
    return [line for line in stderr.splitlines() if not any(text in line for text in about_machine)]


def wait_for(condition, seconds=HANG):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def signal_is_pending(pid, number):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in status.splitlines()
               if line.startswith(("SigPnd:", "ShdPnd:")))


def sleeps(pid):
    """Whether it waits for something that is no disk."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        marks = tempfile.TemporaryDirectory()
        self.addCleanup(marks.cleanup)
        self.hangs = pathlib.Path(marks.name, "hangs")
        os.environ["FAKE_TOOL_HANGS"] = str(self.hangs)
        self.addCleanup(os.environ.pop, "FAKE_TOOL_HANGS")

    def hanging(self):
        """The process that hangs, once there is one."""
        def said():
            text = self.hangs.read_text() if self.hangs.exists() else ""
            return int(text) if text.endswith("\n") else None
        return wait_for(said)

    def path(self, name):
        return str(self.folder / name)


class Actions(unittest.TestCase):
    def test_asked_for_text_goes_to_stdout_alone(self):
        for option, text in (("--help", "--behavior"), ("--list", "the list"), ("--print-config", "behavior"),
                             ("--version", "fake_tool (warpmeter "), ("--help-markdown", "--behavior")):
            result = run(option)
            self.assertEqual((result.returncode, result.stderr), (0, ""), option)
            self.assertIn(text, result.stdout)

    def test_version_says_where_it_comes_from(self):
        text = run("--version").stdout
        for field in ("git: ", "build: ", "compiler: ", "CUDA: ", "openblas: OpenBLAS "):
            self.assertIn(field, text)

    def test_bad_usage_is_one_line_and_nothing_is_measured(self):
        for arguments in (["--index", "0"], ["--nonsense"], ["--behavior", "dance"], ["--device", "cuda:99"],
                          ["--columns", "index,colour"], ["--resume", "/nowhere/x.json"], ["--output", "/nowhere/x.json"],
                          ["--output", "x.txt"], ["--preset", "huge"], ["--row-timeout", "3"]):
            result = subprocess.run([TOOL, *arguments], capture_output=True, text=True, check=False, timeout=HANG)
            self.assertEqual((result.returncode, result.stdout), (2, ""), (arguments, result))
            self.assertRegex(result.stderr.splitlines()[-1], r"^fake_tool: .*" + arguments[0].lstrip("-"))
            self.assertEqual(len([line for line in result.stderr.splitlines() if ": device " not in line]), 1,
                             result.stderr)

    def test_auto_says_what_it_took(self):
        result = subprocess.run([TOOL], capture_output=True, text=True, check=False, timeout=HANG)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"fake_tool: device (cpu|cuda:0) \(")

    def test_nothing_supported_is_one_line(self):
        result = run("--behavior", "unsupported", "--index", "1,2")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("nobody supports this", result.stderr)

    def test_the_default_preset_is_the_devices(self):
        document, _ = measure()
        self.assertEqual([row["index"] for row in document["rows"]], [7])
        self.assertEqual(document["settings"]["warmup"], 3)
        document, _ = measure("--preset", "gpu")
        self.assertEqual([row["index"] for row in document["rows"]], [8])


class Rows(WithFolder):
    def check(self, behavior, status, reason, code, *arguments):
        document, result = measure("--behavior", behavior, "--index", "3", *arguments)
        row = document["rows"][0]
        self.assertEqual(row["status"], status, row)
        if reason is None:
            self.assertIsNone(row["reason"])
        else:
            self.assertRegex(row["reason"], reason)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(document["summary"][status], 1)
        return row, document, result

    def both(self, behavior, status, reason, code):
        self.check(behavior, status, reason, code)
        return self.check(behavior, status, reason, code, "--isolate")[0]

    def test_ok(self):
        row = self.both("ok", "ok", None, 0)
        self.assertEqual((row["first_ms"], row["second_ms"]), (3, 30))
        self.assertEqual(row["rerun"].split()[0], "fake_tool")

    def test_out_of_memory(self):
        row = self.both("oom", "oom", r"^requested 1\.0 PiB, free .*, limit ", 0)
        self.assertIsNone(row.get("first_ms"))

    def test_predicted_not_to_fit_is_not_tried(self):
        row = self.both("huge", "oom", r"^predicted peak 1\.0 PiB, free ", 0)
        self.assertIsNone(row.get("process"))

    def test_first_phase_is_tried_and_kept(self):
        row = self.both("second_oom", "oom", r"^requested 1\.0 PiB, free ", 0)
        self.assertEqual((row["first_ms"], row.get("second_ms")), (3, None))

    def test_exceptions(self):
        self.both("exception", "error", "^it went wrong$", 1)
        self.both("multiline", "error", r"^first line\\nsecond line$", 1)
        self.both("unknown", "error", "unknown type", 1)
        self.both("device_error", "error", "^the driver refused$", 1)
        self.both("no_prediction", "error", "^too large to predict$", 1)

    def test_wrong_result_shows_no_speed(self):
        row = self.both("mismatch", "mismatch", "^largest error 0.25 at 7$", 1)
        for speed in ("first_ms", "second_ms", "second_tflops"):
            self.assertIsNone(row[speed])
        self.assertEqual(row["max_error"], 0.25)

    def test_leak_is_named_and_charged_to_its_row(self):
        document, result = measure("--behavior", "leak,ok", "--index", "3")
        self.assertEqual(statuses(document), ["error", "ok"])
        self.assertEqual(document["rows"][0]["reason"],
                         "allocated memory was 0 B before the row and is 1.0 MiB after it")
        self.assertEqual(result.returncode, 1)
        self.both("leak", "error", "1.0 MiB after", 1)

    def test_sticky_error_ends_the_sweep(self):
        document, result = measure("--behavior", "ok,sticky,unsupported,slow", "--index", "1")
        self.assertEqual(statuses(document), ["ok", "error", "unsupported", "not_run"])
        self.assertEqual(document["rows"][1]["reason"], "an illegal address was read")
        self.assertIn("device was lost in row 2", document["rows"][3]["reason"])
        self.assertEqual(result.returncode, 1)

    def test_what_later_rows_need_is_lost(self):
        document, result = measure("--behavior", "ok,lost,slow", "--index", "1")
        self.assertEqual(statuses(document), ["ok", "timeout", "not_run"])
        self.assertEqual(document["rows"][1]["reason"], "rank 3 did not come")
        self.assertEqual(document["rows"][2]["reason"],
                         "row 2 ended the run (rank 3 did not come); --isolate keeps that to one row")
        self.assertEqual(result.returncode, 1)
        document, result = measure("--behavior", "ok,lost,slow", "--index", "1", "--isolate")
        self.assertEqual(statuses(document), ["ok", "timeout", "ok"])

    def test_sticky_error_costs_one_isolated_row(self):
        document, result = measure("--behavior", "ok,sticky,slow", "--index", "1", "--isolate")
        self.assertEqual(statuses(document), ["ok", "error", "ok"])
        self.assertEqual(result.returncode, 1)

    def test_crashes_cost_one_isolated_row(self):
        document, result = measure("--behavior", "crash,late_crash,abort,kill,exit,ok", "--index", "3", "--isolate")
        rows = document["rows"]
        self.assertEqual(statuses(document), ["crashed"] * 5 + ["ok"])
        for row, text in zip(rows, (r"SIGSEGV \(segmentation fault\)", "SIGSEGV", r"SIGABRT \(abort\)", "SIGKILL",
                                    "exited with status 3")):
            self.assertRegex(row["reason"], text)
        self.assertEqual([row.get("first_ms") for row in rows], [None, 3, None, 3, None, 3])
        self.assertEqual([row.get("second_ms") for row in rows], [None] * 5 + [30])
        self.assertEqual(result.returncode, 1)
        self.assertIn("5 of 6 rows without a result: 5 crashed", result.stderr)

    def test_isolated_rows_run_in_other_processes(self):
        document, _ = measure("--index", "1,2", "--isolate")
        here, _ = measure("--index", "1,2")
        self.assertEqual(len({row["process"] for row in document["rows"]}), 2)
        self.assertEqual(len({row["process"] for row in here["rows"]}), 1)

    def test_ceilings_are_measured_once_for_all_isolated_rows(self):
        # The first row measures the read bandwidth; had the second done so again, the document would hold its figure.
        document, _ = measure("--behavior", "ceiling", "--index", "1,2", "--isolate")
        self.assertEqual(list(document["device"]["ceilings"]), ["read_gbps"])
        first, second = (row["read_gbps"] for row in document["rows"])
        self.assertGreater(first, 0)
        self.assertEqual(first, second)

    def test_timeout_ends_the_process_and_what_it_started(self):
        # The second row must be through with its process in that time, the first has its first phase done.
        document, result = measure("--behavior", "deaf,ok", "--index", "3", "--isolate", "--row-timeout", "5")
        self.assertEqual(statuses(document), ["timeout", "ok"])
        self.assertEqual(document["rows"][0]["reason"], "not finished after 5 s (--row-timeout)")
        self.assertEqual(document["rows"][0]["first_ms"], 3)
        self.assertFalse(alive(document["rows"][0]["process"]))
        self.assertEqual(result.returncode, 1)

    def test_a_grandchild_does_not_hold_the_sweep_up(self):
        document, _ = measure("--behavior", "grandchild,ok", "--index", "3", "--isolate")
        try:
            os.kill(self.hanging(), signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went with the row
        self.assertEqual(statuses(document), ["crashed", "ok"])

    def test_a_row_outlives_a_crash_on_the_way_out(self):
        document, result = measure("--behavior", "exit_crash", "--index", "3", "--isolate")
        self.assertEqual(statuses(document), ["ok"])
        self.assertRegex(result.stderr, "warning: .*SIGSEGV")

    def test_an_isolated_row_must_be_the_one_asked_for(self):
        document, result = measure("--behavior", "other_config", "--index", "3", "--isolate")
        self.assertEqual(statuses(document), ["error"])
        self.assertIn("another configuration", document["rows"][0]["reason"])
        self.assertEqual(document["rows"][0]["index"], 3)

    def test_warnings_come_once_and_are_counted(self):
        for isolate in ([], ["--isolate"]):
            document, result = measure("--behavior", "warn", "--index", "1,2,3", *isolate)
            self.assertEqual(result.stderr.count("fake_tool: warning: something looks odd\n"), 1)
            # Those about this machine count too; which there are is another matter from run to run.
            self.assertEqual(document["summary"]["warnings"], result.stderr.count("fake_tool: warning: "))

    def test_the_rerun_line_repeats_the_row(self):
        document, _ = measure("--index", "5", "--kib", "8", "--seed", "11", "--memory-limit", "64MiB")
        line = shlex.split(document["rows"][0]["rerun"])
        result = subprocess.run([TOOL, *line[1:], "--format", "json"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        again = strict(result.stdout)
        self.assertEqual([again["rows"][0][key] for key in ("behavior", "index", "kib")], ["ok", 5, 8])
        for key, value in document["settings"].items():
            if key != "preset":
                self.assertEqual(again["settings"][key], value, key)

    def test_the_document_says_where_it_comes_from(self):
        document, _ = measure("--index", "1")
        self.assertEqual(document["schema"], "warpmeter/1")
        self.assertEqual(document["tool"], "fake_tool")
        self.assertEqual(document["argv"][1:], [*BASE, "--index", "1", "--format", "json"])
        self.assertRegex(document["started_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        for key in ("project", "git_sha", "dirty", "build_type", "compiler"):
            self.assertIn(key, document["version"])
        sha = document["version"]["git_sha"]
        self.assertTrue(sha is None or len(sha) == 40)
        for key in ("cpu", "cores", "isa", "memory_mib", "ceilings"):
            self.assertIn(key, document["device"])
        self.assertIn("OpenBLAS", document["libraries"]["openblas"])
        self.assertGreater(document["summary"]["seconds"], 0)


class Streams(WithFolder):
    def test_stdout_is_data_in_every_format(self):
        for form in ("md", "json", "jsonl", "csv"):
            file = self.path("out." + form)
            result = run("--behavior", "ok,exception", "--index", "1,2", "--format", form, "-o", file)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(own_lines(result.stderr), [
                "fake_tool: 2 of 4 rows without a result: 2 error; row 3 (exception index=1): it went wrong"])
            if form in ("md", "csv"):  # the others carry times of their own
                self.assertEqual(pathlib.Path(file).read_text(), result.stdout)

    def test_dry_run_measures_and_writes_nothing(self):
        file = self.path("kept.json")
        pathlib.Path(file).write_text("precious")
        document, result = measure("--behavior", "crash,unsupported,huge", "--index", "3", "--dry-run", "-o", file)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(statuses(document), ["skipped", "unsupported", "oom"])
        self.assertEqual(document["rows"][0]["first_flops"], 3e6)
        self.assertEqual(document["rows"][0]["predicted_peak_mem_mib"], 4 / 1024)
        self.assertEqual(pathlib.Path(file).read_text(), "precious")
        table = run("--index", "3", "--dry-run").stdout
        self.assertNotIn("not ok", table)
        self.assertIn("first_flops", table)

    def test_a_reader_that_leaves(self):
        process = subprocess.Popen([TOOL, *BASE, "--behavior", "slow", "--index", "1:4000:+1", "--format", "csv"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(timeout=HANG), 1)  # thousands of rows would take longer: nobody reads them
        self.assertIn("stdout was closed by its reader", error)

    def test_a_reader_that_leaves_does_not_stop_the_files(self):
        file = self.path("all.json")
        process = subprocess.Popen([TOOL, *BASE, "--index", "1:20:+1", "--format", "csv", "-o", file],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=HANG), 1)
        self.assertEqual(len(strict(pathlib.Path(file).read_text())["rows"]), 20)

    def test_stdout_that_is_full(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, *BASE, "--index", "1"], stdout=full, stderr=subprocess.PIPE, text=True,
                                    check=False, timeout=HANG)
        self.assertEqual(result.returncode, 1)
        self.assertIn("stdout cannot be written: No space left on device", result.stderr)

    def test_a_text_that_stdout_does_not_take(self):
        for option in ("--help", "--version", "--list", "--print-config", "--dry-run"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, *BASE, option], stdout=full, stderr=subprocess.PIPE, text=True,
                                        check=False, timeout=HANG)
            self.assertEqual((result.returncode, result.stderr),
                             (1, "fake_tool: stdout cannot be written: No space left on device\n"), option)

    def test_a_stdout_that_does_not_wait(self):
        """Whoever else has the pipe may have made it non-blocking; a full pipe is no error."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        filler = os.write(writer, b"x" * 1_000_000)  # as much as it holds
        process = subprocess.Popen([TOOL, *BASE, "--help"], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        self.addCleanup(process.stderr.close)
        wait_for(lambda: process.poll() is not None or sleeps(process.pid))  # for room: --help has nothing else to await
        with open(reader, "rb") as file:
            text = file.read()[filler:].decode()
        self.assertEqual(process.wait(timeout=HANG), 0, process.stderr.read())
        self.assertEqual(text, run("--help").stdout)

    def test_stdout_that_is_closed_is_not_some_other_file(self):
        file = self.path("rows.csv")
        result = subprocess.run([TOOL, *BASE, "--index", "1", "-o", file], stderr=subprocess.PIPE, text=True, check=False,
                                timeout=HANG, preexec_fn=lambda: os.close(1))
        self.assertEqual(result.returncode, 1)
        self.assertIn("stdout cannot be written: Bad file descriptor", result.stderr)
        self.assertEqual(len(pathlib.Path(file).read_text().splitlines()), 2)

    def test_a_disk_that_fills_up(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        file = self.path("rows.json")
        document, result = measure("--index", "1:40:+1", "-o", file, preexec_fn=small_files)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(document["rows"]), 40)
        self.assertEqual(len([line for line in own_lines(result.stderr) if "warning: " in line]), 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        kept = strict(pathlib.Path(file).read_text())  # as it was when there was still room
        self.assertGreater(len(kept["rows"]), 0)
        self.assertLess(len(kept["rows"]), 40)
        self.assertEqual(os.listdir(self.folder), ["rows.json"])  # nothing half-written is left behind

    def test_a_device_that_is_full(self):
        os.symlink("/dev/full", self.path("full.jsonl"))
        document, result = measure("--index", "1,2", "-o", self.path("full.jsonl"))
        self.assertEqual((len(document["rows"]), result.returncode), (2, 1))
        self.assertEqual(len([line for line in own_lines(result.stderr) if "warning: " in line]), 1, result.stderr)

    def test_progress_is_for_terminals(self):
        self.assertEqual(own_lines(run("--index", "1,2").stderr), [])
        master, slave = pty.openpty()
        environment = dict(os.environ, TERM="xterm")
        process = subprocess.Popen([TOOL, *BASE, "--behavior", "warn", "--index", "1,2"], stdout=subprocess.DEVNULL,
                                   stderr=slave, env=environment)
        os.close(slave)
        shown = b""
        try:
            while chunk := os.read(master, 65536):
                shown += chunk
        except OSError:  # EIO: the other side is closed
            pass
        os.close(master)
        self.assertEqual(process.wait(timeout=HANG), 0)
        text = shown.decode()
        self.assertIn("] 0/2  ", text)
        self.assertIn("[1/2] warn index=1: ok", text)
        # The bar is cleared before a line is written over it.
        self.assertRegex(text, r"\r\x1b\[Kfake_tool: warning: something looks odd\r\n")
        self.assertTrue(text.rstrip("\r\n").endswith("\x1b[K") or text.endswith("\r\n"))


class Interruption(WithFolder):
    def start(self, *arguments, signal_at, **keywords):
        """Starts a tool whose -o file gets `signal_at` rows before it hangs; returns when they are there."""
        file = self.path("rows.json")
        process = subprocess.Popen([TOOL, *BASE, *arguments, "-o", file, "--format", "jsonl"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **keywords)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)

        def rows():
            try:
                return len(strict(pathlib.Path(file).read_text())["rows"]) >= signal_at
            except FileNotFoundError:
                return False

        wait_for(rows)
        self.hanging()
        return process, file

    def finish(self, process, file, code):
        stdout, stderr = process.communicate(timeout=HANG)
        self.assertEqual(process.returncode, code, stderr)
        text = pathlib.Path(file).read_text()
        documents.append(text)
        document = strict(text)
        lines = [strict(line) for line in stdout.splitlines()]
        self.assertEqual([line["status"] for line in lines if line["type"] == "row"], statuses(document))
        return document

    def test_ctrl_c_keeps_what_was_measured(self):
        for number, what in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"),
                             (signal.SIGHUP, "SIGHUP (its terminal is gone)")):
            process, file = self.start("--behavior", "ok,hang,slow", "--index", "3", signal_at=1)
            process.send_signal(number)
            document = self.finish(process, file, 130)
            self.assertEqual(statuses(document), ["ok", "interrupted", "not_run"])
            self.assertEqual(document["rows"][1]["first_ms"], 3)
            self.assertEqual(document["rows"][1]["reason"], what)
            self.assertEqual(document["rows"][2]["reason"], f"{what} came before it")
            os.unlink(file)
            self.hangs.unlink()

    def test_a_session_that_ends_insists_on_nothing(self):
        """A terminal that goes sends SIGHUP several times, and SIGTERM may follow: what was measured is still kept."""
        process, file = self.start("--behavior", "ok,deaf,slow", "--index", "3", "--isolate", signal_at=1)
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
            wait_for(lambda number=number: not signal_is_pending(process.pid, number))
        document = self.finish(process, file, 130)
        self.assertEqual(statuses(document), ["ok", "interrupted", "not_run"])
        self.assertEqual(document["rows"][1]["reason"], "SIGHUP (its terminal is gone)")

    def test_nohup_survives_its_terminal(self):
        process, file = self.start("--behavior", "ok,hang", "--index", "3", signal_at=1,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        document = self.finish(process, file, 130)
        self.assertEqual(document["rows"][1]["reason"], "Ctrl-C")

    def test_ctrl_c_reaches_an_isolated_row(self):
        process, file = self.start("--behavior", "ok,hang,slow", "--index", "3", "--isolate", signal_at=1)
        child = wait_for(lambda: children_of(process.pid))[0]
        process.send_signal(signal.SIGINT)
        document = self.finish(process, file, 130)
        self.assertEqual(statuses(document), ["ok", "interrupted", "not_run"])
        self.assertEqual(document["rows"][1]["first_ms"], 3)
        self.assertFalse(alive(child))

    def test_ctrl_c_ends_an_isolated_row_that_does_not_listen(self):
        process, file = self.start("--behavior", "ok,deaf", "--index", "3", "--isolate", signal_at=1)
        child = wait_for(lambda: children_of(process.pid))[0]
        process.send_signal(signal.SIGINT)
        document = self.finish(process, file, 130)
        self.assertEqual(statuses(document), ["ok", "interrupted"])
        self.assertEqual(document["rows"][1]["first_ms"], 3)
        self.assertFalse(alive(child))

    def test_the_second_ctrl_c_ends_at_once(self):
        process, file = self.start("--behavior", "ok,deaf", "--index", "3", signal_at=1)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: not signal_is_pending(process.pid, signal.SIGINT))  # two that wait are one
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=HANG), 130)
        self.assertEqual(statuses(strict(pathlib.Path(file).read_text())), ["ok"])

    def test_killed_outright_the_file_is_whole_and_the_child_goes_too(self):
        process, file = self.start("--behavior", "ok,slow,deaf", "--index", "3", "--isolate", signal_at=2)
        child = wait_for(lambda: children_of(process.pid))[0]
        process.kill()
        process.wait(timeout=HANG)
        wait_for(lambda: not alive(child))
        self.assertEqual(statuses(strict(pathlib.Path(file).read_text())), ["ok", "ok"])
        self.assertEqual(os.listdir(self.folder), ["rows.json"])

    def test_a_child_killed_from_outside_costs_its_row(self):
        process, file = self.start("--behavior", "ok,deaf,slow", "--index", "3", "--isolate", signal_at=1)
        os.kill(wait_for(lambda: children_of(process.pid))[0], signal.SIGKILL)
        document = self.finish(process, file, 1)
        self.assertEqual(statuses(document), ["ok", "crashed", "ok"])
        self.assertRegex(document["rows"][1]["reason"], "killed by SIGKILL")
        self.assertEqual(document["rows"][1]["first_ms"], 3)


class Resume(WithFolder):
    def first_run(self, *arguments):
        self.file = self.path("before.json")
        return run(*arguments, "-o", self.file)

    def processes(self, document):
        return [row.get("process") for row in document["rows"]]

    def test_results_are_taken_over_and_failures_run_again(self):
        self.first_run("--behavior", "exception,oom,ok", "--index", "1,2")
        before = strict(pathlib.Path(self.file).read_text())
        document, result = measure("--behavior", "exception,oom,ok", "--index", "2,1,5", "--resume", self.file, "-o",
                                   self.file)
        rows = {(row["behavior"], row["index"]): row for row in document["rows"]}
        was = {(row["behavior"], row["index"]): row for row in before["rows"]}
        for key in (("ok", 1), ("ok", 2), ("oom", 1), ("oom", 2)):
            self.assertEqual(rows[key], was[key])
        self.assertNotEqual(rows["exception", 1]["process"], was["exception", 1]["process"])
        self.assertIn(f"fake_tool: --resume {self.file}: 4 of 9 rows taken over, 5 run: 3 not in it, 2 failed in it\n",
                      result.stderr)
        # The order is this run's.
        self.assertEqual([row["index"] for row in document["rows"]], [2, 1, 5] * 3)

    def test_after_an_interruption_the_rows_are_the_same(self):
        arguments = ["--behavior", "ok,mismatch,slow", "--index", "1,2,3"]
        whole, _ = measure(*arguments)
        self.first_run(*arguments)
        cut = strict(pathlib.Path(self.file).read_text())
        cut["rows"] = cut["rows"][:4]
        pathlib.Path(self.file).write_text(json.dumps(cut))
        resumed, result = measure(*arguments, "--resume", self.file)
        for document in (whole, resumed):
            for row in document["rows"]:
                row.pop("process")
        self.assertEqual(resumed["rows"], whole["rows"])
        self.assertIn("3 of 9 rows taken over", result.stderr)

    def test_jsonl_is_resumed_too(self):
        self.file = self.path("before.jsonl")
        run("--index", "1,2", "-o", self.file)
        _, result = measure("--index", "1,2,3", "--resume", self.file)
        self.assertIn("2 of 3 rows taken over, 1 run: 1 not in it", result.stderr)

    def test_other_settings_or_devices_are_not_mixed(self):
        self.first_run("--index", "1")
        for arguments, text in ((["--seed", "5"], "seed 0, now 5"), (["--steps", "3"], "steps none, now 3"),
                                (["--memory-limit", "1GiB"], "memory_limit"), (["--no-check"], "check true, now false")):
            _, result = measure("--index", "1", "--resume", self.file, *arguments)
            self.assertIn("0 of 1 rows taken over, all run: it was measured with ", result.stderr)
            self.assertIn(text, result.stderr)
        document = strict(pathlib.Path(self.file).read_text())
        document["device"]["cpu"] = "Abacus"
        pathlib.Path(self.file).write_text(json.dumps(document))
        _, result = measure("--index", "1", "--resume", self.file)
        self.assertIn("another device (cpu Abacus, now ", result.stderr)

    def test_isolation_and_formats_do_not_matter(self):
        self.first_run("--index", "1")
        _, result = measure("--index", "1", "--resume", self.file, "--isolate", "--wide")
        self.assertIn("1 of 1 rows taken over", result.stderr)

    def test_samples_asked_for_must_be_there(self):
        self.first_run("--index", "1")
        document, result = measure("--index", "1", "--resume", self.file, "--samples")
        self.assertIn("0 of 1 rows taken over", result.stderr)
        self.assertEqual(document["rows"][0]["first_samples_ms"], [1, 1, 1])

    def test_what_is_no_result_is_bad_usage(self):
        file = self.path("broken.json")
        pathlib.Path(file).write_text('{"schema": "warpm')
        result = run("--resume", file, "-o", self.path("x.json"))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("--resume", own_lines(result.stderr)[-1])

    def test_another_tools_result_is_bad_usage(self):
        """It is a mistake; and -o may name the same file, which would be lost."""
        self.first_run("--index", "1")
        other = pathlib.Path(self.file).read_text().replace('"tool": "fake_tool"', '"tool": "other_tool"')
        pathlib.Path(self.file).write_text(other)
        result = run("--index", "1", "--resume", self.file, "-o", self.file)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn(f"--resume '{self.file}': it is a result of other_tool; accepted: ", own_lines(result.stderr)[-1])
        self.assertEqual(pathlib.Path(self.file).read_text(), other)


class ManyRows(WithFolder):
    def test_rows_under_a_small_limit(self):
        file = self.path("rows.json")
        document, result = measure("--memory-limit", "4MiB", "--kib", "8,1024,8192,64", "--index", "1:50:+1", "-o",
                                   file, "--samples")
        self.assertEqual(len(document["rows"]), 200)
        for row in document["rows"]:
            fits = row["kib"] != 8192
            self.assertEqual(row["status"], "ok" if fits else "oom", row)
            if fits:  # nothing was left over from the rows before
                self.assertEqual(row["allocated_bytes"], row["kib"] * 1024)
            else:
                self.assertEqual(row["reason"], "predicted peak 8.0 MiB, free 4.0 MiB, limit 4.0 MiB")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(strict(pathlib.Path(file).read_text())["rows"], document["rows"])

    def test_isolated_rows_under_a_small_limit_and_one_child_killed_from_outside(self):
        file = self.path("rows.json")
        process = subprocess.Popen([TOOL, *BASE, "--isolate", "--memory-limit", "4MiB", "--kib", "8,8192", "--behavior",
                                    "deaf_at_77", "--index", "1:100:+1", "-o", file], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)

        def row_77_runs():
            try:
                return len(strict(pathlib.Path(file).read_text())["rows"]) == 76 and children_of(process.pid)
            except FileNotFoundError:
                return False

        victim = wait_for(row_77_runs)[0]
        self.assertEqual(self.hanging(), victim)
        os.kill(victim, signal.SIGKILL)
        error = process.communicate(timeout=HANG)[1]
        self.assertEqual(process.returncode, 1, error)
        rows = strict(pathlib.Path(file).read_text())["rows"]
        self.assertEqual([(row["kib"], row["index"]) for row in rows],
                         [(kib, index) for kib in (8, 8192) for index in range(1, 101)])
        for row in rows:
            if row["kib"] == 8192:
                self.assertEqual((row["status"], row["reason"]),
                                 ("oom", "predicted peak 8.0 MiB, free 4.0 MiB, limit 4.0 MiB"))
            elif row["index"] == 77:
                self.assertEqual(row["status"], "crashed")
                self.assertIn("killed by SIGKILL", row["reason"])
            else:
                self.assertEqual((row["status"], row["allocated_bytes"]), ("ok", 8192))
        self.assertIn("1 of 200 rows without a result: 1 crashed; row 77 (deaf_at_77 index=77 kib=8): its process was killed by",
                      error)


def tearDownModule():
    if not VALIDATE:
        print("no JSON Schema validator: documents were not validated", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for number, text in enumerate(documents):
            names.append(f"{folder}/{number}.json")
            pathlib.Path(names[-1]).write_text(text)
        result = subprocess.run([*VALIDATE, *names], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
