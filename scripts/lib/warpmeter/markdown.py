"""The report as Markdown: findings, tables, commands, provenance; for a pull request or a terminal."""

import re
import shlex

from warpmeter import findings, numerals, page, tables

#: A _ within a word means itself.
_SPECIAL = re.compile(r"([\\`*\[\]<>|#&~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def write(studies, title):
    lines = [f"# {_text(title)}", ""]
    for whole in studies:
        if len(studies) > 1:
            lines += [f"## {_text(whole.name)}", ""]
        lines += _study(whole)
    lines += ["## Provenance", ""]
    for whole in studies:
        for file in whole.files:
            lines += [f"**{_text(file.origin)}**", ""]
            lines += [f"- {name}: {_text(text)}" for name, text in page.facts(file)]
            lines += ["", *_code([shlex.join(file.argv)] if file.argv else [])]
    return "\n".join(lines).rstrip("\n") + "\n"


def _study(whole):
    found = findings.of_study(whole)
    lines = [_text(found.opening), ""]
    same = findings.constants_text(whole)
    if same:
        lines += [f"All rows: {_text(same)}", ""]
    for origin, note in found.notes:
        lines.append(f"> {_text(f'{origin}: {note}' if len(whole.files) > 1 else note)}")
    if found.notes:
        lines.append("")
    if found.answers:
        heading = "Fastest" if len(whole.series_labels) > 1 else "Best speed"
        rows = [[answer.panel, *answer.cells] for answer in found.answers]
        lines += [
            f"**{heading}**",
            "",
            *_table(["", *found.phases], [False] * (1 + len(found.phases)), rows),
            "",
            _text(found.answers_note),
            "",
        ]
    if found.troubles:
        rows = [[trouble.status, str(trouble.rows), trouble.where, trouble.reason] for trouble in found.troubles]
        lines += [
            "**Rows without all of their figures**",
            "",
            *_table(["status", "rows", "where", "reason (of the first)"], [False, True, False, False], rows),
            "",
        ]
    made = tables.of_study(whole)
    for table in made:
        if not table.rows:
            continue
        columns = table.columns
        names = [f"{column.group} {column.heading}".strip() for column in columns]
        rows = [
            [f"{cell.text}*" if cell.best else cell.text for cell in row.cells] + [row.status] for row in table.rows
        ]
        lines += [
            f"**{_text(table.title or 'All rows')}**",
            "",
            *_table([*names, "status"], [column.numeric for column in columns] + [False], rows),
            "",
        ]
        if any(cell.best for row in table.rows for cell in row.cells):
            lines += ["\\* the least time at its place", ""]
        if table.left_out:
            lines += [f"{numerals.count(table.left_out, 'more row')} in the file.", ""]
    if len(whole.panels) > len(made):
        lines += [f"{numerals.count(len(whole.panels) - len(made), 'more table')} left out.", ""]
    again = [row.rerun for table in made for row in table.rows if row.status != "ok" and row.rerun]
    if again:
        lines += ["**To repeat what is not ok**", "", *_code(again[: tables.MAX_ROWS])]
    return lines


def _text(text):
    return _SPECIAL.sub(r"\\\1", text)


def _table(heads, numeric, rows):
    """Columns aligned in the source too."""
    cells = [[_text(cell) for cell in row] for row in rows]
    heads = [_text(head) for head in heads]
    widths = [max([3, len(heads[index]), *(len(row[index]) for row in cells)]) for index in range(len(heads))]

    def line(row):
        padded = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric))
        return f"| {' | '.join(padded)} |"

    rule = ("-" * (width + 1) + ":" if right else "-" * (width + 2) for width, right in zip(widths, numeric))
    return [line(heads), f"|{'|'.join(rule)}|", *map(line, cells)]


def _code(commands):
    if not commands:
        return []
    fence = "`" * max(3, 1 + max(len(run) for command in commands for run in ["", *re.findall("`+", command)]))
    return [f"{fence}sh", *commands, fence, ""]
