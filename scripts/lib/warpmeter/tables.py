"""The tables of a study: one a panel, a row a configuration, columns by phase; the same for HTML and Markdown."""

from typing import NamedTuple

from warpmeter import charts, fields, numerals

MAX_ROWS = 400  # of one table
MAX_TABLES = 60
MAX_ALL_ROWS = 3000

_KINDS = ("time", "noise", "speed", "bandwidth", "rate", "share", "bytes")


class Column(NamedTuple):
    name: str  # the field in files
    group: str  # "Forward"; "" for what belongs to no phase
    heading: str  # "ms"
    numeric: bool


class Cell(NamedTuple):
    text: str
    best: bool = False


class TableRow(NamedTuple):
    status: str
    reason: str
    rerun: str
    cells: list  # of Cell, one a column


class Table(NamedTuple):
    title: str
    columns: list
    asked: int  # how many of the columns say what was asked for; the rest are figures
    rows: list
    left_out: int


def of_study(whole):
    """Tables in the panels' order, rows along the axis, implementations beside each other."""
    tables, left = [], MAX_ALL_ROWS
    for panel in whole.panels[:MAX_TABLES]:
        entries = whole.by_panel[panel]
        most = min(MAX_ROWS, left)
        tables.append(
            _table(whole, whole.panel_title(panel), sorted(entries, key=_order(whole))[:most], len(entries) - most)
        )
        left -= len(tables[-1].rows)
    return tables


def _order(whole):
    if whole.axis is None:
        return lambda entry: 0
    if whole.categories is not None:
        return lambda entry: whole.place(entry.x)
    return lambda entry: (entry.x is None, entry.x or 0)


def _table(whole, title, entries, left_out):
    places = [name for name in dict.fromkeys((whole.axis, *whole.series_keys)) if name]
    rest = [
        name
        for name in whole.entries[0].values
        if name not in (*places, *whole.panel_keys)
        and name not in whole.constants
        and name != "pass"
        and len({str(entry.values[name]) for entry in entries}) > 1
    ]
    places = places + rest or list(whole.entries[0].values)[:1] or ["tool"]
    columns = [Column(name, "", name, name == whole.axis and whole.categories is None) for name in places]
    figures = _figure_columns(whole, entries)
    best = _best(whole, entries)
    rows = []
    for entry in entries:
        cells = [Cell(_config_text(whole, entry, column.name)) for column in columns]
        cells += [
            Cell(figure(column.name, entry.row.figures.get(column.name)), (id(entry.row), column.name) in best)
            for column in figures
        ]
        rows.append(TableRow(entry.row.status, entry.row.reason, entry.row.rerun, cells))
    return Table(title, columns + figures, len(columns), rows, max(0, left_out))


def _config_text(whole, entry, name):
    value = entry.values.get(name)
    if name == whole.axis:
        return whole.axis_text(entry.x) or str(value)
    return "yes" if value is True else "no" if value is False else "" if value is None else str(value)


def _figure_columns(whole, entries):
    """Of each phase: time, noise, speed, the share of its bound, memory; then errors. Only what has figures."""
    held = {name for entry in entries for name, value in entry.row.figures.items() if value is not None}
    parsed = [fields.parse(name) for name in whole.columns if name in held]
    charted = {field.name for field in charts.charted_fields(whole)}
    parsed = [
        field
        for field in parsed
        if field.statistic is None and (field.name in charted or field.kind in ("noise", "share", "error", "ratio"))
    ]
    phases = list(dict.fromkeys(field.phase for field in parsed if field.kind != "error"))
    columns = []
    for phase in phases:
        mine = [field for field in parsed if field.phase == phase and field.kind in _KINDS]
        for field in sorted(mine, key=lambda field: _KINDS.index(field.kind)):
            group = "" if phase in charts.BANDWIDTHS else charts.phase_title(phase)
            columns.append(Column(field.name, group, _heading(field), True))
    columns += [
        Column(field.name, "", field.name.replace("_", " "), True)
        for field in parsed
        if field.kind in ("error", "ratio")
    ]
    return columns


def _heading(field):
    unit = numerals.UNITS.get(field.unit, field.unit)
    if field.kind == "noise":
        return "noise"
    if field.kind == "share":
        return "of bound" if field.what == "bound" else f"{field.what} {field.unit}".replace("_", " ").strip()
    if field.kind == "bytes":
        what = {"peak_mem": "peak", "mem_before_backward": "before"}.get(field.what, field.what.replace("_", " "))
        return f"{what} {unit}".strip()
    if field.kind == "rate":
        return "per second"
    return f"{field.phase} {unit}" if field.phase in charts.BANDWIDTHS else unit


def figure(name, value):
    """A figure without its unit, which the heading has."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    kind = fields.parse(name).kind
    if kind in ("noise", "share"):
        return numerals.percent(value)
    if kind == "bytes":
        return (
            numerals.significant(value, 6)
            if value >= 1000
            else f"{value:.2f}"
            if value >= 0.01
            else numerals.significant(value, 3)
        )
    if kind == "error":
        return numerals.significant(value, 2) if value >= 1e-3 else f"{value:.1e}" if value else "0"
    if isinstance(value, int):
        return str(value)
    return (
        numerals.fixed(value, 4) if kind in ("time", "speed", "bandwidth", "rate") else numerals.significant(value, 5)
    )


def _best(whole, entries):
    """{(id of row, column)}: the least time of each phase among those at the same place, where there are several."""
    found = set()
    for field in charts.charted_fields(whole):
        if field.kind != "time":
            continue
        at = {}
        for entry in entries:
            if entry.row.number(field.name):
                at.setdefault(whole.where(entry), []).append(entry.row)
        for rows in at.values():
            if len(rows) > 1:
                found.add((id(min(rows, key=lambda row: row.number(field.name))), field.name))
    return found


def every_column(whole):
    """Names and rows of text: all that the files say of each row, for whoever wants one more figure."""
    names = [
        *dict.fromkeys(name for entry in whole.entries[:MAX_ROWS] for name in entry.row.config),
        "status",
        *whole.columns,
    ]
    rows = []
    for entry in whole.entries[:MAX_ROWS]:
        row = entry.row
        rows.append(
            [
                row.status
                if name == "status"
                else _plain(row.config[name])
                if name in row.config
                else figure(name, row.figures.get(name))
                for name in names
            ]
        )
    return names, rows


def _plain(value):
    return "yes" if value is True else "no" if value is False else "" if value is None else str(value)
