"""One configuration in a process of its own, so that a crash or a lost device costs one row. As
tools/harness/isolation.cpp."""

import json
import signal
import subprocess
import time

_WORDS = {"SIGSEGV": "segmentation fault", "SIGABRT": "abort", "SIGBUS": "bus error", "SIGFPE": "arithmetic error",
          "SIGILL": "illegal instruction"}


def signal_text(number):
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} ({_WORDS[name]})" if name in _WORDS else name


def run_isolated(command, timeout_s, interrupt):
    """(the child's document or None, the status and the reason of a row that it did not finish)."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    begin, asked_to_stop, status = time.monotonic(), None, "crashed"
    while True:
        try:
            text, _ = child.communicate(timeout=0.1)
            break
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if status == "crashed" and timeout_s and now - begin >= timeout_s:
            status = "timeout"
            child.kill()
        elif status == "crashed" and interrupt():
            # From a terminal it has had the signal as well; a second one ends it where it is.
            status, asked_to_stop = "interrupted", now
        elif asked_to_stop and now - asked_to_stop > 5:
            child.kill()
    document = None
    if text.endswith("}\n"):
        try:
            document = json.loads(text)
        except ValueError:
            document = None
    if status == "timeout":
        return None, status, f"not finished after {timeout_s:g} s (--row-timeout)"
    if status == "interrupted":
        return document, status, interrupt.cause
    if child.returncode < 0:
        return document, status, f"its process was killed by {signal_text(-child.returncode)}"
    return document, status, f"its process exited with status {child.returncode}"
