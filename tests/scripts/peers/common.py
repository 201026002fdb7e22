"""What the peers' tests share: where things are, running a script, documents, the schema's validator."""

import contextlib
import functools
import io
import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("WARPMETER_SOURCE") or pathlib.Path(__file__).resolve().parents[3])
HERE = pathlib.Path(__file__).resolve().parent
PEERS = SOURCE / "scripts" / "peers"
PYTORCH_ATTENTION = PEERS / "pytorch_attention"
SIDE_BY_SIDE = PEERS / "side_by_side"
ATTN_BENCH = os.environ.get("ATTN_BENCH", "")
SCHEMA_PYTHON = os.environ.get("WARPMETER_SCHEMA_PYTHON") or sys.executable

sys.path[:0] = [str(PEERS), str(SOURCE / "scripts" / "lib"), str(SOURCE / "tests" / "scripts")]
# For the tests, whose own imports come before they can say where it is.
import documentation  # noqa: E402, F401


def run(*command, timeout=600, **keywords):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=timeout, stdin=subprocess.DEVNULL, **keywords)


def peer(*arguments, **keywords):
    return run(sys.executable, PYTORCH_ATTENTION, *arguments, **keywords)


def peer_here(*arguments):
    """pytorch_attention within this process, for what ends before torch is needed."""
    from warpmeter_peers.attention_case import AttentionTool
    from warpmeter_peers.sweep import run_tool

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_tool(AttentionTool(), ["pytorch_attention", *arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def fake_peer(*arguments, plan=None, **keywords):
    """tests/scripts/peers/fake_peer.py, with a torch that is none; `plan` says what its rows do."""
    environment = dict(os.environ, PYTHONPATH=str(HERE / "fake_torch"), FAKE_PLAN=json.dumps(plan or {}))
    return run(sys.executable, HERE / "fake_peer.py", *arguments, env=environment, **keywords)


def strict(text):
    return json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))


@functools.lru_cache
def has_schema_python():
    return run(SCHEMA_PYTHON, "-c", "import jsonschema").returncode == 0


def schema_problems(*paths):
    result = run(SCHEMA_PYTHON, SOURCE / "tests" / "reports" / "validate_schema.py", *paths)
    return result.stdout + result.stderr
