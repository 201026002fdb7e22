"""Charts as plain data: what svg.py and png.py draw. Which charts a study gets is decided by its columns' names."""

from typing import Any, NamedTuple

from warpmeter import axes, fields, numerals
from warpmeter.study import is_bytes

MAX_PANELS = 24
MAX_SERIES = 12
MAX_POINTS = 100
MAX_CATEGORIES = 24

#: Statuses of rows whose place in a picture is its top edge: there is no figure, and that is a finding.
MARKED = ("oom", "mismatch", "error", "crashed", "timeout", "interrupted", "unknown")

#: What the field calls bandwidths of a collective: no phases, for all that they stand before the unit.
BANDWIDTHS = ("algo", "algbw", "busbw")

_PHASES = {
    "fwd": "Forward",
    "bwd": "Backward",
    "fwd_bwd": "Forward and backward",
    "optim": "Optimizer",
    "oneshot": "One-shot prefill",
    "chunked": "Chunked prefill",
    "train_step": "Training step",
    "train": "Training",
    "comm": "Communication",
    "exposed": "Exposed communication",
    "tpot": "Output token",
    "decode_alone": "Decoding alone",
    "": "",
}
_MEMORY = {"peak_mem": "peak memory", "reserved_mem": "reserved memory"}
_BEST = {
    "time": "lower is better",
    "bytes": "lower is better",
    "speed": "higher is better",
    "bandwidth": "higher is better",
    "rate": "higher is better",
}
_WORDS = {"time": "time", "speed": "speed", "bandwidth": "bandwidth", "rate": "rate"}


class Style(NamedTuple):
    """A series' looks, the same in every chart: an index into the colours and one into markers and dashes."""

    colour: int
    variant: int
    marker: int


class Point(NamedTuple):
    x: Any
    y: float
    text: str  # what it is, in words
    hollow: bool = False


class Missing(NamedTuple):
    """No figure: a mark at the top edge."""

    x: Any
    status: str
    text: str


class Series(NamedTuple):
    label: str
    style: Style
    points: list
    missing: list
    joined: bool = True


class Line(NamedTuple):
    """A measured ceiling: level, or through several points."""

    points: list  # [(x, y)]: one for a level line across the panel
    text: str


class Panel(NamedTuple):
    title: str
    series: list
    lines: list


class Chart(NamedTuple):
    key: str  # for ids
    kind: str  # time, speed, bytes, bandwidth, rate, roofline
    title: str
    subtitle: str
    x_label: str
    x_axis: Any
    y_axis: Any
    panels: list
    left_out: str  # what was too much to draw, or ""

    @property
    def has_missing(self):
        return any(series.missing for panel in self.panels for series in panel.series)


class Looks:
    """What has which colour, dashes and marker so far: studies in one picture, under one legend, share it."""

    def __init__(self):
        self.colours, self.variants, self.markers = {}, {}, {}


def styles(study, looks=None):
    """{series key: Style}. Runs of one implementation share its colour and differ in marker and dashes."""
    looks, found = looks or Looks(), {}
    for key, label in study.series_labels.items():
        main, rest = (key[:1], key[1:]) if len(study.series_keys) > 1 else (key, ())
        colour = looks.colours.setdefault(main or label, len(looks.colours))
        variant = looks.variants.setdefault(rest, len(looks.variants))
        found[key] = Style(colour, variant, looks.markers.setdefault(label, len(looks.markers)))
    return found


def phase_title(phase):
    first, _, rest = phase.partition("_")
    words = _PHASES.get(phase) or f"{_PHASES.get(first, first)} {rest.replace('_', ' ')}".strip()
    return words[:1].upper() + words[1:]


def charted_fields(study):
    """The columns that get a chart, by kind: medians, and of bandwidths that say the same the first."""
    if study.charted is None:
        study.charted = _charted_fields(study)
    return study.charted


def _charted_fields(study):
    parsed = [fields.parse(column) for column in study.columns]
    parsed = [
        field
        for field in parsed
        if field.statistic is None and field.kind in ("time", "speed", "bandwidth", "bytes", "rate")
    ]
    speeds = {field.phase for field in parsed if field.kind == "speed"}
    memory_bound = _memory_bound_phases(study)
    medians = fields.medians_of_time(study.columns)
    measured = any(field.kind == "bytes" and not _predicted(field) and _held(study, field) for field in parsed)
    kept, bandwidth_of = [], {}
    for field in parsed:
        if field.kind == "time" and field not in medians or measured and _predicted(field):
            continue
        if field.kind == "bandwidth":
            if field.phase in speeds and field.phase not in memory_bound:
                continue  # the speed says it
            what = "" if field.phase in BANDWIDTHS else field.phase
            if bandwidth_of.setdefault(what, field.name) != field.name:
                continue
        kept.append(field)
    return kept


def _predicted(field):
    """Memory as it was predicted, whole or part by part: of interest until it is measured."""
    return field.kind == "bytes" and "predicted" in field.name.split("_")


def _held(study, field):
    return any(entry.row.number(field.name) is not None for entry in study.entries)


def _memory_bound_phases(study):
    counts = {}
    for entry in study.entries:
        for name, value in entry.row.figures.items():
            if name.endswith("_bound") and value in ("memory", "compute"):
                counts.setdefault(name[:-6], []).append(value == "memory")
    return {phase for phase, votes in counts.items() if 2 * sum(votes) > len(votes)}


def metric_title(field):
    if field.what == "mem_before_backward":
        words = "Memory held before the backward"
    elif field.kind == "bytes":
        words = f"{phase_title(field.phase)} {_MEMORY.get(field.what, field.what.replace('_', ' '))}".strip()
    elif field.kind == "rate":
        words = f"{phase_title(field.phase)} per second"
    elif field.kind == "bandwidth" and field.phase in BANDWIDTHS:
        words = "Bandwidth" if field.phase != "busbw" else "Bus bandwidth"
    else:
        words = f"{phase_title(field.phase)} {_WORDS[field.kind]}".strip()
    return words[:1].upper() + words[1:]


def unit_scale(field):
    """(what one unit is on the axis, the axis's unit): times in seconds, memory in bytes, the rest as they are."""
    if field.kind == "time":
        return fields.TIME_UNITS[field.unit], "s"
    if field.kind == "bytes":
        return fields.BYTE_UNITS[field.unit], "bytes"
    return 1.0, numerals.UNITS.get(field.unit, field.unit)


def figure_text(field, value):
    """A figure in words: "1.23 ms"."""
    scale, unit = unit_scale(field)
    if unit == "s":
        return numerals.duration(value * scale)
    if unit == "bytes":
        return numerals.bytes_binary(value * scale)
    factor, unit = readable(unit, value)
    return f"{numerals.significant(value * factor)} {unit}"


def of_study(study, looks):
    """The charts of a study that has an axis, in the order: time, speed, bandwidth, rate, memory."""
    if study.axis is None:
        return []
    found = []
    order = ("time", "speed", "bandwidth", "rate", "bytes")
    for field in sorted(charted_fields(study), key=lambda field: order.index(field.kind)):
        chart = _chart(study, field, looks)
        if chart:
            found.append(chart)
    return found


def _chart(study, field, looks):
    scale, unit = unit_scale(field)
    panels, values, xs = [], [], []
    more_panels = more_series = 0
    for key in study.panels:
        if len(panels) == MAX_PANELS:
            more_panels += 1
            continue
        by_series = {}
        for entry in study.by_panel[key]:
            by_series.setdefault(entry.series, []).append(entry)
        series, drawn = [], []
        for series_key, entries in by_series.items():
            if len(series) == MAX_SERIES:
                break
            each = _series(study, field, scale, entries, series_key, looks)
            if each.points or each.missing:
                series.append(each)
                drawn += entries
        more_series = max(more_series, len(by_series) - MAX_SERIES)
        if series:  # one without any point too: that nothing fits there is a finding
            lines = _ceilings(drawn, field) if field.kind in ("speed", "bandwidth") else []
            panels.append(Panel(study.panel_title(key), series, lines))
    left_out = _left_out(more_panels, more_series, len(study.categories or ()) - MAX_CATEGORIES)
    for panel in panels:
        for series in panel.series:
            values += [point.y for point in series.points]
            xs += [mark.x for mark in series.points + series.missing]
        values += [y for line in panel.lines for _, y in line.points]
    if not any(series.points for panel in panels for series in panel.series):
        return None
    factor, unit = readable(unit, max(values))
    if factor != 1:
        panels = [scaled(panel, factor) for panel in panels]
        values = [value * factor for value in values]
    if len(panels) == 1 and not study.panel_keys:
        panels = [panels[0]._replace(title="")]
    return Chart(
        field.name.lower().replace("_", "-"),
        field.kind,
        metric_title(field),
        f"{_measure(field, unit)}{_BEST[field.kind]}",
        study.axis,
        x_axis(study, xs),
        axes.LogAxis.around(values, unit, 2 if unit == "bytes" else 10),
        panels,
        left_out,
    )


def _measure(field, unit):
    return "median, " if field.kind == "time" else f"{unit}, " if field.kind in ("speed", "bandwidth") else ""


def readable(unit, highest):
    """A factor and unit that spare the axis leading zeros: a CPU's TFLOP/s are GFLOP/s."""
    smaller = {"TFLOP/s": "GFLOP/s", "GB/s": "MB/s"}.get(unit)
    return (1000.0, smaller) if smaller and highest < 1 else (1.0, unit)


def scaled(panel, factor):
    return panel._replace(
        series=[
            series._replace(points=[point._replace(y=point.y * factor) for point in series.points])
            for series in panel.series
        ],
        lines=[line._replace(points=[(x, y * factor) for x, y in line.points]) for line in panel.lines],
    )


def x_axis(study, xs):
    there = set(xs)
    if study.categories is not None:
        return axes.CategoryAxis([category for category in study.categories[:MAX_CATEGORIES] if category in there])
    if len(there) <= 40:
        return axes.ValueAxis(there, study.axis_text)
    return axes.LogAxis.around(there, "bytes" if is_bytes(study.axis) else "", 2)


def _series(study, field, scale, entries, series_key, looks):
    points, missing = {}, {}
    for entry in entries:
        x = entry.x
        if x is None or (study.place(x) >= MAX_CATEGORIES if study.categories is not None else not x > 0):
            continue
        value = entry.row.number(field.name)
        if value is not None and value > 0:
            points[x] = Point(x, value * scale, _point_text(study, field, entry, value))
        elif entry.row.status in MARKED and _concerns(entry.row, field):
            missing[x] = Missing(x, entry.row.status, f"{_name(study, entry)}: {entry.row.status}, {entry.row.reason}")
    points = sorted(points.values(), key=lambda mark: study.place(mark.x))
    if len(points) > MAX_POINTS:
        points = points[:: len(points) // MAX_POINTS + 1] + points[-1:]
    # Where the axis names the series its ticks do.
    return Series(
        "" if study.axis in study.series_keys else study.series_labels[series_key],
        looks[series_key],
        points,
        sorted(missing.values(), key=lambda mark: study.place(mark.x))[:MAX_POINTS],
        study.categories is None,
    )


def _concerns(row, field):
    """Whether the row was to have this figure: a forward alone has no backward to miss."""
    phases = row.config.get("pass")
    return (
        not isinstance(phases, str)
        or not field.phase
        or field.phase not in ("fwd", "bwd")
        or field.phase in phases.split(",")
    )


def _point_text(study, field, entry, value):
    row, prefix = entry.row, f"{field.phase}_" if field.phase else ""
    about = []
    noise, samples = row.number(prefix + "noise"), row.number(prefix + "n")
    if field.kind == "time" and noise is not None:
        about.append(f"noise {numerals.percent(noise)}")
    if field.kind == "time" and samples is not None:
        about.append(numerals.count(int(samples), "sample"))
    share, bound = row.number(prefix + "bound_share"), row.figures.get(prefix + "bound")
    if share is not None and isinstance(bound, str):
        about.append(f"{numerals.percent(share)} of the {bound} bound")
    plain = row.number(prefix + "plain_share")
    if plain is not None:
        about.append(f"{numerals.percent(plain)} of plain code")
    kernel = row.figures.get("kernel" if field.phase in ("", "fwd") else prefix + "kernel")
    if isinstance(kernel, str) and kernel:
        about.append(kernel)
    return f"{_name(study, entry)}: {figure_text(field, value)}" + (f" ({', '.join(about)})" if about else "")


def _name(study, entry):
    """What a mark stands for: "flash, seq_len 4096"."""
    label = study.series_labels[entry.series]
    return label if study.axis in study.series_keys else f"{label}, {study.axis} {study.axis_text(entry.x)}"


def _ceilings(entries, field):
    """The ceilings that rows of a panel were held against, as level lines."""
    lines = {}
    for entry in entries:
        for line in row_ceilings(entry, field.phase):
            if line.kind == field.kind:
                lines.setdefault(line.text, Line([(None, line.rate)], line.text))
    return list(lines.values())[:4]


class Ceiling(NamedTuple):
    kind: str  # speed or bandwidth
    rate: float  # TFLOP/s or GB/s
    name: str  # matmul_fp32_tflops; "" where the header does not have it
    text: str


def row_ceilings(entry, phase):
    """What bounded the phase of a row: from its share, named by the header's ceiling of that rate (or a third of
    tf32's, which is what 3xTF32 arithmetic has)."""
    row, prefix = entry.row, f"{phase}_" if phase else ""
    share, bound = row.number(prefix + "bound_share"), row.figures.get(prefix + "bound")
    unit, kind = ("tflops", "speed") if bound == "compute" else ("gbps", "bandwidth")
    rate = row.number(prefix + unit)
    if not share or not rate or bound not in ("compute", "memory"):
        return []
    ceiling = rate / share
    for name, value in entry.file.ceilings.items():
        for divisor, suffix in ((1, ""), (3, " / 3")):
            if name.endswith(unit) and abs(ceiling * divisor / value - 1) < 1e-3 and (divisor == 1 or "tf32" in name):
                what = name[: -len(unit) - 1].replace("_", " ") + suffix
                return [Ceiling(kind, value / divisor, name, ceiling_text(what, value / divisor, kind))]
    return [Ceiling(kind, ceiling, "", ceiling_text("measured bound", ceiling, kind))]


def ceiling_text(what, rate, kind):
    factor, unit = readable("TFLOP/s" if kind == "speed" else "GB/s", rate)
    return f"{what} {numerals.significant(rate * factor, 3)} {unit}"


def speed_text(tflops):
    factor, unit = readable("TFLOP/s", tflops)
    return f"{numerals.significant(tflops * factor)} {unit}"


def _left_out(panels, series, categories):
    said = []
    if panels > 0:
        said.append(f"{numerals.count(panels, 'more panel')} left out: narrow the sweep, or give fewer files")
    if series > 0:
        said.append(f"panels show {MAX_SERIES} series, {numerals.count(series, 'more one')} at most left out")
    if categories > 0:
        said.append(
            f"the first {MAX_CATEGORIES} along the axis are shown, {numerals.count(categories, 'more one')} left out"
        )
    return "; ".join(said)
