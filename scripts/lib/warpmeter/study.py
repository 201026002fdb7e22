"""Rows of one or many files as a study: which field is the horizontal axis, which tells series apart, which panels.

Chosen by the data and the design's words, never by the tool: what varies along a sweep is the axis, implementations are
series, everything else that varies makes panels, and what follows from another field is not shown twice.
"""

import re
from typing import Any, NamedTuple

from warpmeter import numerals

#: Fields that a sweep goes along, the likeliest first.
_AXES = (
    "seq_len",
    "kv_len",
    "context",
    "bytes",
    "size_bytes",
    "message_bytes",
    "tensor_bytes",
    "tensor_size",
    "cols",
    "rows",
    "elements",
    "n",
    "chunk",
    "bucket_size",
    "bucket_bytes",
    "batch",
    "tokens",
    "d_model",
    "head_dim",
    "world_size",
)
#: Fields whose values are what one compares.
_SERIES = (
    "impl",
    "target",
    "backend",
    "strategy",
    "data_parallel",
    "structure",
    "attention",
    "algorithm",
    "merge",
    "kernel_name",
    "mode",
)
#: How something is done, never what: where a series always does it in one way, that is the series' own, and panels by
#: it would part what one compares (e2e_bench's naive structure with naive attention from its fused one with flash).
_WAYS = ("structure", "attention", "merge", "deal", "buffers", "in_place", "recompute", "graph", "side_stream", "adamw")
#: Words that mean nothing without their field's name.
_NAMED = ("size", "attention", "recompute", "adamw", "merge", "deal", "buffers", "bucket", "optimizer",
          "shard_optimizer", "freeze")
#: The order in which panels are told apart; a field that follows from earlier ones is left out.
_PANELS = (
    "tool",
    "device",
    "kernel",
    "collective",
    "op",
    "size",
    "mode",
    "dtype",
    "precision",
    "structure",
    "causal",
    "d_model",
    "head_dim",
    "world_size",
)
#: Numbers that may be a word: splits auto.
_NUMBERS_OR_WORDS = ("splits", "block")
#: How a file says that a row's implementation has no such thing: an implementation without streams has no merge.
NOT_APPLICABLE = "-"
#: Fields that no picture is split by: the columns say which phases a row timed.
_NEVER = ("pass",)

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?\Z")


class Entry(NamedTuple):
    """A row at its place in a study."""

    file: Any
    row: Any
    values: dict  # the configuration, with what the study adds: device, run
    series: tuple
    panel: tuple
    x: Any  # number or, on an axis of categories, text; None without an axis


class Study:
    """Rows of files with the same fields, placed.

    tool, files; name: the tool, and among several studies of one tool what tells it apart ("attn_bench decode")
    entries        all rows, in the files' order
    axis           the field along the horizontal axis, or None; `categories` its values in order when they are no
                   numbers, else None
    series_keys    fields that tell series apart; series_labels {key: text}, in order of appearance
    panel_keys     fields that tell panels apart; panels: their values in order; by_panel: {values: entries}
    constants      {field: value} that all rows share
    """

    def __init__(self, files):
        self.files = files
        self.tool = numerals.listed(dict.fromkeys(file.tool or "unknown tool" for file in files))
        self.name = self.tool
        rows = [(file, row, dict(row.config)) for file in files for row in file.rows]
        names = list(dict.fromkeys(name for _, _, values in rows for name in values))
        for _, _, values in rows:  # a field that only some rows have
            for name in names:
                if values.setdefault(name, None) == NOT_APPLICABLE:
                    values[name] = None
        names = _add_provenance(files, rows, names)
        distinct = _distinct(rows, names)
        varying = [name for name in names if len(distinct[name]) > 1 and name not in _NEVER]

        self.axis, self.categories = _choose_axis(rows, varying, distinct)
        if self.axis:
            _name_what_follows_the_axis(files, rows, varying, self.axis)
            distinct = _distinct(rows, names)
            varying = [name for name in varying if len(distinct[name]) > 1]
        self.constants = {name: distinct[name][0] for name in names if len(distinct[name]) == 1 and name not in _NEVER}
        free = [name for name in varying if name != self.axis]
        chosen = [name for name in _SERIES if name in free][:1]
        if self.axis in _SERIES:  # side by side along the axis, each in its colour
            chosen = [self.axis]
        # What one implementation has and another has not tells variants of the former apart.
        variants = [name for name in free if chosen == ["impl"] and _only_some_have(rows, name, "impl")]
        self.series_keys = chosen + variants + [name for name in ("run",) if name in free]
        if not chosen and self.axis and "impl" in self.constants:
            self.series_keys = ["impl", *self.series_keys]
        free = [name for name in free if name not in self.series_keys]
        self._ways = [name for name in free if name in _WAYS and _follows(rows, name, self.series_keys)]
        free = [name for name in free if name not in self._ways]
        ordered = [name for name in _PANELS if name in free] + [name for name in free if name not in _PANELS]
        self.panel_keys = []
        for name in ordered:
            if not _follows(rows, name, self.panel_keys):
                self.panel_keys.append(name)

        self.entries = []
        for file, row, values in rows:
            x = values[self.axis] if self.axis else None
            if self.axis and self.categories is None:
                x = as_number(x)
            self.entries.append(
                Entry(
                    file,
                    row,
                    values,
                    tuple(values[name] for name in self.series_keys),
                    tuple(values[name] for name in self.panel_keys),
                    x,
                )
            )
        self.by_panel = {}
        for entry in self.entries:
            self.by_panel.setdefault(entry.panel, []).append(entry)
        self.panels = list(self.by_panel)
        self.series_labels = {}
        for entry in self.entries:
            if entry.series not in self.series_labels:
                self.series_labels[entry.series] = self._series_label(entry, entry.series)
        programs = [_program(file) for file in files]
        self._again = {id(file): program and programs.count(program) > 1 for file, program in zip(files, programs)}
        self.contender_labels = {}
        for entry in self.entries:
            contender = self.contender(entry)
            if contender not in self.contender_labels:
                self.contender_labels[contender] = self._series_label(entry, contender)
        self.charted = None  # charts.charted_fields keeps them here
        self._places = {category: index for index, category in enumerate(self.categories or ())}
        self.columns = list(dict.fromkeys(column for file in files for column in file.columns))

    def _series_label(self, entry, key):
        """ "flash_decode (tree, splits 4)": a name, and in brackets what else tells it apart, for lists of them to be
        read as such."""
        words = [value_text(name, value) for name, value in zip(self.series_keys, key)]
        words += [value_text(name, entry.values[name]) for name in self._ways]
        words = list(dict.fromkeys(word for word in words if word)) or [self.tool]
        return words[0] + (f" ({', '.join(words[1:])})" if words[1:] else "")

    def contender(self, entry):
        """Who a row speaks for where one is held against the others: its series, but runs of one commit's clean build,
        with the same settings, are one. contender_labels has their names."""
        again = self._again[id(entry.file)]
        return tuple(None if again and name == "run" else value for name, value in zip(self.series_keys, entry.series))

    def panel_title(self, panel):
        return titled(zip(self.panel_keys, panel))

    def where(self, entry):
        """What rows share that are compared: their place on the axis, unless they are side by side along it."""
        return "" if self.axis in self.series_keys else entry.x

    def place(self, x):
        """What places on the axis are sorted by."""
        return self._places.get(x, -1) if self.categories is not None else x

    def axis_text(self, x):
        """A place on the axis, for tables and sentences."""
        return axis_value(self.axis, x)


def studies(files):
    """Files whose rows are told apart by the same fields are one study, whichever tool wrote them: attn_bench and its
    PyTorch peer. In order of appearance; a file without rows counts like any other."""
    groups = []  # [keys, files]
    for file in files:
        keys = set(file.row_keys)
        for group in groups:
            if (keys <= group[0] or group[0] <= keys) and (bool(keys) == bool(group[0])):
                group[0] |= keys
                group[1].append(file)
                break
        else:
            groups.append([keys, [file]])
    found = [Study(group) for _, group in groups]
    for whole in found:
        alike = [other for other in found if other.tool == whole.tool]
        mode = whole.constants.get("mode") or ""
        if len(alike) > 1 and [other.constants.get("mode") or "" for other in alike].count(mode) == 1:
            whole.name = f"{whole.tool} {mode}".strip()
        elif len(alike) > 1:
            whole.name = f"{whole.tool} ({alike.index(whole) + 1})"
    return found


def as_number(value):
    """The number on an axis: of 4096, or of "4 KiB" and "1MB" (tensor sizes are powers of two); else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        match = _SIZE.match(value[:40])
        value = float(match.group(1)) * 1024 ** " KMGT".index(match.group(2) or " ") if match else -1
    return float(value) if value == 0 or 1e-9 < value < 1e20 else None


def value_text(name, value):
    """A configuration's value where its name need not be said: bf16, causal, d_model 64."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, str) and name not in _NUMBERS_OR_WORDS:
        return value
    return f"{name} {value}"


def titled(pairs):
    """ "bf16 · causal · attention flash · d_model 64"."""
    texts = [f"{name} {value}" if name in _NAMED and value else value_text(name, value) for name, value in pairs]
    return " · ".join(text for text in texts if text)


def axis_value(name, x):
    if x is None:
        return ""
    if isinstance(x, str):
        return x
    if is_bytes(name):
        return numerals.bytes_binary(x)
    return numerals.significant(x, 15)


def is_bytes(name):
    return bool(name) and (name.endswith("bytes") or name in ("tensor_size", "bucket_size"))


def _add_provenance(files, rows, names):
    """Adds `device` where files are of several, and `run` where two files measured the same on the same device."""
    if len(files) == 1:
        return names
    labels = _device_labels(files)
    if len(set(labels.values())) > 1:
        for file, _, values in rows:
            values["device"] = labels[id(file)]
        names = [*names, "device"]
    seen = {}
    clash = False
    for file, row, _ in rows:
        clash |= seen.setdefault((labels[id(file)], row.key()), id(file)) != id(file)
    if clash:
        runs = _run_labels(files)
        for file, _, values in rows:
            values["run"] = runs[id(file)]
        names = [*names, "run"]
    return names


def _program(file):
    """What was built of what, and how it measured; None where that is not known."""
    known = file.version.get("git_sha") and not file.version.get("dirty")
    return (file.tool, file.version, file.settings) if known else None


def _device_labels(files):
    """By name: two GPUs of one kind are one device here, two runs there."""
    return {id(file): file.device_name for file in files}


def _run_labels(files):
    """The shortest thing that tells the runs apart: commit, else file name, else number."""
    for label in (lambda file: file.git_sha, lambda file: re.sub(r"\.jsonl?\Z", "", file.origin.rsplit("/", 1)[-1])):
        labels = [label(file)[:24] for file in files]
        if all(labels) and len(set(labels)) == len(labels):
            return {id(file): text for file, text in zip(files, labels)}
    return {id(file): f"run {number}" for number, file in enumerate(files, 1)}


def _choose_axis(rows, varying, distinct):
    """(field with numbers that series go along, None), else (field with texts, its values), else (None, None)."""
    numeric = [
        name
        for name in varying
        if all(as_number(value) is not None or value is None for value in distinct[name])
        and not all(value is None for value in distinct[name])
    ]
    for name in sorted(numeric, key=lambda name: _AXES.index(name) if name in _AXES else len(_AXES)):
        # Fields that go along with it (kv_len with seq_len) do not make each of its values a series of one.
        others = [
            other for other in varying if other != name and not _follows(rows, other, [name]) and other not in numeric
        ]
        places = {}
        for _, _, values in rows:
            places.setdefault(tuple(values[other] for other in others), set()).add(values[name])
        if any(len(found) > 1 for found in places.values()):
            return name, None
    for name in ("size", *_SERIES[::-1], *varying):
        if name in varying and name not in ("device", "run") and all(isinstance(v, str) for v in distinct[name]):
            return name, distinct[name]
    return None, None


def _distinct(rows, names):
    """The values of each field, in order; that some rows do not have it is no value of its own."""
    found = {name: dict.fromkeys(values[name] for _, _, values in rows) for name in names}
    return {name: [value for value in found[name] if value is not None or len(found[name]) == 1] for name in names}


def _follows(rows, name, others):
    """Whether the values of `others` leave only one for `name`."""
    seen = {}
    return all(
        seen.setdefault(tuple(values[other] for other in others), values[name]) == values[name] for _, _, values in rows
    )


def _only_some_have(rows, name, owner):
    """Whether every value of `owner` has `name` in all its rows or in none, and there are both kinds."""
    has = {}
    for _, _, values in rows:
        has.setdefault(values[owner], set()).add(values[name] is not None)
    return all(len(kinds) == 1 for kinds in has.values()) and len(set.union(*has.values())) == 2


def _name_what_follows_the_axis(files, rows, varying, axis):
    """A number that goes along with the axis in a whole file says so: kv_len "= seq_len", batch "16384 / seq_len"."""
    for file in files:
        mine = [values for owner, _, values in rows if owner is file]
        for name in varying:
            numbers = [(as_number(values[axis]), as_number(values[name])) for values in mine]
            if name == axis or any(x is None or y is None for x, y in numbers) or len(set(numbers)) < 2:
                continue
            if len({y for _, y in numbers}) == 1:
                continue
            if all(x == y for x, y in numbers):
                text = f"= {axis}"
            elif len({x * y for x, y in numbers}) == 1:
                text = f"= {numerals.significant(numbers[0][0] * numbers[0][1], 15)} / {axis}"
            else:
                continue
            for values in mine:
                values[name] = f"{name} {text}"
