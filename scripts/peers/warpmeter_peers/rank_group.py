"""Ranks started here, one process each, that answer a JSON object a line. What they do: rank_row.py."""

import atexit
import json
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import meeting
from .isolation import signal_text

FORM_SECONDS = 120  # importing PyTorch in many processes takes its time


class GroupLost(RuntimeError):
    """A rank has died, failed or hangs."""


class Group:
    """The ranks of one backend and size."""

    def __init__(self, backend, world_size, setup, module):
        self.backend, self.world_size, self._timeout_s = backend, world_size, setup["timeout_s"]
        self._folder = tempfile.mkdtemp(prefix="warpmeter-allreduce-")
        atexit.register(self.close)
        meeting_file = os.path.join(self._folder, "meeting")
        meeting.Meeting.create(meeting_file, world_size)
        folder = pathlib.Path(__file__).resolve().parents[1]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), str(folder.parent / "lib"),
                                                                   os.environ.get("PYTHONPATH", "")]))
        self._ranks = []
        for rank in range(world_size):
            process = subprocess.Popen([sys.executable, "-m", f"warpmeter_peers.{module}"], env=environment,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       start_new_session=True)
            self._ranks.append(process)
            self._tell(rank, {**setup, "backend": backend, "rank": rank, "world_size": world_size,
                              "store": os.path.join(self._folder, "store"), "meeting": meeting_file})
        self._answers("forming the group", FORM_SECONDS, lambda: False)

    def _tell(self, rank, what):
        try:
            self._ranks[rank].stdin.write(json.dumps(what).encode() + b"\n")
            self._ranks[rank].stdin.flush()
        except OSError:
            pass  # it has ended: seen when it should answer

    def measure(self, order, interrupted):
        for rank in range(self.world_size):
            self._tell(rank, order)
        return self._answers(order["what"], None, interrupted)

    def _answers(self, what, seconds, interrupted):
        """A line of every rank. Raises GroupLost."""
        answers, pending = [None] * self.world_size, [b""] * self.world_size
        begin = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._ranks):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while None in answers:
                for key, _ in selector.select(0.1):
                    rank = key.data
                    piece = os.read(key.fileobj.fileno(), 65536)
                    if not piece:
                        self._lost(rank, what)
                    pending[rank] += piece
                    if pending[rank].endswith(b"\n"):
                        answers[rank] = json.loads(pending[rank])
                        if "error" in answers[rank]:
                            self.close()
                            raise GroupLost(f"rank {rank}: {answers[rank]['error']}, in {what}")
                if interrupted():
                    self.close()
                    return None
                if seconds and time.monotonic() - begin > seconds:
                    late = [rank for rank, answer in enumerate(answers) if answer is None]
                    self.close()
                    raise GroupLost(f"ranks {late} did not answer within {seconds:g} s, {what}")
        return answers

    def _lost(self, rank, what):
        process = self._ranks[rank]
        status = process.wait()
        words = process.stderr.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by {signal_text(-status)}" if status < 0 else f"exited with status {status}"
        self.close()
        raise GroupLost(f"rank {rank} {how}, in {what}" + (f": {words[-1]}" if words and status > 0 else ""))

    def close(self):
        atexit.unregister(self.close)
        for rank in range(len(self._ranks)):
            self._tell(rank, {"quit": True})
        until = time.monotonic() + 0.5
        for process in self._ranks:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close() if pipe is not process.stdin else _close(pipe)
        self._ranks = []
        shutil.rmtree(self._folder, ignore_errors=True)


def _close(pipe):
    try:
        pipe.close()
    except OSError:
        pass  # what was left to write has no reader


class Groups:
    """One group at a time: formed for the first row that needs it. `module`: the ranks' program."""

    def __init__(self, setup, module):
        self._setup, self._module, self._group, self._failed = setup, module, None, {}

    def get(self, backend, world_size):
        group = self._group
        if group and (group.backend, group.world_size) == (backend, world_size):
            return group
        self.close()
        if (backend, world_size) in self._failed:
            raise GroupLost(self._failed[backend, world_size])
        try:
            self._group = Group(backend, world_size, self._setup, self._module)
        except GroupLost as error:
            self._failed[backend, world_size] = str(error)
            raise
        return self._group

    def close(self):
        if self._group:
            self._group.close()
        self._group = None
