"""What the name of a field says: names end in their unit (reports/schema), begin with their phase, and carry their
statistic between the two. fwd_p95_ms is the 95th percentile, in milliseconds, of the phase fwd.
"""

import re
from typing import NamedTuple, Optional

STATUSES = ("ok", "oom", "unsupported", "skipped", "mismatch", "error", "crashed", "timeout", "interrupted", "not_run")
#: Those that are results; the others make a tool exit with 1.
RESULT_STATUSES = ("ok", "oom", "unsupported", "skipped")
STATUS_MEANS = {
    "ok": "measured, and right",
    "oom": "did not fit in memory, or was predicted not to",
    "unsupported": "this build, machine or implementation cannot",
    "skipped": "left out by a rule",
    "mismatch": "the result was wrong: no speed is shown",
    "error": "an exception ended it",
    "crashed": "its process died",
    "timeout": "it took too long",
    "interrupted": "the run was stopped while it was measured",
    "not_run": "the run ended before its turn",
}

#: Seconds in a unit of time.
TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
#: Bytes in a unit of memory.
BYTE_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
#: Bytes a second in a unit of bandwidth.
BANDWIDTH_UNITS = {"gbps": 1e9, "gibps": 2**30, "GiBps": 2**30}
#: FLOP/s in a unit of speed.
SPEED_UNITS = {"gflops": 1e9, "tflops": 1e12}

_KINDS = {
    **dict.fromkeys(TIME_UNITS, "time"),
    **dict.fromkeys(BYTE_UNITS, "bytes"),
    **dict.fromkeys(BANDWIDTH_UNITS, "bandwidth"),
    **dict.fromkeys(SPEED_UNITS, "speed"),
    "flops": "flops",
    "mhz": "clock",
    "share": "share",
    "mfu": "share",
    "noise": "noise",
    "error": "error",
    "tolerance": "error",
    "speedup": "ratio",
}
#: A statistic of the samples beside the median, or what is no sample: `first`, the cold run before all others, and
#: `plain`, plain code for as many bytes.
_STATISTICS = ("mean", "min", "max", "p95", "p99", "stdev", "median", "samples", "first", "plain")

SAMPLES = re.compile(r".*_samples_(ns|us|ms|s)\Z")
#: What a field may be called: anything else in a file is left out.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}\Z")


class Field(NamedTuple):
    """A field's name taken to pieces. `kind` is time, bytes, bandwidth, speed, flops, clock, share, noise, error, ratio
    or None; `what` the words left between phase and unit ("peak_mem"); `statistic` None for the median, which needs no
    word."""

    name: str
    unit: Optional[str]
    kind: Optional[str]
    statistic: Optional[str]
    phase: str
    what: str


def parse(name):
    words = name.split("_")
    unit = words.pop() if len(words) > 1 and words[-1] in _KINDS else None
    if unit is None and name in _KINDS:
        unit, words = name, []
    kind = _KINDS.get(unit)
    if unit in ("s",) and words and words[-1] == "per":  # tokens_per_s
        words.pop()
        unit, kind = "per_s", "rate"
    if kind == "bytes" and unit == "bytes" and "mem" not in words:
        kind = "traffic"  # fwd_bytes: least bytes moved, not memory held
    statistic = None
    if words and words[-1] in _STATISTICS and (kind, words[-1]) != ("share", "plain"):
        statistic = words.pop()
        statistic = None if statistic == "median" else statistic
    if "mem" in words:
        at = words.index("mem")
        start = at - 1 if at and words[at - 1] in ("peak", "reserved", "requested") else at
        phase, what = "_".join(words[:start]), "_".join(words[start:])
    elif kind in ("share", "clock", "error", "ratio") and unit != "mfu":
        # A phase may have several words: train_step_bound_share.
        start = len(words) - 1 if words[-1:] in (["bound"], ["plain"], ["clock"]) else min(1, len(words))
        phase, what = "_".join(words[:start]), "_".join(words[start:])
    else:
        phase, what = "_".join(words), ""
    return Field(name, unit, kind, statistic, phase, what)


def is_measured(name):
    """Figures that schema and sense forbid to be negative: those with a unit."""
    return parse(name).kind is not None


def medians_of_time(names):
    """The medians among the times, one a phase: what files have in milliseconds and in seconds is said once."""
    found = {}
    for field in map(parse, names):
        if field.kind == "time" and field.statistic is None:
            found.setdefault(field.phase, field)
    return list(found.values())
