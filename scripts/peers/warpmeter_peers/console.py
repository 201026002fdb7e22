"""What a run says beside its data, and how it is stopped. As tools/harness/progress_console.cpp and interrupt.cpp."""

import os
import signal
import sys

from .grammar import one_line

INTERRUPTED = 130


class Console:
    """Everything that is no data: stderr, one line each; a warning once."""

    def __init__(self, program):
        self._program, self._warned, self._status = program, set(), False
        self._terminal = sys.stderr.isatty()
        self.warnings = 0

    def line(self, text):
        self._clear()
        print(f"{self._program}: {one_line(text)}", file=sys.stderr, flush=True)

    def warning(self, text):
        if text not in self._warned:
            self._warned.add(text)
            self.warnings += 1
            self.line(f"warning: {text}")

    def block(self, text):
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def status(self, text):
        if self._terminal:
            self._clear()
            print(text[:100], end="", file=sys.stderr, flush=True)
            self._status = True

    def _clear(self):
        if self._status:
            print("\r\x1b[K", end="", file=sys.stderr)
            self._status = False


class Interrupt:
    """Set by the first SIGINT, SIGTERM or, unless it is ignored (nohup), SIGHUP; `cause` is what rows call it. A second
    SIGINT or SIGTERM ends the process at once; a terminal that goes sends several SIGHUP and insists on nothing."""

    def __init__(self):
        self.cause = ""
        self._insisted = False

    def install(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._handle)

    def _handle(self, number, _):
        self.cause = self.cause or {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP (its terminal is gone)"}.get(
            number, "Ctrl-C")
        if number == signal.SIGHUP:
            return
        if self._insisted:
            os._exit(INTERRUPTED)
        self._insisted = True

    def __call__(self):
        return bool(self.cause)
