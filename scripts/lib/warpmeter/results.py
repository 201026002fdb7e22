"""Reads result files of the suite's tools: JSON and JSON lines, every schema version so far (warpmeter/1).

    result = results.load("sweep.json")          # "-" is stdin
    result.device_name, result.ceilings, result.notes
    for row in result.rows:
        row.config["seq_len"], row.number("fwd_ms"), row.samples.get("fwd_samples_ms"), row.status

A run that was interrupted, a file that breaks off, and one that an older or newer build of the same schema wrote are
read with what they have, and `notes` says what was missing or mended. What is not a result of this suite is refused
with ReadError, whose text is one line. Nothing in a file makes this module throw anything else: wrong types, negative
times and figures that are not finite become None, texts lose control characters and what exceeds a screenful.
"""

import os
import sys

from warpmeter import jsontext
from warpmeter.building import Builder, count
from warpmeter.model import HUGE, MAX_COLUMNS, SCHEMAS, ReadError, ResultFile, Row, clean_text

__all__ = [
    "HUGE",
    "MAX_COLUMNS",
    "SCHEMAS",
    "ReadError",
    "ResultFile",
    "Row",
    "clean_text",
    "load",
    "load_all",
    "parse",
]

MAX_BYTES = 1 << 29  # as reports/reader.cpp has it


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
    builder = Builder(origin)
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
                    "The {} before count.".format(count(len(builder.result.rows), "row"))
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
    builder = Builder(origin)
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
        counted = "The {} before count.".format(count(len(rows), "row"))
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
