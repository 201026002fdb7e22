"""What a study found, in words: what was measured on what, what was fastest where, what has no figure and why."""

import statistics
from collections import Counter
from typing import NamedTuple

from warpmeter import charts, fields, numerals
from warpmeter import study as studies

MAX_LINES = 40


class Answer(NamedTuple):
    """What was fastest in one panel, phase by phase."""

    panel: str
    cells: list  # a text for each of Findings.phases


class Trouble(NamedTuple):
    """Rows of one status and, but for their numbers, one reason."""

    status: str
    where: str
    reason: str
    rows: int


class Findings(NamedTuple):
    opening: str
    phases: list  # headings of the answers' columns
    answers: list
    answers_note: str
    troubles: list
    notes: list  # (origin, text): what the files' readers had to say, and what makes figures doubtful


def of_study(whole):
    times = [field for field in charts.charted_fields(whole) if field.kind == "time"]
    speeds = {}
    for field in charts.charted_fields(whole):
        if field.kind in ("speed", "bandwidth"):
            speeds.setdefault(field.phase, []).append(field)
    if len(whole.contender_labels) > 1:
        answers = [
            Answer(whole.panel_title(panel) or "all", [_fastest(whole, panel, field) for field in times])
            for panel in whole.panels[:MAX_LINES]
        ]
        note = "How many times faster than the next best at the same place, by medians; even: within their noise."
    else:
        answers = [
            Answer(
                whole.panel_title(panel) or "all",
                [_highest(whole, panel, speeds.get(field.phase, [])) for field in times],
            )
            for panel in whole.panels[:MAX_LINES]
        ]
        note = "The best speed reached, and the share of the bound measured on the device."
    answers = [answer for answer in answers if any(answer.cells)]
    phases = [charts.phase_title(field.phase) or "Time" for field in times]
    told = [index for index in range(len(phases)) if any(answer.cells[index] for answer in answers)]
    phases = [phases[index] for index in told]
    answers = [Answer(answer.panel, [answer.cells[index] for index in told]) for answer in answers]
    return Findings(opening(whole), phases, answers, note, _troubles(whole), _notes(whole))


def status_counts(whole):
    """[(status, rows)] in the vocabulary's order."""
    counts = Counter(entry.row.status for entry in whole.entries)
    return [(status, counts[status]) for status in (*fields.STATUSES, "unknown") if counts[status]]


def opening(whole):
    compared = [label for label in dict.fromkeys(whole.contender_labels.values()) if label]
    what = numerals.listed(compared[:8]) + (f" and {len(compared) - 8} more" if len(compared) > 8 else "")
    devices = numerals.listed(dict.fromkeys(file.device_name for file in whole.files))
    starts = sorted(file.started_at for file in whole.files if file.started_at)
    days = list(dict.fromkeys(map(numerals.day, starts)))
    when = f" on {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}" if days else ""
    counts = ", ".join(f"{number} {status}" for status, number in status_counts(whole))
    rows = numerals.count(len(whole.entries), "configuration")
    said = f"{whole.tool} measured {rows}{' of ' + what if what and whole.entries else ''} on {devices}{when}"
    return f"{said}: {counts}." if counts else f"{said}."


def _fastest(whole, panel, field):
    """ "flash from 512 on, 1.6x to 5.9x faster than the next" for the places where at least two were measured."""
    runs = {}  # {place: {contender: [(time, noise)]}}
    for entry in whole.by_panel[panel]:
        time = entry.row.number(field.name)
        if time and entry.x is not None:
            noise = entry.row.number(f"{field.phase}_noise") or 0.0
            runs.setdefault(whole.where(entry), {}).setdefault(whole.contender(entry), []).append((time, noise))
    at = {x: {who: _together(found) for who, found in contenders.items()} for x, contenders in runs.items()}
    ranges = []  # [winner or None where even, [places], [ratios]]
    for x in sorted(at, key=whole.place if len(at) > 1 else None):
        ranked = sorted(at[x].items(), key=lambda item: item[1][0])
        if len(ranked) < 2:
            continue
        (first, (best, noise)), (second, (next_best, other_noise)) = ranked[:2]
        ratio = next_best / best
        winner = (
            (first,) if ratio > 1 + max(0.01, (noise + other_noise) / 2) else tuple(sorted((first, second), key=str))
        )
        if ranges and ranges[-1][0] == winner:
            ranges[-1][1].append(x)
            ranges[-1][2].append(ratio)
        else:
            ranges.append((winner, [x], [ratio]))
    said = []
    for winner, places, ratios in ranges:
        where = "" if len(ranges) == 1 else f" {_places(whole, places)}"
        names = " and ".join(whole.contender_labels[key] for key in winner)
        if len(winner) == 2:
            said.append(f"{names} even{where}")
            continue
        low, high = numerals.times(min(ratios)), numerals.times(max(ratios))
        said.append(f"{names}{where}, {low if low == high else f'{low} to {high}'}")
    return "; ".join(said[:4]) + (f"; and {len(said) - 4} more ranges" if len(said) > 4 else "")


def _together(runs):
    """(time, noise) of a program's runs: between them, and at least as noisy as they differ."""
    times = [time for time, _ in runs]
    return statistics.median(times), max(*(noise for _, noise in runs), max(times) / min(times) - 1)


def _places(whole, places):
    first, last = whole.axis_text(places[0]), whole.axis_text(places[-1])
    return f"at {first}" if first == last else f"from {first} to {last}"


def _highest(whole, panel, rates):
    """ "649 TFLOP/s at seq_len 16384, 81% of the compute bound", and where plain code was measured for the same bytes
    ", 97% of plain code". `rates`: a phase's speed and bandwidth, of which the latter tells what is bound by memory."""
    if not rates:
        return ""
    prefix = f"{rates[0].phase}_" if rates[0].phase else ""
    found = []
    for entry in whole.by_panel[panel]:
        bound = entry.row.figures.get(prefix + "bound")
        by_kind = sorted(rates, key=lambda field: (field.kind == "bandwidth") != (bound == "memory"))
        field = next((field for field in by_kind if entry.row.number(field.name)), None)
        if field:
            found.append((entry.row.number(field.name), field, entry, bound))
    if not found:
        return ""
    bound = found[-1][3]  # where a sweep ends, should it cross over
    value, field, entry, bound = max((each for each in found if each[3] == bound), key=lambda each: each[0])
    share = entry.row.number(prefix + "bound_share")
    where = f" at {whole.axis} {whole.axis_text(entry.x)}" if whole.axis and entry.x is not None else ""
    held = f", {numerals.percent(share)} of the {bound} bound" if share and isinstance(bound, str) else ""
    plain = entry.row.number(prefix + "plain_share")
    beside = f", {numerals.percent(plain)} of plain code" if plain else ""
    return f"{charts.figure_text(field, value)}{where}{held}{beside}"


def _troubles(whole):
    groups = {}
    for entry in whole.entries:
        if entry.row.status != "ok":
            reason = "".join("#" if letter.isdigit() else letter for letter in entry.row.reason)
            groups.setdefault((entry.row.status, entry.series, reason[:60]), []).append(entry)
    order = {status: index for index, status in enumerate((*fields.STATUSES, "unknown"))}
    found = []
    for (status, series, _), entries in sorted(groups.items(), key=lambda item: order[item[0][0]]):
        places = list(dict.fromkeys(entry.x for entry in entries if entry.x is not None))
        panels = list(dict.fromkeys(entry.panel for entry in entries))
        where = whole.series_labels[series]
        if places and whole.axis not in whole.series_keys:
            texts = [whole.axis_text(x) for x in places]
            where += f", {whole.axis} {numerals.listed(texts[:6]) if len(texts) <= 6 else f'{texts[0]} to {texts[-1]}'}"
        if whole.panel_keys and len(panels) < len(whole.panels):
            shown = [whole.panel_title(panel) for panel in panels[:4]]
            where += f" ({'; '.join(shown)}{f'; {len(panels) - 4} more' if len(panels) > 4 else ''})"
        elif whole.panel_keys and len(panels) > 1:
            where += f" (all {len(panels)} panels)"
        found.append(Trouble(status, where, entries[0].row.reason, len(entries)))
    if len(found) > MAX_LINES:
        rest = sum(trouble.rows for trouble in found[MAX_LINES:])
        found = [*found[:MAX_LINES], Trouble("", f"{numerals.count(rest, 'more row')}", "see the tables", rest)]
    return found


def _notes(whole):
    notes = []
    several_flushes = len({file.cold_l2 for file in whole.files if file.cold_l2}) > 1
    for file in whole.files:
        notes += [(file.origin, note) for note in file.notes[:20]]
        if len(file.notes) > 20:
            notes.append((file.origin, f"{len(file.notes) - 20} more remarks of this kind."))
        build = file.version.get("build_type")
        if isinstance(build, str) and build.lower() == "debug":
            notes.append((file.origin, "A debug build: its times say nothing about speed."))
        if file.version.get("sanitizers"):
            notes.append(
                (file.origin, f"Built with sanitizers ({file.version['sanitizers']}): times say nothing about speed.")
            )
        if file.settings.get("check") is False:
            notes.append((file.origin, "Measured with --no-check: no result was compared with the reference."))
        if several_flushes and file.cold_l2 == "dirty":
            text = "Each sample also wrote back what the flush had left in the L2; those of other files here did not."
            notes.append((file.origin, text))
        warnings = file.summary.get("warnings")
        if isinstance(warnings, int) and not isinstance(warnings, bool) and warnings > 0:
            notes.append(
                (file.origin, f"The tool gave {numerals.count(warnings, 'warning')} on stderr while it measured.")
            )
    return notes


def constants_text(whole):
    """What all rows share: "fp32 · batch 8 · causal"."""
    pairs = [(name, value) for name, value in whole.constants.items() if name not in whole.series_keys]
    return studies.titled(pairs)
