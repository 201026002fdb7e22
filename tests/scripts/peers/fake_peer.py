#!/usr/bin/env python3
"""A peer whose rows do what FAKE_PLAN says: {"2": "oom"} for that of size 2; those not named are ok.

Plans: ok, oom, error, unsupported, mismatch, lost, crash, hang, interrupt (SIGINT comes), predicted (more memory than
there is), never (known not to be supported). A size stands for its row in an isolated process too.
"""

import json
import os
import signal
import sys
import time

import common  # noqa: F401 - the peers' folder becomes importable
import torch
from warpmeter_peers import sweep
from warpmeter_peers.options import Option, Preset
from warpmeter_peers.tables import Layout
from warpmeter_peers.timing import Phase

PLAN = json.loads(os.environ.get("FAKE_PLAN", "{}"))


class Unsupported(Exception):
    pass


class Case:
    def __init__(self, size):
        self._size, self._plan = size, PLAN.get(str(size), "ok")

    def configuration(self):
        return {"impl": "fake", "size": self._size}

    def option_values(self):
        return {"--size": str(self._size)}

    def unsupported(self, settings):
        return "the fake cannot" if self._plan == "never" else None

    def predict(self):
        peak = 1 << 62 if self._plan == "predicted" else 1000
        return sweep.Predicted(peak, peak, {"fwd_flops": 10.0 * self._size})

    def run(self, session, row):
        row.figures["kernel"] = "fake_kernel"
        samples = session.sampler.measure(Phase(lambda: sum(range(1000))))
        samples.add_to(row.figures, "fwd")
        if self._plan == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nmore lines")
        if self._plan == "error":
            raise ValueError("a plain mistake\nwith a second line")
        if self._plan == "lost":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self._plan == "unsupported":
            raise Unsupported("no kernel for this")
        if self._plan == "mismatch":
            row.end("mismatch", "o is off by 1")
        if self._plan == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._plan == "hang":
            time.sleep(600)
        if self._plan == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            session.sampler.measure(Phase(lambda: None))


class FakeTool(sweep.Tool):
    name, summary, row_keys = "fake_peer", "Rows that do as they are told.", ["impl", "size"]
    layout = Layout(["impl"], ["size", "fwd_ms", "status"], ["kernel", "fwd_noise", "fwd_n"])

    def add_options(self, table):
        table.add(Option("--size", "Sizes.", "LIST", "1", "whole numbers from 1", "Configurations", row_option=True))
        table.add_presets(Preset("three", "three rows", {"--size": "1,2,3", "--steps": "2"}))

    def cases(self, table, settings):
        return [Case(size) for size in table.integers("--size", 1, 1000)]

    def list_text(self):
        return "  fake\n"


if __name__ == "__main__":
    sys.exit(sweep.run_tool(FakeTool(), sys.argv))
