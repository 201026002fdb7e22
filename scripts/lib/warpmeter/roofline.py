"""The roofline: speed against arithmetic intensity, under the ceilings that were measured on the device."""

from warpmeter import axes, charts, numerals, study
from warpmeter.charts import Chart, Line, Panel, Point, Series

_MAX_TRACKS = 60
_SPLIT = ("device", "dtype", "precision")
_MATMUL = {
    "fp32": "matmul_fp32_tflops",
    "tf32": "matmul_tf32_tflops",
    "bf16": "matmul_16bit_tflops",
    "fp16": "matmul_16bit_tflops",
}


class _Content:
    """What one panel shows: {(series, panel, phase): points}, {text: TFLOP/s}, and the memory's ceiling."""

    def __init__(self):
        self.tracks = {}
        self.compute = {}
        self.memory = None  # (GB/s, text)

    def add_ceilings(self, entry, phase):
        for ceiling in charts.row_ceilings(entry, phase):
            if ceiling.kind == "speed":
                self.compute[ceiling.text] = ceiling.rate
        dtype = entry.row.config.get("dtype")
        name = _MATMUL.get(dtype) if isinstance(dtype, str) else None
        if name in entry.file.ceilings and not self.compute:
            rate = entry.file.ceilings[name]
            self.compute[charts.ceiling_text(name[:-7].replace("_", " "), rate, "speed")] = rate
        for name in ("read_gbps", "copy_gbps"):
            rate = entry.file.ceilings.get(name)
            if rate and (self.memory is None or rate > self.memory[0]):
                self.memory = (rate, charts.ceiling_text(name[:-5], rate, "bandwidth"))


def of_study(whole, looks):
    """One panel a device and dtype; None where rows have no FLOPs, bytes and speed, or no ceiling was measured."""
    split = [name for name in _SPLIT if name in whole.panel_keys]
    phases = [column[: -len("_flops")] for column in whole.columns if column.endswith("_flops")]
    contents = {}
    for entry in whole.entries:
        key = tuple(entry.values[name] for name in split)
        if key not in contents and len(contents) == charts.MAX_PANELS:
            continue
        content = contents.setdefault(key, _Content())
        for phase in phases:
            flops, moved = entry.row.number(f"{phase}_flops"), entry.row.number(f"{phase}_bytes")
            speed = entry.row.number(f"{phase}_tflops")
            track = (entry.series, entry.panel, phase)
            if track not in content.tracks and len(content.tracks) == _MAX_TRACKS:
                continue
            if flops and moved and speed and len(content.tracks.get(track, ())) < charts.MAX_POINTS:
                at = f"{whole.axis} {whole.axis_text(entry.x)}" if whole.axis else ""
                words = [
                    whole.series_labels[entry.series],
                    charts.phase_title(phase).lower(),
                    whole.panel_title(entry.panel),
                    at,
                ]
                text = (
                    f"{', '.join(word for word in words if word)}: {charts.speed_text(speed)} at "
                    f"{numerals.significant(flops / moved, 3)} FLOP per byte"
                )
                content.tracks.setdefault(track, []).append(Point(flops / moved, speed, text, phase != phases[0]))
                content.add_ceilings(entry, phase)
    contents = {
        key: content for key, content in contents.items() if content.tracks and content.compute and content.memory
    }
    if not contents:
        return None

    points = [point for content in contents.values() for track in content.tracks.values() for point in track]
    tops = [rate for content in contents.values() for rate in content.compute.values()]
    ridges = [rate * 1e3 / content.memory[0] for content in contents.values() for rate in content.compute.values()]
    x_axis = axes.LogAxis.around([point.x for point in points] + ridges, ticks=5)
    y_axis = axes.LogAxis.around([point.y for point in points] + tops, "TFLOP/s", room=0.08)
    factor, unit = charts.readable("TFLOP/s", max(tops))
    panels = [
        Panel(study.titled(zip(split, key)), _series(whole, content, looks), _roofs(content, x_axis, y_axis))
        for key, content in contents.items()
    ]
    if factor != 1:
        panels = [charts.scaled(panel, factor) for panel in panels]
        y_axis = axes.LogAxis(y_axis.low * factor, y_axis.high * factor, unit)
    words = [charts.phase_title(phase).lower() for phase in phases]
    marks = f"filled {words[0]}, hollow {numerals.listed(words[1:])}; " if len(words) > 1 else ""
    return Chart(
        "roofline",
        "roofline",
        "Roofline",
        f"{unit} against FLOP per byte of least traffic, under what was measured on the device; {marks}"
        "higher is better",
        "FLOP per byte",
        x_axis,
        y_axis,
        panels[: charts.MAX_PANELS],
        "",
    )


def _series(whole, content, looks):
    """A track each; the highest of an implementation carries its name."""
    best = {}
    for track, points in content.tracks.items():
        highest = max(point.y for point in points)
        if highest > best.get(track[0], (0, None))[0]:
            best[track[0]] = (highest, track)
    series = []
    for track, points in content.tracks.items():
        label = whole.series_labels[track[0]] if best[track[0]][1] == track else ""
        ordered = sorted(points, key=lambda point: point.x)
        series.append(Series(label, looks[track[0]], ordered, [], joined=True))
    return series


def _roofs(content, x_axis, y_axis):
    memory, text = content.memory
    top = max(content.compute.values())
    start = max(x_axis.low, y_axis.low * 1e3 / memory)
    lines = [Line([(start, start * memory / 1e3), (top * 1e3 / memory, top)], text)]
    for text, rate in sorted(content.compute.items(), key=lambda item: -item[1]):
        text = text.replace("matmul ", "").replace(" TFLOP/s", "").replace(" GFLOP/s", "")  # the axis has the unit
        lines.append(Line([(rate * 1e3 / memory, rate), (x_axis.high, rate)], text))
    return lines[:6]
