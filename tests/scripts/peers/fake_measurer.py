#!/usr/bin/env python3
"""Stands for attn_bench and for its peer: writes a result file without measuring. Called by side_by_side_test.py.

FAKE_LOG gets a line a call: the arguments and OMP_NUM_THREADS. FAKE_MS holds the times by implementation, one after
another call by call; FAKE_EXIT the exit status of calls by their number; FAKE_GPU the settings of calls on a GPU.
"""

import json
import os
import pathlib
import sys

arguments = sys.argv[1:]
log = pathlib.Path(os.environ["FAKE_LOG"])
calls = len(log.read_text().splitlines()) if log.exists() else 0
with log.open("a") as file:
    file.write(json.dumps([pathlib.Path(sys.argv[0]).name, arguments, os.environ.get("OMP_NUM_THREADS")]) + "\n")
code = json.loads(os.environ.get("FAKE_EXIT", "{}")).get(str(calls + 1), 0)
if code == 2:
    print("fake: --seq-len 'x': not a whole number", file=sys.stderr)
    sys.exit(code)
print("a table that nobody wants")
names = arguments[arguments.index("--impl") + 1].split(",") if "--impl" in arguments else ["one", "two"]
times = json.loads(os.environ.get("FAKE_MS", "{}"))
rows = [{"impl": name, "dtype": "fp32", "seq_len": 64, "fwd_ms": times.get(name, [1.0] * 9)[calls], "status": "ok",
         "reason": None, "rerun": "fake"} for name in names]
device, settings = {"cpu": os.environ.get(f"FAKE_CPU_{calls + 1}", "EPYC"), "cores": 2}, {}
if "FAKE_GPU" in os.environ:
    device, settings = {"name": "H200", "sm": 90, "memory_mib": 1}, json.loads(os.environ["FAKE_GPU"])[calls]
document = {"schema": "warpmeter/1", "tool": "fake", "version": {}, "argv": ["fake"], "started_at": "", "libraries": {},
            "device": device, "settings": settings, "row_keys": ["impl", "dtype", "seq_len"], "rows": rows,
            "summary": {}}
pathlib.Path(arguments[arguments.index("-o") + 1]).write_text(json.dumps(document))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
