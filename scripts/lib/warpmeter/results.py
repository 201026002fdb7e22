"""Reads result files of the suite's tools: JSON and JSON lines, every schema version so far (warpmeter/1).

    result = results.load("sweep.json")          # "-" is stdin
    result.device_name, result.ceilings, result.notes
    for row in result.rows:
        row.config["seq_len"], row.number("fwd_ms"), row.samples.get("fwd_samples_ms"), row.status

A run that was interrupted, a file that breaks off, and one that an older or newer build of the same schema wrote are
read with what they have, and `notes` says what was missing or mended. What is not a result of this suite is refused with
ReadError, whose text is one line. Nothing in a file makes this module throw anything else: wrong types, negative times
and figures that are not finite become None, texts lose control characters and what exceeds a screenful.
"""

import os
import re
import sys
from collections import Counter

from warpmeter import fields, jsontext

SCHEMAS = ("warpmeter/1",)
MAX_BYTES = 1 << 29  # as reports/reader.cpp has it
MAX_TEXT = 4000
MAX_COLUMNS = 400
MAX_ELEMENTS = 10000

_HEADER = ("schema", "tool", "version", "argv", "started_at", "device", "libraries", "settings", "row_keys")
#: What identified a row before row_keys were written, in the order of the tools' tables.
_OLD_ROW_KEYS = (
    "impl",
    "backend",
    "collective",
    "op",
    "kernel_name",
    "size",
    "mode",
    "dtype",
    "precision",
    "structure",
    "pass",
    "batch",
    "num_heads",
    "num_kv_heads",
    "d_model",
    "head_dim",
    "d_ff",
    "num_layers",
    "context",
    "seq_len",
    "kv_len",
    "world_size",
    "tensor_size",
    "causal",
    "deterministic",
)
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
    def ceilings(self):
        """{"matmul_fp32_tflops": 53.05, "read_gbps": ...}: the rates that were measured on the device."""
        found = self.device.get("ceilings")
        found = found if isinstance(found, dict) else {}
        return {
            name: float(value)
            for name, value in found.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        }

    @property
    def git_sha(self):
        """Shortened, with a + for a dirty tree; "" when the build had none."""
        sha = self.version.get("git_sha")
        return str(sha)[:10] + ("+" if self.version.get("dirty") else "") if sha else ""

    def statuses(self):
        """Counter of the rows' statuses."""
        return Counter(row.status for row in self.rows)


class _Builder:
    """A ResultFile from plain JSON values, counting what it has to mend."""

    def __init__(self, origin):
        self.result = ResultFile(origin)
        self.mended = Counter()
        self._columns = {}
        self._config = ()

    def header(self, raw):
        result = self.result
        schema = raw.get("schema")
        if not isinstance(schema, str):
            raise ReadError(f"{result.origin}: not a result of this suite: there is no 'schema'")
        if schema not in SCHEMAS:
            known = ", ".join(f"'{name}'" for name in SCHEMAS)
            raise ReadError(f"{result.origin}: schema '{clean_text(schema[:60])}'; this script reads {known}")
        result.schema = schema
        result.tool = self._text(raw, "tool")
        result.started_at = self._text(raw, "started_at")
        for name in ("version", "device", "libraries", "settings"):
            setattr(result, name, self._mapping(raw, name))
        result.argv = self._texts(raw, "argv")
        keys = self._texts(raw, "row_keys")
        result.row_keys = list(dict.fromkeys(key for key in keys if fields.NAME.match(key)))
        missing = [name for name in _HEADER if name not in raw]
        if missing:
            result.notes.append(f"The header has no {', '.join(missing)}.")

    def row(self, raw):
        if not isinstance(raw, dict):
            self.mended["a row that is no object was left out"] += 1
            return
        if not self.result.row_keys:
            self._guess_row_keys(raw)
        config, figures, samples = dict.fromkeys(key for key in self.result.row_keys if key in raw), {}, {}
        for name, value in raw.items():
            if name in ("status", "reason", "rerun", "type"):
                continue
            if name in config:
                config[name] = self._scalar(name, value)
            elif not fields.NAME.match(name):
                self.mended["a field whose name is none of ours was left out"] += 1
            elif fields.SAMPLES.match(name):
                kept = self._samples(name, value)
                if kept:
                    samples[name] = kept
            elif name in self._columns or len(self._columns) < MAX_COLUMNS:
                self._columns[name] = None
                figures[name] = self._figure(name, value)
            else:
                self.mended[f"a field beyond the {MAX_COLUMNS} that are read was left out"] += 1
        status = raw.get("status")
        if status not in fields.STATUSES:
            self.mended["a row has a status that is none of ours: shown as unknown"] += 1
            status = "unknown"
        reason, rerun = (self._text(raw, name, row=True) for name in ("reason", "rerun"))
        self.result.rows.append(Row(config, figures, samples, status, reason, rerun))

    def summary(self, raw):
        kept = self._mapping({"summary": raw}, "summary")
        kept.pop("type", None)
        self.result.summary = kept

    def finish(self, problem=None):
        """`problem`: how the text ended early, or None."""
        result = self.result
        result.columns = list(self._columns)
        counts = result.statuses()
        if problem:
            result.complete = False
            result.notes.append(problem)
        elif not isinstance(result.summary.get("rows"), int):
            result.complete = False
            rows = _count(len(result.rows), "row")
            result.notes.append(
                f"The run did not finish: the file has no summary, only the {rows} measured until then."
            )
        if counts["interrupted"] or counts["not_run"]:
            result.complete = False
            lost = _count(counts["interrupted"] + counts["not_run"], "configuration")
            result.notes.append(f"The run was stopped early: {lost} not measured.")
        repeats = len(result.rows) - len({row.key() for row in result.rows})
        if repeats:
            rows = "A row repeats" if repeats == 1 else f"{repeats} rows repeat"
            result.notes.append(f"{rows} an earlier one's configuration.")
        for what, times in self.mended.items():
            result.notes.append(what[0].upper() + what[1:] + (f" ({times} times)." if times > 1 else "."))
        return result

    def _guess_row_keys(self, raw):
        known = [name for name in _OLD_ROW_KEYS if isinstance(raw.get(name), (str, int, bool))]
        self.result.row_keys = known or ["impl"]
        self.mended["row_keys are missing: taken as " + ", ".join(self.result.row_keys)] += 1

    def _text(self, raw, name, row=False):
        value = raw.get(name)
        if isinstance(value, str):
            return clean_text(value)
        if value is not None:
            self.mended[f"'{name}' is no text: left out" if row else f"the header's '{name}' is no text: left out"] += 1
        return ""

    def _texts(self, raw, name):
        value = raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.mended[f"the header's '{name}' is no array: left out"] += 1
            return []
        texts = [clean_text(element) for element in value[:MAX_ELEMENTS] if isinstance(element, str)]
        if len(texts) != len(value):
            self.mended[f"an element of the header's '{name}' is no text: left out"] += len(value) - len(texts)
        return texts

    def _mapping(self, raw, name):
        value = raw.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.mended[f"'{name}' is no object: left out"] += 1
            return {}
        return self._tidy(value, name, 3)

    def _tidy(self, value, name, depth):
        """Text, numbers, and objects and arrays of them down to `depth` levels."""
        if isinstance(value, (dict, list)) and depth == 0:
            self.mended[f"'{name}' is nested deeper than ours are: cut"] += 1
            return None
        if isinstance(value, dict):
            return {
                clean_text(key[:80]): self._tidy(inner, name, depth - 1)
                for key, inner in list(value.items())[:MAX_COLUMNS]
            }
        if isinstance(value, list):
            return [self._tidy(inner, name, depth - 1) for inner in value[:MAX_ELEMENTS]]
        return self._scalar(name, value)

    def _scalar(self, name, value):
        if isinstance(value, str):
            return clean_text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            if _finite(value):
                return value
            self.mended[f"'{name}' is not finite: taken as missing"] += 1
            return None
        self.mended[f"'{name}' is neither text nor number: taken as missing"] += 1
        return None

    def _figure(self, name, value):
        if isinstance(value, float) and 0 <= value < 1e300 or value is None:  # nearly all of them
            return value
        if isinstance(value, list):
            return clean_text(
                ", ".join(str(element) for element in value[:64] if not isinstance(element, (dict, list)))
            )
        value = self._scalar(name, value)
        if value is None or not fields.is_measured(name):
            return value
        if isinstance(value, (str, bool)):
            self.mended[f"'{name}' is no number: taken as missing"] += 1
            return None
        if value < 0:
            self.mended[f"'{name}' is negative: taken as missing"] += 1
            return None
        return value

    def _samples(self, name, value):
        if value is None:
            return None
        numbers = (
            []
            if not isinstance(value, list)
            else [
                float(number)
                for number in value
                if isinstance(number, (int, float)) and not isinstance(number, bool) and _finite(number) and number >= 0
            ]
        )
        if not isinstance(value, list) or len(numbers) != len(value):
            self.mended[f"'{name}' holds more than times: left out"] += 1
            return None
        return numbers


def _finite(number):
    return abs(number) < 1e300


def _count(number, word):
    return f"{number} {word}" + ("" if number == 1 else "s")


def load(path):
    """The one result that a file holds; "-" reads stdin. Throws ReadError."""
    found = load_all(path)
    if len(found) > 1:
        raise ReadError(f"{found[0].origin}: holds {len(found)} results where one is wanted")
    return found[0]


def load_all(path):
    """Every result in a file: more than one where files were put one after another. At least one. Throws ReadError."""
    origin = "stdin" if path == "-" else clean_text(path)
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ReadError(f"{origin}: cannot be read: {why}") from None
    except MemoryError:
        raise ReadError(f"{origin}: larger than memory") from None
    if len(data) > MAX_BYTES:
        raise ReadError(f"{origin}: larger than 512 MiB: not a result file")
    return parse(data, origin)


def parse(data, origin):
    """As load_all, from bytes."""
    text = data.decode("utf-8-sig", "replace")
    start = jsontext.skip(text, 0)
    if start == len(text):
        raise ReadError(f"{origin}: is empty")
    results = []
    while start < len(text):
        if _starts_lines(text, start):
            result, start = _read_lines(text, start, origin)
        else:
            result, start = _read_document(text, start, origin, first=not results)
        results.append(result)
        start = jsontext.skip(text, start)
    if "\ufffd" in text:
        wrong = len(text.encode("utf-8")) - len(data)
        if wrong > 0:  # U+FFFD takes three bytes; a file that has it rightly has the same length
            results[0].notes.append("The file is not all UTF-8: what is not reads as \ufffd.")
    return results


def _line_end(text, start):
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _starts_lines(text, start):
    """A header line, and not a document that happens to stand on one line."""
    line = text[start : _line_end(text, start)]
    try:
        value, _ = jsontext.value_at(line, 0)
    except jsontext.JsonProblem:
        return False
    return isinstance(value, dict) and value.get("type") == "header"


def _read_lines(text, start, origin):
    builder = _Builder(origin)
    end = _line_end(text, start)
    builder.header(jsontext.value_at(text, start)[0])
    ended = False
    problem = None
    damaged = 0
    while end < len(text):
        start = end + 1
        end = _line_end(text, start)
        line = text[start:end].strip()
        if not line:
            continue
        if _starts_lines(text, start):
            break
        try:
            value, used = jsontext.value_at(line, 0)
            if line[used:].strip():
                raise jsontext.JsonProblem("more than one value in a line")
        except jsontext.JsonProblem:
            if end == len(text):
                problem = (
                    "The file breaks off in the middle of a line: the run was killed or the file is truncated. "
                    "The {} before count.".format(_count(len(builder.result.rows), "row"))
                )
                break
            damaged += 1
            continue
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "row":
            builder.row(value)
        elif kind == "summary" and not ended:
            builder.summary(value)
            ended = True
        else:
            damaged += 1
    if damaged:
        builder.mended["a line that cannot be read was left out"] += damaged
    if not text[start:end].strip():
        start = end
    return builder.finish(problem), (start if end < len(text) else len(text))


def _read_document(text, start, origin, first):
    raw, end, problem = jsontext.document_at(text, start, "rows")
    if not isinstance(raw.get("schema"), str):
        raise ReadError(_refusal(text, start, raw, problem, origin, first))
    builder = _Builder(origin)
    builder.header(raw)
    rows = raw.get("rows")
    if not isinstance(rows, list):
        if rows is not None:
            builder.mended["'rows' is no array: left out"] += 1
        rows = []
    for row in rows:
        builder.row(row)
    builder.summary(raw.get("summary"))
    how = None
    if problem is not None:
        counted = "The {} before count.".format(_count(len(rows), "row"))
        how = (
            "The file breaks off early: the run was killed or the file is truncated. " + counted
            if problem.at_end
            else f"The file is damaged at {problem.place(text)} ({clean_text(problem.what[:80])}). {counted}"
        )
        end = len(text)
    return builder.finish(how), end


def _refusal(text, start, raw, problem, origin, first):
    if not first:
        return f"{origin}: there is more after the result that is no result of this suite"
    if problem is None or raw:
        return f"{origin}: not a result of this suite: there is no 'schema'"
    line = text[start : _line_end(text, start)]
    if origin.endswith((".md", ".csv")) or line.startswith(("|", "**")) or ("," in line and line[:1].isalpha()):
        return f"{origin}: not JSON: wanted is what --format json or jsonl writes"
    return f"{origin}: not a result of this suite: {problem.place(text)}: {clean_text(problem.what[:80])}"
