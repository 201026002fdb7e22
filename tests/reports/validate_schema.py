#!/usr/bin/env python3
"""Checks result files against reports/schema/warpmeter-1.schema.json and against what a schema cannot say.

    validate_schema.py FILE...      .json and .jsonl: the schema, strict JSON (no NaN, no key twice, UTF-8), every row has
                                    the fields of row_keys, the summary counts the rows.
                                    .csv: a header of distinct names, as many cells in every row, known statuses.
                                    .md: every table's rows have as many cells as its header.
    validate_schema.py --self-test FILE.json
                                    spoils the document in many ways, each of which must be found.

Exit status: 0 when all is well; 1 with a line for each problem; 2 for bad usage or a file that cannot be read.
Needs Python 3.9 and jsonschema (python3-jsonschema).
"""

import copy
import csv
import json
import pathlib
import re
import sys

import jsonschema

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "reports" / "schema" / "warpmeter-1.schema.json"
STATUSES = ["ok", "oom", "unsupported", "skipped", "mismatch", "error", "crashed", "timeout", "interrupted", "not_run"]


class Invalid(Exception):
    """The text is not what the file's ending says."""


def strict_json(text):
    def no_constant(name):
        raise Invalid(f"{name} is not JSON")

    def unique(pairs):
        result = {}
        for name, value in pairs:
            if name in result:
                raise Invalid(f"the key {name!r} comes twice")
            result[name] = value
        return result

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=unique)
    except ValueError as error:
        raise Invalid(f"not JSON: {error}") from None


def problems_of_document(document, validator):
    found = []
    for error in validator.iter_errors(document):
        where = "/".join(str(part) for part in error.absolute_path) or "the document"
        found.append(f"{where}: {error.message[:300]}")
    if found:
        return found
    for index, row in enumerate(document["rows"]):
        for key in document["row_keys"]:
            if key not in row:
                found.append(f"rows/{index}: the row key {key!r} is missing")
    summary = document["summary"]
    for status in STATUSES:
        count = sum(row["status"] == status for row in document["rows"])
        if summary[status] != count:
            found.append(f"summary/{status}: {summary[status]}, but {count} rows are {status}")
    if summary["rows"] != len(document["rows"]):
        found.append(f"summary/rows: {summary['rows']}, but there are {len(document['rows'])}")
    return found


def document_of_lines(text):
    """The document that JSON lines hold; its fields keep what is wrong with them for the schema to find."""
    if not text.endswith("\n"):
        raise Invalid("the last line has no line break")
    lines = [strict_json(line) for line in text[:-1].split("\n")]
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict):
            raise Invalid(f"line {number} is not an object")
        expected = "header" if number == 1 else "summary" if number == len(lines) else "row"
        if line.pop("type", None) != expected:
            raise Invalid(f"line {number} is not of the type {expected!r}")
    if len(lines) < 2:
        raise Invalid("there is no summary line")
    document = lines[0]
    for name in ("rows", "summary"):
        if name in document:
            raise Invalid(f"the header has {name!r}")
    document["rows"] = lines[1:-1]
    document["summary"] = lines[-1]
    return document


def problems_of_csv(text):
    try:
        rows = list(csv.reader(text.splitlines(keepends=True), strict=True))
    except csv.Error as error:
        raise Invalid(f"not CSV: {error}") from None
    if not rows:
        raise Invalid("there is no header")
    header, found = rows[0], []
    if len(set(header)) != len(header) or "" in header:
        found.append(f"the header's names are not distinct: {header}")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(header):
            found.append(f"row {number} has {len(row)} cells, the header {len(header)}")
            continue
        status = dict(zip(header, row)).get("status", "ok")
        if status not in STATUSES:
            found.append(f"row {number}: {status!r} is no status")
    return found


def problems_of_markdown(text):
    found, cells_of_header, previous = [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            cells_of_header = None
        else:
            # A backslash escapes what follows it; what is left between bars are cells.
            cells = re.sub(r"\\.", "x", line).strip().strip("|").split("|")
            if cells_of_header is None:
                if previous.strip():
                    found.append(f"line {number}: a table without a blank line before it")
                cells_of_header = len(cells)
            elif len(cells) != cells_of_header:
                found.append(f"line {number}: {len(cells)} cells, the header has {cells_of_header}")
        previous = line
    if "Measured by " not in text:
        found.append("the closing line that says what was measured where is missing")
    return found


def problems_of_file(path, validator):
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"not UTF-8: {error}"]
    try:
        if path.suffix == ".json":
            return problems_of_document(strict_json(text), validator)
        if path.suffix == ".jsonl":
            return problems_of_document(document_of_lines(text), validator)
        if path.suffix == ".csv":
            return problems_of_csv(text)
        if path.suffix == ".md":
            return problems_of_markdown(text)
    except Invalid as error:
        return [str(error)]
    return ["the name must end in .json, .jsonl, .csv or .md"]


def spoiled(document):
    """Pairs of a name and a spoiled text of the document."""

    def change(name, edit):
        spoiled_document = copy.deepcopy(document)
        edit(spoiled_document)
        return name, json.dumps(spoiled_document)

    def rename(holder, old, new):
        holder[new] = holder.pop(old)

    ok = next(i for i, row in enumerate(document["rows"]) if row["status"] == "ok")
    bad = next(i for i, row in enumerate(document["rows"]) if row["status"] != "ok")
    timed = next(name for name in document["rows"][ok] if name.endswith("_ms") and "_samples_" not in name)
    memory = next(name for name in document["rows"][ok] if name.endswith("_mib"))
    yield from (change(f"no {name}", lambda d, n=name: d.pop(n)) for name in document)
    yield from (change(f"misspelt {name}", lambda d, n=name: rename(d, n, n + "_")) for name in document)
    yield change("one field more", lambda d: d.update(comment="hello"))
    yield change("another schema", lambda d: d.update(schema="warpmeter/2"))
    yield change("argv as a string", lambda d: d.update(argv="attn_bench"))
    yield change("local time", lambda d: d.update(started_at="2026-01-31 12:00:00"))
    yield change("rows as an object", lambda d: d.update(rows={}))
    yield change("no dirty flag", lambda d: d["version"].pop("dirty"))
    yield change("misspelt git_sha", lambda d: rename(d["version"], "git_sha", "sha"))
    yield change("dirty as text", lambda d: d["version"].update(dirty="yes"))
    yield change("a device without a name", lambda d: d.update(device={"memory_mib": 1}))
    yield change("an unknown flush of the cache", lambda d: d["settings"].update(cache_flush="cold"))
    yield change("row keys twice", lambda d: d["row_keys"].append(d["row_keys"][0]))
    yield change("a row key that no row has", lambda d: d["row_keys"].append("phase_of_the_moon"))
    yield change("status as a row key", lambda d: d["row_keys"].append("status"))
    for field in ("status", "reason", "rerun"):
        yield change(f"no {field}", lambda d, f=field: d["rows"][ok].pop(f))
        yield change(f"misspelt {field}", lambda d, f=field: rename(d["rows"][bad], f, f[:-1]))
    yield change("unknown status", lambda d: d["rows"][bad].update(status="failed"))
    yield change("status as a number", lambda d: d["rows"][bad].update(status=1))
    yield change("ok with a reason", lambda d: d["rows"][ok].update(reason="why not"))
    yield change("not ok without a reason", lambda d: d["rows"][bad].update(reason=None))
    yield change("an empty reason", lambda d: d["rows"][bad].update(reason=""))
    yield change("a reason of two lines", lambda d: d["rows"][bad].update(reason="a\nb"))
    yield change("an empty rerun", lambda d: d["rows"][ok].update(rerun=""))
    yield change("a time as text", lambda d: d["rows"][ok].update({timed: "1.5"}))
    yield change("a negative time", lambda d: d["rows"][ok].update({timed: -1}))
    yield change("a time as a list", lambda d: d["rows"][ok].update({timed: [1.5]}))
    yield change("memory as a boolean", lambda d: d["rows"][ok].update({memory: True}))
    yield change("a unit in another spelling", lambda d: rename(d["rows"][ok], memory, memory[:-4] + "_MB"))
    yield change("a time unit in another spelling", lambda d: rename(d["rows"][ok], timed, timed[:-3] + "_msec"))
    yield change("half a sample", lambda d: d["rows"][ok].update(fwd_n=1.5))
    yield change("samples as a number", lambda d: d["rows"][ok].update(fwd_samples_ms=1.5))
    yield change("a null sample", lambda d: d["rows"][ok].update(fwd_samples_ms=[1.5, None]))
    yield change("another bound", lambda d: d["rows"][ok].update(fwd_bound="io"))
    yield change("an object in a row", lambda d: d["rows"][ok].update(fwd={"ms": 1}))
    yield change("a name with a space", lambda d: d["rows"][ok].update({"fwd ms": 1}))
    yield change("a name with a hyphen", lambda d: d["rows"][ok].update({"seq-len": 1}))
    yield change("a JSON-lines field", lambda d: d["rows"][ok].update(type="row"))
    yield change("a row as a list", lambda d: d["rows"].append([]))
    yield change("a count short", lambda d: d["summary"].update(ok=d["summary"]["ok"] + 1))
    yield change("rows miscounted", lambda d: d["summary"].update(rows=0))
    yield change("a missing count", lambda d: d["summary"].pop("oom"))
    text = json.dumps(document)
    for constant in ("NaN", "Infinity", "-Infinity"):
        yield constant, text.replace('"summary": {', f'"summary": {{"speed": {constant}, ', 1)
    yield "a key twice", text.replace('"tool"', '"schema": "warpmeter/1", "tool"', 1)
    yield "cut short", text[:-1]
    yield "two documents", text + text
    yield "nothing", ""


def self_test(path, validator):
    document = strict_json(path.read_text(encoding="utf-8"))
    if problems_of_document(document, validator):
        return ["the document is not valid to begin with"]
    found, count = [], 0
    for name, text in spoiled(document):
        count += 1
        try:
            if not problems_of_document(strict_json(text), validator):
                found.append(f"accepted: {name}")
        except Invalid:
            pass
    print(f"{count - len(found)} of {count} spoiled documents were refused")
    return found


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr if not arguments else sys.stdout)
        return 0 if arguments else 2
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    check = problems_of_file
    if arguments[0] == "--self-test":
        check, arguments = self_test, arguments[1:]
    failed = False
    for name in arguments:
        try:
            found = check(pathlib.Path(name), validator)
        except OSError as error:
            print(f"validate_schema.py: {name}: {error.strerror}", file=sys.stderr)
            return 2
        for problem in found:
            print(f"{name}: {problem}")
        failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
