"""Result documents of schema warpmeter/1, their files and what is read back. As reports/model.hpp and its writers."""

import json
import math
import os
import tempfile

from warpmeter import results as shared

SCHEMA = "warpmeter/1"
STATUSES = ("ok", "oom", "unsupported", "skipped", "mismatch", "error", "crashed", "timeout", "interrupted", "not_run")
FAILURES = ("mismatch", "error", "crashed", "timeout", "interrupted", "not_run")
_SPEEDS = ("_ms", "_us", "_ns", "_s", "_tflops", "_gflops", "_gbps", "_gibps", "_GiBps", "_share", "_mfu", "_speedup",
           "_bound", "_per_s")


class Row:
    """One configuration, its figures, and how it ended."""

    def __init__(self, configuration, rerun):
        self.configuration, self.rerun = configuration, rerun
        self.figures, self.status, self.reason = {}, "not_run", "not reached"

    def end(self, status, reason=None):
        self.status, self.reason = status, reason

    def flat(self):
        return {**self.configuration, **self.figures, "status": self.status, "reason": self.reason, "rerun": self.rerun}

    def remove_speeds(self):
        """A wrong result shows no speed."""
        for name in self.figures:
            if name.endswith(_SPEEDS):
                self.figures[name] = None


class Document:
    """One run of one tool."""

    def __init__(self, tool, version, argv, started_at, device, libraries, settings, row_keys):
        self.envelope = {"schema": SCHEMA, "tool": tool, "version": version, "argv": argv, "started_at": started_at,
                         "device": device, "libraries": libraries, "settings": settings, "row_keys": row_keys}
        self.rows = []
        self.extra_summary = {}

    def summary(self):
        counts = {status: sum(row.status == status for row in self.rows) for status in STATUSES}
        return {"rows": len(self.rows), **counts, **self.extra_summary}


def _finite(value):
    """None for what JSON has no number for; whole numbers without a point, as the tools write them."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value == int(value) and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def to_json(value):
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False)


def row_to_json(row, samples, kind=None):
    flat = {name: value for name, value in row.flat().items() if samples or "_samples_" not in name}
    return to_json({"type": kind, **flat} if kind else flat)


def json_text(document, samples):
    """The document as one object, one row a line."""
    lines = [f"  {json.dumps(name)}: {to_json(value)}" for name, value in document.envelope.items()]
    rows = ",\n".join("    " + row_to_json(row, samples) for row in document.rows)
    lines.append('  "rows": [' + (f"\n{rows}\n  " if rows else "") + "]")
    lines.append(f'  "summary": {to_json(document.summary())}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def header_line(document):
    return to_json({"type": "header", **document.envelope}) + "\n"


def summary_line(document):
    return to_json({"type": "summary", **document.summary()}) + "\n"


class ReadError(Exception):
    """A file is not a result of this suite; the text says why."""


class OutputError(Exception):
    """A result file cannot be written."""


class OutputFile:
    """A result file: opened before anything is measured, rewritten whole after every row (write, then rename)."""

    def __init__(self, path):
        self.path = os.path.realpath(path)
        self._special = os.path.exists(self.path) and not os.path.isfile(self.path)  # /dev/stdout, a pipe
        try:
            if os.path.isdir(self.path):
                raise IsADirectoryError(21, "Is a directory")
            if not self._special:
                with open(self.path, "a", encoding="utf-8"):
                    pass
        except OSError as error:
            raise OutputError(error.strerror) from None

    def write(self, text, last=False):
        try:
            if self._special:
                if last:
                    with open(self.path, "w", encoding="utf-8", errors="replace") as file:
                        file.write(text)
                return
            handle, temporary = tempfile.mkstemp(prefix=os.path.basename(self.path) + ".", suffix=".part",
                                                 dir=os.path.dirname(self.path))
            try:
                mode = os.stat(self.path).st_mode & 0o777 if os.path.exists(self.path) else 0o644
                os.fchmod(handle, mode)
                with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text)
                os.replace(temporary, self.path)
            except BaseException:
                if os.path.exists(temporary):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise OutputError(error.strerror) from None


def read_document(path):
    """{tool, device, settings, libraries, row_keys, rows} of a .json or .jsonl file, rows flat, with what an
    interrupted run left. Raises ReadError, whose text does not name the file."""
    try:
        found = shared.load(path)
    except shared.ReadError as error:
        raise ReadError(str(error).partition(": ")[2] or str(error)) from None
    rows = [{**row.config, **row.figures, **row.samples, "status": row.status, "reason": row.reason or None,
             "rerun": row.rerun} for row in found.rows]
    return {"tool": found.tool, "device": found.device, "settings": found.settings, "libraries": found.libraries,
            "row_keys": found.row_keys, "rows": rows}
