"""What a result file holds, as the scripts see it: results.py reads it, building.py makes it of JSON values."""

import re
from collections import Counter

SCHEMAS = ("warpmeter/1",)
MAX_TEXT = 4000
MAX_COLUMNS = 400
MAX_ELEMENTS = 10000
#: No figure with a unit is this large, or as small as its inverse.
HUGE = 1e30

#: Control characters, lone surrogates, and characters that reorder or hide text around them.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]")


class ReadError(Exception):
    """Not a result of this suite, or nothing of it can be read. The text is one line and names the file."""


def clean_text(text):
    """One printable line of at most MAX_TEXT characters."""
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + "..."
    return _UNPRINTABLE.sub("\ufffd", text)


class Row:
    """One configuration and what was measured of it.

    config   what was asked for, {name: str, int, bool or None}, in the order of the file's row_keys
    figures  what was measured, {name: str, number, bool or None}; None where a figure was not obtained
    samples  {"fwd_samples_ms": [...]}: the raw samples, where the tool was run with --samples
    status   one of fields.STATUSES, or "unknown"; `reason` is "" when ok; `rerun` repeats this row ("" when missing)
    """

    __slots__ = ("config", "figures", "samples", "status", "reason", "rerun")

    def __init__(self, config, figures, samples, status, reason, rerun):
        self.config = config
        self.figures = figures
        self.samples = samples
        self.status = status
        self.reason = reason
        self.rerun = rerun

    def get(self, name):
        """A field of the flat row, as files have it; None where it has none."""
        if name in self.config:
            return self.config[name]
        if name in ("status", "reason", "rerun"):
            return getattr(self, name)
        return self.figures.get(name)

    def number(self, name):
        """A figure as float, or None."""
        value = self.figures.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def key(self, names=None):
        """Hashable: the configuration, or the named fields of it. Equal keys are the same configuration."""
        if names is None:
            return tuple(sorted((name, _hashable(value)) for name, value in self.config.items()))
        return tuple(_hashable(self.config.get(name)) for name in names)


def _hashable(value):
    return f"{type(value).__name__}:{value}"  # 1 and True are two values


def cold_l2(device, settings):
    """How the flush before each sample left a GPU's L2: "clean", or "dirty" in files that do not say: full of the
    flush's own lines, which the sample wrote back in its time. None with a hot cache and on a CPU."""
    if not device.get("name") or settings.get("cache") != "cold":
        return None
    return "clean" if settings.get("cache_flush") == "clean" else "dirty"


class ResultFile:
    """One run of one tool.

    origin      the file's name, or "stdin"
    schema, tool, argv (list of str), started_at (UTC, "" when missing)
    version, device, libraries, settings, summary   dicts as in the schema, {} when missing
    row_keys    names of the configuration's fields, in order
    columns     names of all figures of any row, in order of appearance
    rows        list of Row
    notes       list of str: what is missing, was mended or left out
    complete    False when the run or its file ended early; then a note says how
    """

    def __init__(self, origin):
        self.origin = origin
        self.schema = SCHEMAS[-1]
        self.tool = ""
        self.argv = []
        self.started_at = ""
        self.version, self.device, self.libraries, self.settings, self.summary = {}, {}, {}, {}, {}
        self.row_keys = []
        self.columns = []
        self.rows = []
        self.notes = []
        self.complete = True

    @property
    def is_gpu(self):
        return bool(self.device.get("name"))

    @property
    def device_name(self):
        """As the tools' tables name it: "NVIDIA H200", or "Intel(R) Xeon(R) Processor (16 cores, avx512)"."""
        device = self.device
        if device.get("name"):
            return str(device["name"])
        if not device.get("cpu"):
            return "unknown device"
        about = ["{} cores".format(device["cores"])] if isinstance(device.get("cores"), int) else []
        about += [str(device["isa"])] if device.get("isa") else []
        return str(device["cpu"]) + (" ({})".format(", ".join(about)) if about else "")

    @property
    def device_id(self):
        """What two files must share to be of one device: a GPU's uuid, else its name."""
        return str(self.device.get("uuid") or self.device_name)

    @property
    def cold_l2(self):
        return cold_l2(self.device, self.settings)

    @property
    def ceilings(self):
        """{"matmul_fp32_tflops": 53.05, "read_gbps": ...}: the rates that were measured on the device."""
        found = self.device.get("ceilings")
        found = found if isinstance(found, dict) else {}
        return {
            name: float(value)
            for name, value in found.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 / HUGE < value < HUGE
        }

    @property
    def git_sha(self):
        """Shortened, with a + for a dirty tree; "" when the build had none."""
        sha = self.version.get("git_sha")
        return str(sha)[:10] + ("+" if self.version.get("dirty") else "") if sha else ""

    def statuses(self):
        """Counter of the rows' statuses."""
        return Counter(row.status for row in self.rows)
