"""A comparison or a history as text for a terminal, as Markdown, or as JSON."""

import json
import math

from warpmeter import comparison, fields, numerals, verdict

SCHEMA = "warpmeter-compare/1"
_COLOURS = {verdict.SLOWER: 31, comparison.LOST: 31, verdict.FASTER: 32, comparison.GAINED: 32, verdict.UNCLEAR: 33}


def _value(value):
    return "yes" if value is True else "no" if value is False else "" if value is None else str(value)


def _varying(keys, configs):
    """Keys whose values differ, each only once (kv_len beside an equal seq_len is none), and the text of the others."""
    columns = {}
    for key in keys:
        column = tuple(_value(config.get(key)) for config in configs)
        if len(set(column)) > 1:
            columns.setdefault(column, key)
    varying = list(columns.values())
    same = [
        f"{key} {_value(configs[0].get(key))}"
        for key in keys
        if configs[0].get(key) is not None and len({_value(config.get(key)) for config in configs}) == 1
    ]
    return varying, ", ".join(same)


def _about(file):
    parts = [file.tool, file.git_sha or "no commit", file.device_name, file.started_at]
    return ", ".join(filter(None, parts))


def _figure(value):
    return "" if value is None else numerals.fixed(value, 4)


def _unsure(uncertainty):
    """Of a ratio, which it multiplies or divides: "1.44%", from a factor of e on "27x"."""
    if uncertainty < 1:
        return numerals.percent(uncertainty)
    return numerals.times(math.exp(uncertainty)) if uncertainty < math.log(1000) else "over 999x"


def _spread(noise):
    return "" if noise is None else numerals.percent(noise)


def _memory(changes):
    said = []
    for change in changes:
        unit = fields.parse(change.field).unit
        said.append(
            f"{change.field[: -len(unit) - 1]} {numerals.significant(change.base, 6)} -> "
            f"{numerals.significant(change.new, 6)} {numerals.UNITS.get(unit, unit)}"
        )
    return "; ".join(said)


def _said(line):
    """Status and memory, in words."""
    parts = []
    if line.statuses[0] != line.statuses[1]:
        parts.append(f"{line.statuses[0]} -> {line.statuses[1]}" + (f": {line.reason}" if line.reason else ""))
    if line.memory:
        parts.append(_memory(line.memory))
    return "; ".join(parts)


def counts_text(counts):
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "nothing to compare"


def _heading(field):
    parsed = fields.parse(field)
    return field[: -len(parsed.unit) - 1] if parsed.unit and parsed.phase else field


class _Plain:
    """Columns in line; verdicts coloured where a terminal shows it."""

    def __init__(self, colour):
        self.colour = colour

    def table(self, header, rows, right):
        widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
        lines = []
        for number, row in enumerate([header, *rows]):
            cells = [
                cell.rjust(width) if at in right else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths))
            ]
            code = _COLOURS.get(row[0]) if number and self.colour else None
            if code:
                cells[0] = f"\033[{code}m{cells[0]}\033[0m"
            lines.append("  ".join(cells).rstrip())
        return lines

    @staticmethod
    def text(text):
        return text

    @staticmethod
    def title(text):
        return text

    @staticmethod
    def item(text):
        return f"  {text}"


class _Markdown:
    def table(self, header, rows, right):
        widths = [max(3, *(len(self.text(row[at])) for row in [header, *rows])) for at in range(len(header))]
        lines = []
        for number, row in enumerate([header, *rows]):
            cells = [self.text(cell) for cell in row]
            lines.append(
                "| "
                + " | ".join(
                    cell.rjust(width) if at in right else cell.ljust(width)
                    for at, (cell, width) in enumerate(zip(cells, widths))
                )
                + " |"
            )
            if not number:
                lines.append(
                    "|"
                    + "|".join(
                        "-" * (width + 1) + ":" if at in right else "-" * (width + 2) for at, width in enumerate(widths)
                    )
                    + "|"
                )
        return lines

    @staticmethod
    def text(text):
        for character in "\\|<*`[]":
            text = text.replace(character, "\\" + character)
        return text

    def title(self, text):
        return f"**{self.text(text)}**"

    def item(self, text):
        return f"- {self.text(text)}"


def style(markdown, colour=False):
    return _Markdown() if markdown else _Plain(colour)


def write_comparison(found, how, only=None):
    """`only`: the verdicts to show, or None for all."""
    lines = [
        how.item(f"base: {found.base.origin}: {_about(found.base)}"),
        how.item(f"new: {found.new.origin}: {_about(found.new)}"),
    ]
    shown = [line for line in found.lines if only is None or line.word in only]
    if shown:
        varying, same = _varying(found.keys, [line.config for line in shown])
        if same:
            lines.append(how.item(f"in every row: {same}"))
        header = ["verdict", *varying, "phase", "base", "noise", "new", "noise", "unit", "ratio", "+-", "also"]
        rows = []
        for line in shown:
            rows.append(
                [
                    line.word,
                    *(_value(line.config[key]) for key in varying),
                    _heading(line.field),
                    _figure(line.base),
                    _spread(line.base_noise),
                    _figure(line.new),
                    _spread(line.new_noise),
                    numerals.UNITS.get(line.unit, line.unit),
                    f"{line.ratio:.3f}" if line.ratio else "",
                    _unsure(line.uncertainty) if line.ratio else "",
                    _said(line),
                ]
            )
        if not any(row[-1] for row in rows):
            header, rows = header[:-1], [row[:-1] for row in rows]
        first = 2 + len(varying)
        numeric = {first, first + 1, first + 2, first + 3, first + 5, first + 6}
        numeric |= {at + 1 for at, key in enumerate(varying) if all(_is_number(line.config[key]) for line in shown)}
        lines += ["", *how.table(header, rows, numeric)]
    mean = found.geometric_mean()
    lines += [
        "",
        how.text(counts_text(found.counts()) + (f"; geometric mean of the ratios {mean:.3f}" if mean else "") + "."),
    ]
    for configs, where in ((found.only_base, "base"), (found.only_new, "new")):
        if configs:
            lines += ["", how.title(f"{numerals.count(len(configs), 'row')} only in {where}")]
            lines += [how.item(_config_text(config)) for config in configs]
    if found.unmeasured:
        lines += ["", how.text(f"{numerals.count(found.unmeasured, 'row')} without a time in either.")]
    return _with_notes(lines, found.notes, how)


def write_history(found, how, only=None):
    shown = [series for series in found.series if only is None or series.word in only]
    lines = []
    if shown:
        varying, same = _varying(found.keys, [series.config for series in shown])
        if same:
            lines += [how.item(f"in every row: {same}"), ""]
        header = [
            *varying,
            "phase",
            "unit",
            *(column.title for column in found.columns),
            "last / first",
            "+-",
            "verdict",
        ]
        rows = []
        for series in shown:
            rows.append(
                [
                    *(_value(series.config[key]) for key in varying),
                    _heading(series.field),
                    numerals.UNITS.get(series.unit, series.unit),
                    *map(_figure, series.medians),
                    f"{series.ratio:.3f}" if series.ratio else "",
                    _unsure(series.uncertainty) if series.ratio else "",
                    series.word or "",
                ]
            )
        first = len(varying) + 2
        numeric = set(range(first, first + len(found.columns) + 2))
        numeric |= {at for at, key in enumerate(varying) if all(_is_number(series.config[key]) for series in shown)}
        lines += how.table(header, rows, numeric)
    lines += ["", how.text(f"Last beside first: {counts_text(found.counts())}.")]
    return _with_notes(lines, found.notes, how)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _config_text(config):
    return ", ".join(f"{key} {_value(value)}" for key, value in config.items() if value is not None)


def _with_notes(lines, notes, how):
    if notes:
        lines += ["", how.title("Notes")] + [how.item(note) for note in notes]
    return "\n".join(lines) + "\n"


def _file(file):
    return {
        "file": file.origin,
        "tool": file.tool,
        "git_sha": file.version.get("git_sha"),
        "device": file.device_name,
        "started_at": file.started_at or None,
    }


def _rounded(value):
    return value if value is None or not isinstance(value, float) or math.isfinite(value) else None


def comparison_json(found, effect, percent):
    lines = [
        {
            "config": line.config,
            "field": line.field,
            "verdict": line.word,
            "base": _rounded(line.base),
            "base_noise": line.base_noise,
            "new": _rounded(line.new),
            "new_noise": line.new_noise,
            "ratio": line.ratio,
            "uncertainty": line.uncertainty,
            "base_status": line.statuses[0],
            "new_status": line.statuses[1],
            "reason": line.reason or None,
            "rerun": line.rerun or None,
            "memory": [{"field": change.field, "base": change.base, "new": change.new} for change in line.memory],
        }
        for line in found.lines
    ]
    return _dump(
        {
            "schema": SCHEMA,
            "base": _file(found.base),
            "new": _file(found.new),
            "effect": effect,
            "row_keys": found.keys,
            "lines": lines,
            "only_base": found.only_base,
            "only_new": found.only_new,
            "unmeasured": found.unmeasured,
            "notes": found.notes,
            "summary": {
                **found.counts(),
                "geometric_mean_ratio": found.geometric_mean(),
                "regressions": len(found.regressions(percent or 0.0)),
            },
        }
    )


def history_json(found, effect, percent):
    columns = [{"title": column.title, "files": [_file(file) for file in column.files]} for column in found.columns]
    lines = [
        {
            "config": series.config,
            "field": series.field,
            "medians": series.medians,
            "verdict": series.word,
            "ratio": series.ratio,
            "uncertainty": series.uncertainty,
        }
        for series in found.series
    ]
    return _dump(
        {
            "schema": SCHEMA,
            "columns": columns,
            "effect": effect,
            "row_keys": found.keys,
            "lines": lines,
            "notes": found.notes,
            "summary": {**found.counts(), "regressions": len(found.regressions(percent or 0.0))},
        }
    )


def _dump(value):
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
