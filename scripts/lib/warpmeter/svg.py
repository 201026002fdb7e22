"""Draws a chart's panels as SVG: no scripts, no styles of its own (assets/report.css), every mark with its words."""

import math
import re

from warpmeter import axes

_TOP, _BOTTOM, _LEFT = 12, 40, 52
_LANE = 16  # at the top edge, for rows without a figure
_FONT = 11
#: Average advance of the page's fonts at _FONT, a little generous.
_ADVANCE = 0.6 * _FONT
_SIZE = (340, 250)
_SIZE_ROOFLINE = (360, 270)
_COLOURS, _DASHES = 8, 4

#: Half-size 4.2 markers around 0, 0; equal in area to the eye.
_MARKERS = (
    "M-3.7 0a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0 -7.4 0Z",
    "M-3.3 -3.3H3.3V3.3H-3.3Z",
    "M0 -4.4L4.1 3.1H-4.1Z",
    "M0 -4.7L4.7 0L0 4.7L-4.7 0Z",
    "M0 4.4L4.1 -3.1H-4.1Z",
    "M-1.5 -4.3H1.5V-1.5H4.3V1.5H1.5V4.3H-1.5V1.5H-4.3V-1.5H-1.5Z",
    "M-2.2 -4H2.2L4.4 0L2.2 4H-2.2L-4.4 0Z",
    "M0 -4.8L1.3 -1.6L4.6 -1.5L2 0.7L2.8 4L0 2.1L-2.8 4L-2 0.7L-4.6 -1.5L-1.3 -1.6Z",
)
_CROSS = "M-3.6 -3.6L3.6 3.6M-3.6 3.6L3.6 -3.6"

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
_TO_ESCAPE = re.compile("[&<>\"']")


def escape(text):
    """For HTML and SVG, in elements and in quoted attributes."""
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match.group()], str(text))


def text_width(text):
    return _ADVANCE * len(text)


def shortened(text, most):
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def short_name(text, most):
    """As shortened(), but of a name in words its middle goes: pytorch_sdpa_efficient -> pytorch\u2026efficient."""
    words = text.split("_")
    if len(text) > most and len(words) > 2:
        name = f"{words[0]}\u2026{words[-1]}"
        if len(name) <= most:
            return name
    return shortened(text, most)


def _n(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def classes(style):
    return f"c{style.colour % _COLOURS} d{style.variant % _DASHES}"


def marker_path(style):
    return _MARKERS[style.marker % len(_MARKERS)]


class _Frame:
    """The drawing area of a panel and how its axes map into it."""

    def __init__(self, chart, right):
        self.chart = chart
        self.width, self.height = _SIZE_ROOFLINE if chart.kind == "roofline" else _SIZE
        self.left, self.right = _LEFT, self.width - right
        self.lane = _TOP
        self.top = _TOP + (_LANE if chart.has_missing else 0)
        self.bottom = self.height - _BOTTOM

    def x(self, value):
        return self.left + self.chart.x_axis.position(value) * (self.right - self.left)

    def y(self, value):
        return self.bottom - self.chart.y_axis.position(value) * (self.bottom - self.top)


def key_mark(style):
    """The marker alone, for a legend."""
    return (
        f'<svg class="key {classes(style)}" viewBox="-13 -7 26 14" width="26" height="14" aria-hidden="true">'
        f'<path class="line" d="M-12 0H12"/><path class="mark" d="{marker_path(style)}"/></svg>'
    )


def missing_mark():
    return (
        f'<svg class="key c6" viewBox="-7 -7 14 14" width="14" height="14" aria-hidden="true">'
        f'<path class="cross" d="{_CROSS}"/></svg>'
    )


def panel(chart, index, key):
    """One panel as an <svg>; `key` makes its ids unique on the page."""
    this = chart.panels[index]
    labels = [series.label for series in this.series if series.label and series.points]
    right = min(112, max((text_width(short_name(label, 17)) for label in labels), default=0) + 14)
    frame = _Frame(chart, right)
    title = f"{chart.title}{', ' + this.title if this.title else ''}"
    parts = [
        f'<svg class="plot" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-labelledby="{key}-t {key}-d">',
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(_description(chart, this))}</desc>',
    ]
    parts += _grid(frame)
    parts += _lines(this, frame)
    covered = _covered(this, frame)
    for series in this.series:
        parts += _curve(series, frame, id(series) in covered)
    for series in this.series:
        parts += _marks(series, frame, id(series) in covered)
    if chart.has_missing:
        parts += _lane(this, frame)
    parts += _line_names(this, frame)
    parts += _labels(this, frame)
    parts.append("</svg>")
    return "".join(parts)


def _description(chart, this):
    """What a reader who does not see the plot gets: each series' ends."""
    said = [f"{chart.subtitle}, against {chart.x_label}."]
    for series in this.series:
        if series.points and (series.label or not series.joined):
            ends = [series.points[0].text] + ([series.points[-1].text] if len(series.points) > 1 else [])
            said.append("; ".join(ends) + ".")
        said += [f"{missing.text}." for missing in series.missing[:4]]
    return " ".join(said[:24])


def _grid(frame):
    chart = frame.chart
    parts = ['<g class="grid" aria-hidden="true">']
    for tick in chart.y_axis.ticks:
        y = frame.y(tick.value)
        parts.append(f'<path{"" if tick.text else " class=minor"} d="M{_n(frame.left)} {_n(y)}H{_n(frame.right)}"/>')
    positions = [frame.x(tick.value) for tick in chart.x_axis.ticks]
    for tick, x in zip(chart.x_axis.ticks, positions):
        parts.append(f'<path{"" if tick.text else " class=minor"} d="M{_n(x)} {_n(frame.top)}V{_n(frame.bottom)}"/>')
    parts.append("</g>")
    parts.append(f'<path class="axis" d="M{_n(frame.left)} {_n(frame.top)}V{_n(frame.bottom)}H{_n(frame.right)}"/>')
    parts.append('<g class="ticks">')
    y_ticks = [tick for tick in chart.y_axis.ticks if tick.text]
    heights = [frame.y(tick.value) for tick in y_ticks]
    shown = axes.thin([tick.text for tick in reversed(y_ticks)], heights[::-1], [_FONT] * len(y_ticks), 1)[::-1]
    for tick, y, keep in zip(y_ticks, heights, shown):
        if keep:
            parts.append(f'<text class="end" x="{_n(frame.left - 6)}" y="{_n(y + 3.8)}">{escape(tick.text)}</text>')
    texts = [short_name(tick.text, 14) for tick in chart.x_axis.ticks]
    # A text at an edge may stand out over the frame, but not over the picture.
    centres = [
        min(max(x, text_width(text) / 2 + 1), frame.width - text_width(text) / 2 - 1)
        for text, x in zip(texts, positions)
    ]
    for text, x, keep in zip(texts, centres, axes.thin(texts, centres, [text_width(text) for text in texts], 2)):
        if keep:
            parts.append(f'<text class="mid" x="{_n(x)}" y="{_n(frame.bottom + 15)}">{escape(text)}</text>')
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text class="mid name" x="{_n(middle)}" y="{frame.height - 8}">{escape(chart.x_label)}</text></g>')
    return parts


def _line_places(line, frame):
    if len(line.points) == 1:
        y = frame.y(line.points[0][1])
        return [(frame.left, y), (frame.right, y)]
    return [(frame.x(x), frame.y(y)) for x, y in line.points]


def _lines(this, frame):
    parts = []
    for line in this.lines:
        path = "L".join(f"{_n(x)} {_n(y)}" for x, y in _line_places(line, frame))
        parts.append(f'<path class="ceiling" d="M{path}"><title>{escape(line.text)}</title></path>')
    return parts


def _line_names(this, frame):
    """Each ceiling's name along its line, at the end and on the side where it covers least."""
    busy = _traces(this, frame)
    parts = []
    for line in this.lines:
        (x0, y0), (x1, y1) = (places := _line_places(line, frame))[0], places[-1]
        width = text_width(line.text)
        if abs(y1 - y0) >= 1:
            angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
            length = math.hypot(x1 - x0, y1 - y0)
            along = max(0.0, min(0.12, 1 - (width + 6) / length)) if length > width else 0.0
            x, y = x0 + along * (x1 - x0), y0 + along * (y1 - y0)
            parts.append(
                f'<text class="ceiling-name" transform="translate({_n(x)} {_n(y)}) rotate({_n(angle)})" '
                f'y="-5">{escape(line.text)}</text>'
            )
            continue
        best = None
        for left in (frame.right - width - 1, max(x0, frame.left) + 3, (frame.left + frame.right - width) / 2):
            for base in (y0 - 4, y0 + _FONT + 1):
                outside = base - _FONT < frame.lane or base > frame.bottom
                covered = sum(left - 2 < x < left + width + 2 and base - _FONT < y < base + 3 for x, y in busy)
                if best is None or (outside, covered) < best[0]:
                    best = ((outside, covered), left, base)
        _, left, base = best
        busy += [(left + width * share / 8, base - 4) for share in range(9)] * 8  # and no name on another
        parts.append(f'<text class="ceiling-name" x="{_n(left)}" y="{_n(base)}">{escape(line.text)}</text>')
    return parts


def _traces(this, frame):
    """Points along all curves, close enough together to know what a text would cover."""
    found = []
    for series in this.series:
        places = [(frame.x(point.x), frame.y(point.y)) for point in series.points]
        found += places * 3
        for (x0, y0), (x1, y1) in zip(places, places[1:]):
            steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 5))
            found += [(x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps) for step in range(steps)]
        found += [(frame.x(missing.x), frame.lane + 5) for missing in series.missing]
    for line in this.lines:
        (x0, y0), (x1, y1) = (places := _line_places(line, frame))[0], places[-1]
        found += [(x0 + (x1 - x0) * step / 40, y0 + (y1 - y0) * step / 40) for step in range(41)]
    return found


def _covered(this, frame):
    """Ids of series that a later one hides: they are drawn broader, so that they show on both sides."""
    places = [[(frame.x(point.x), frame.y(point.y)) for point in series.points] for series in this.series]
    found = set()
    for index, mine in enumerate(places):
        for other in places[index + 1 :]:
            if (
                mine
                and len(mine) <= len(other)
                and all(any(abs(x - u) < 2 and abs(y - v) < 2.5 for u, v in other) for x, y in mine)
            ):
                found.add(id(this.series[index]))
    return found


def _curve(series, frame, covered):
    if not series.joined or len(series.points) < 2:
        return []
    path = "L".join(f"{_n(frame.x(point.x))} {_n(frame.y(point.y))}" for point in series.points)
    return [f'<path class="line{" under" if covered else ""} {classes(series.style)}" d="M{path}"/>']


def _marks(series, frame, covered):
    parts = []
    shape = marker_path(series.style)
    larger = " scale(1.55)" if covered else ""
    for point in series.points:
        hollow = " hollow" if point.hollow else ""
        parts.append(
            f'<path class="mark{hollow} {classes(series.style)}" '
            f'transform="translate({_n(frame.x(point.x))} {_n(frame.y(point.y))}){larger}" d="{shape}">'
            f"<title>{escape(point.text)}</title></path>"
        )
    return parts


def _lane(this, frame):
    """Marks at the top edge, side by side where several rows have no figure at one place, and what it means."""
    y = frame.lane + _LANE / 2 - 3
    at = {}
    for series in this.series:
        for missing in series.missing:
            at.setdefault(missing.x, []).append((series, missing))
    parts, groups = [], []  # groups: (left, right, word)
    for x, marks in sorted(at.items(), key=lambda item: frame.x(item[0])):
        step = min(9.0, 40.0 / len(marks))
        first = frame.x(x) - step * (len(marks) - 1) / 2
        first = min(max(first, frame.left + 4), frame.right - 4 - step * (len(marks) - 1))
        for index, (series, missing) in enumerate(marks):
            place = f"translate({_n(first + step * index)} {_n(y)})"
            parts.append(f'<path class="cross {classes(series.style)}" transform="{place}" d="{_CROSS}">')
            parts.append(f"<title>{escape(missing.text)}</title></path>")
        statuses = {missing.status for _, missing in marks}
        groups.append(
            (first - 5, first + step * (len(marks) - 1) + 5, statuses.pop() if len(statuses) == 1 else "failed")
        )
    # A word left of its marks, else right of them; one that has no room is in the legend and in the marks' titles.
    taken = [(left, right) for left, right, _ in groups]
    said = None
    for left, right, word in groups:
        width = text_width(word)
        for start, anchor in ((left - 4 - width, "end"), (right + 4, "start")):
            free = all(start + width < other or start > end for other, end in taken)
            if word != said and free and start >= 2 and start + width <= frame.width - 2:
                x = start + width if anchor == "end" else start
                parts.append(f'<text class="lane {anchor}" x="{_n(x)}" y="{_n(y + 3.6)}">{escape(word)}</text>')
                taken.append((start, start + width))
                said = word
                break
    return parts


def _labels(this, frame):
    """Each series' name beside its last point, moved apart where names would touch."""
    named = [series for series in this.series if series.label and series.points]
    ends = [(frame.x(series.points[-1].x), frame.y(series.points[-1].y)) for series in named]
    places = axes.spread([y for _, y in ends], _FONT + 2, frame.lane - 4, frame.bottom + 8)
    parts = []
    for series, (x, y), place in zip(named, ends, places):
        start = frame.right + 6
        if abs(place - y) > 3 or start - x > 22:
            parts.append(
                f'<path class="leader {classes(series.style)}" d="M{_n(x + 6)} {_n(y)}L{_n(start - 2)} {_n(place)}"/>'
            )
        text = short_name(series.label, 17)
        whole = f"<title>{escape(series.label)}</title>" if text != series.label else ""
        parts.append(
            f'<text class="label {classes(series.style)}" x="{_n(start)}" y="{_n(place + 3.8)}">'
            f"{escape(text)}{whole}</text>"
        )
    return parts
