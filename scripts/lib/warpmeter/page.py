"""Writes the page: one HTML file with everything in it, no network."""

import base64
import hashlib
import pathlib
import shlex

from warpmeter import charts, fields, findings, numerals, roofline, svg, tables
from warpmeter.svg import escape

_ASSETS = pathlib.Path(__file__).parent / "assets"
_KINDS = (
    ("time", "Time"),
    ("speed", "Speed"),
    ("bandwidth", "Bandwidth"),
    ("rate", "Rate"),
    ("bytes", "Memory"),
    ("roofline", "Roofline"),
)


def write(studies, title):
    """The page's text. `title` names it, in the browser and at its top."""
    style = (_ASSETS / "report.css").read_text(encoding="utf-8").strip()
    script = (_ASSETS / "report.js").read_text(encoding="utf-8").strip()
    several = len(studies) > 1
    sections = []  # (id, heading, body)
    for number, whole in enumerate(studies, 1):
        prefix = f"{whole.name}: " if several else ""
        key = f"s{number}"
        sections += [
            (f"{key}-{name}", prefix + heading if prefix else heading, body)
            for name, heading, body in _study_sections(whole, key)
            if body
        ]
    files = [file for whole in studies for file in whole.files]
    sections.append(("provenance", "Provenance", _provenance(files)))
    links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in sections)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{escape(heading)}</h2>\n{text}\n</section>'
        for name, heading, text in sections
    )
    sources = numerals.listed(file.origin for file in files[:6])
    sources += f" and {len(files) - 6} more files" if len(files) > 6 else ""
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Warpmeter scripts/report">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header class="wide">
<h1>{escape(title)}</h1>
{"".join(_opening(whole) for whole in studies)}
</header>
<nav aria-label="Sections"><ul class="wide">{links}</ul></nav>
<main id="main" class="wide">
{body}
</main>
<footer class="wide">Made by Warpmeter's scripts/report from {escape(sources)}. It loads nothing else.</footer>
<script>{script}</script>
</body>
</html>
"""


def _hash(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _status(status, text=None):
    return f'<span class="status {status}">{escape(text or status.replace("_", " "))}</span>'


def _opening(whole):
    counts = findings.status_counts(whole)
    chips = "".join(f"<li>{_status(status, f'{number} {status}')}</li>" for status, number in counts)
    same = findings.constants_text(whole)
    lead = f'<p class="lead">{escape(findings.opening(whole))}</p>'
    about = f'<p class="about">All rows: {escape(same)}</p>' if same else ""
    return f'{lead}<ul class="chips" aria-label="Rows by status">{chips}</ul>{about}\n'


def _study_sections(whole, key):
    """[(id, heading, body)] in the page's order; bodies may be empty."""
    looks = charts.styles(whole)
    drawn = charts.of_study(whole, looks)
    roof = roofline.of_study(whole, looks)
    sections = [("findings", "Findings", _findings(whole))]
    legend = _legend(whole, looks, drawn)
    for kind, heading in _KINDS:
        mine = [roof] if kind == "roofline" and roof else [chart for chart in drawn if chart.kind == kind]
        if mine:
            most = max(len(chart.panels) for chart in mine)
            inner = "".join(_chart(chart, f"{key}-{chart.key}", heading) for chart in mine)
            layout = "roofs" if kind == "roofline" else f"n{min(most, 4)}"
            sections.append((kind, heading, f'{legend}<div class="charts {layout}">{inner}</div>'))
    sections.append(("tables", "Tables", _tables(whole)))
    return sections


def _findings(whole):
    found = findings.of_study(whole)
    parts = []
    if found.notes:
        several = len(whole.files) > 1
        notes = "".join(
            f"<li>{escape(origin) + ': ' if several else ''}{escape(note)}</li>" for origin, note in found.notes
        )
        parts.append(f'<div class="note" role="note"><ul>{notes}</ul></div>')
    if found.answers:
        heads = "".join(f'<th scope="col">{escape(phase)}</th>' for phase in found.phases)
        rows = "".join(
            f'<tr class="group"><th scope="row">{escape(answer.panel)}</th>'
            + "".join(f'<td class="words">{escape(cell) or "&ndash;"}</td>' for cell in answer.cells)
            + "</tr>"
            for answer in found.answers
        )
        caption = "Fastest" if len(whole.series_labels) > 1 else "Best speed"
        parts.append(
            _box(
                f"<table><caption>{caption}</caption><thead><tr><td></td>{heads}</tr></thead>"
                f"<tbody>{rows}</tbody></table>",
                caption,
            )
        )
        parts.append(f'<p class="fine">{escape(found.answers_note)}</p>')
    if found.troubles:
        parts.append(_troubles(found.troubles))
    if not parts:
        parts.append("<p>There are no rows.</p>" if not whole.entries else "<p>Every row is ok.</p>")
    return "\n".join(parts)


def _troubles(troubles):
    name = "Rows without all of their figures"
    heads = '<th scope="col">status</th><th scope="col" class="n">rows</th><th scope="col">where</th>'
    heads += '<th scope="col">reason (of the first)</th>'
    rows = []
    for trouble in troubles:
        status = _status(trouble.status) if trouble.status else ""
        texts = "".join(f'<td class="words">{escape(text)}</td>' for text in (trouble.where, trouble.reason))
        rows.append(f'<tr class="group"><td>{status}</td><td class="n">{trouble.rows}</td>{texts}</tr>')
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return _box(f"<table><caption>{name}</caption>{body}</table>", name)


def _box(table, name):
    return f'<div class="box" role="region" tabindex="0" aria-label="{escape(name)}, table">{table}</div>'


def _legend(whole, looks, drawn):
    everything = [series for chart in drawn for panel in chart.panels for series in panel.series]
    there = {series.style for series in everything}
    shown = [(key, label) for key, label in whole.series_labels.items() if looks[key] in there][: 2 * charts.MAX_SERIES]
    statuses = list(dict.fromkeys(missing.status for series in everything for missing in series.missing))
    if len(shown) < 2 and not statuses:
        return ""
    items = "".join(f"<li>{svg.key_mark(looks[key])}{escape(label)}</li>" for key, label in shown)
    if statuses:
        words = numerals.listed(statuses, "or").replace("_", " ")
        items += f"<li>{svg.missing_mark()}no figure: {escape(words)}</li>"
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'


def _chart(chart, key, section):
    figures = []
    for index, panel in enumerate(chart.panels):
        caption = f"<figcaption>{escape(panel.title)}</figcaption>" if panel.title else ""
        figures.append(f'<figure class="{chart.kind}">{caption}{svg.panel(chart, index, f"{key}-{index}")}</figure>')
    left_out = f'<p class="fine">{escape(chart.left_out)}</p>' if chart.left_out else ""
    heading = "" if chart.title == section else f'<h3 id="{key}">{escape(chart.title)}</h3>'
    return (
        f'<div class="chart">{heading}<p class="subtitle">{escape(chart.subtitle)}</p>'
        f'<div class="panels">{"".join(figures)}</div>{left_out}</div>\n'
    )


def _tables(whole):
    made = tables.of_study(whole)
    parts = []
    for index, table in enumerate(made):
        if not table.rows:
            continue
        name = table.title or "All rows"
        inner = _table(table, name) + _commands(table)
        if len(made) > 6:
            counted = numerals.count(len(table.rows), "row")
            parts.append(
                f"<details{' open' if index == 0 else ''}><summary>{escape(name)}, {counted}</summary>{inner}</details>"
            )
        else:
            parts.append(inner)
        if table.left_out:
            parts.append(f'<p class="fine">{numerals.count(table.left_out, "more row")} in the file.</p>')
    if len(whole.panels) > len(made):
        parts.append(f'<p class="fine">{numerals.count(len(whole.panels) - len(made), "more table")} left out.</p>')
    if whole.entries:
        names, rows = tables.every_column(whole)
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        more = len(whole.entries) - len(rows)
        parts.append(
            "<details><summary>Every figure of every row</summary>"
            + _box(f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>", "Every figure")
            + (f'<p class="fine">{numerals.count(more, "more row")} in the file.</p>' if more > 0 else "")
            + "</details>"
        )
    return "\n".join(parts)


def _class(*names):
    names = " ".join(filter(None, names))
    return f' class="{names}"' if names else ""


def _table(table, name):
    """The status stands between what was asked for and what was measured, the reason last."""
    columns = table.columns
    asked = table.asked
    first = {
        index
        for index, column in enumerate(columns)
        if index >= asked and (index == asked or columns[index - 1].group != column.group)
    }
    reasons = any(row.reason for row in table.rows)

    over, index = [f'<td colspan="{asked + 1}"></td>'], asked
    while index < len(columns):
        span = 1
        while index + span < len(columns) and columns[index + span].group == columns[index].group:
            span += 1
        group = escape(columns[index].group)
        over.append(
            f'<th scope="colgroup" class="over" colspan="{span}">{group}</th>'
            if group
            else f'<td class="first" colspan="{span}"></td>'
        )
        index += span
    heads = [
        f'<th scope="col"{_class(column.numeric and "n", index in first and "first")}>{escape(column.heading)}</th>'
        for index, column in enumerate(columns)
    ]
    heads.insert(asked, '<th scope="col">status</th>')
    if reasons:
        over.append("<td></td>")
        heads.append('<th scope="col" class="first">reason</th>')

    lines, before = [], None
    for row in table.rows:
        again = row.cells[0].text == before
        before = row.cells[0].text
        cells = []
        for index, (column, cell) in enumerate(zip(columns, row.cells)):
            kind = _class(
                column.numeric and "n",
                index in first and "first",
                cell.best and "best",
                index == 0 and again and "again",
            )
            cells.append(
                f'<th scope="row"{kind}>{escape(cell.text)}</th>'
                if index == 0
                else f"<td{kind}>{escape(cell.text)}</td>"
            )
        cells.insert(asked, f"<td>{_status(row.status)}</td>")
        if reasons:
            cells.append(f'<td class="words first">{escape(row.reason)}</td>')
        lines.append(f"<tr{_class(not again and 'group')}>{''.join(cells)}</tr>")
    head = (
        f"<tr>{''.join(over)}</tr>" if any(column.group for column in columns) else ""
    ) + f"<tr>{''.join(heads)}</tr>"
    return _box(
        f"<table><caption>{escape(name)}</caption><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>", name
    )


def _command(text):
    return f'<div class="cmd"><pre><code>{escape(text)}</code></pre></div>'


def _commands(table):
    """Those of rows that are not ok come first: they are the ones to try again."""
    rows = [row for row in table.rows if row.rerun]
    rows.sort(key=lambda row: row.status == "ok")
    if not rows:
        return ""
    what = f"{numerals.count(len(rows), 'command')} to repeat a row of {escape(table.title or 'this table')}"
    return f"<details><summary>{what}</summary>{''.join(_command(row.rerun) for row in rows)}</details>"


def _provenance(files):
    parts = []
    for file in files:
        facts = _facts(file)
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts)
        parts.append(f"<h3>{escape(file.origin)}</h3><dl>{rows}</dl>")
        if file.argv:
            parts.append(_command(shlex.join(file.argv)))
    meanings = "".join(
        f"<dt>{_status(status)}</dt><dd>{escape(text)}</dd>" for status, text in fields.STATUS_MEANS.items()
    )
    parts.append(f"<details><summary>What the statuses mean</summary><dl>{meanings}</dl></details>")
    return "\n".join(parts)


def _facts(file):
    """[(name, HTML)]: what a reader needs to judge or repeat the run."""
    return [(name, escape(text)) for name, text in facts(file)]


def facts(file):
    """[(name, text)] of a run: tool and build, device, ceilings, settings, libraries, start and end."""
    version, device = file.version, dict(file.device)
    build = [
        f"{file.tool} {version.get('project') or ''}".strip(),
        file.git_sha and f"git {file.git_sha}",
        version.get("build_type"),
        version.get("compiler"),
        version.get("sanitizers") and f"sanitizers {version['sanitizers']}",
    ]
    found = [("Tool", ", ".join(str(word) for word in build if word)), ("Started", file.started_at)]
    ceilings, clocks = device.pop("ceilings", None), device.pop("clocks", None)
    shown = [file.device_name] + [
        f"{name} {value}"
        for name, value in device.items()
        if value is not None and name not in ("name", "cpu", "cores", "isa")
    ]
    found.append(("Device", ", ".join(shown)))
    for name, values in (("Clocks", clocks), ("Measured ceilings", ceilings)):
        if isinstance(values, dict):
            texts = [figure_with_unit(key, value) for key, value in values.items() if value is not None]
            found.append((name, ", ".join(texts)))
    for name, values in (("Libraries", file.libraries), ("Settings", file.settings)):
        found.append((name, ", ".join(f"{key} {_shown(value)}" for key, value in values.items() if value is not None)))
    seconds = file.summary.get("seconds")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        found.append(("Took", numerals.duration(seconds)))
    found.append(("Schema", file.schema))
    return [(name, text) for name, text in found if text]


def figure_with_unit(name, value):
    field = fields.parse(name)
    if field.unit is None or isinstance(value, (str, bool, dict, list)):
        return f"{name} {_shown(value)}"
    words = name[: -len(field.unit) - 1].replace("_", " ")
    return f"{words} {numerals.significant(value)} {numerals.UNITS.get(field.unit, field.unit)}"


def _shown(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(_shown(element) for element in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(inner)}" for key, inner in value.items())
    return str(value)
