"""The plots as one picture, by matplotlib: the only module that needs more than the standard library."""

import io
import textwrap

from warpmeter import charts, numerals, roofline, svg

_COLOURS = ("#0067a5", "#b84a00", "#00775a", "#9c4a78", "#806000", "#5a55b0", "#57606a", "#16737f")
_MARKERS = ("o", "s", "^", "D", "v", "P", "H", "*")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 2)), (0, (6, 2, 1, 2)))
_MOST_ACROSS = 4
_MOST_PANELS = 48
_LINE = 0.22  # inches of a legend's line
_TITLE_WIDTH = 46  # characters above a panel


class NoMatplotlib(Exception):
    """One line that says how to get it."""


def draw(studies, title):
    """The picture's bytes."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlib(
            f"--png needs matplotlib ({error}): pip install matplotlib, or apt-get install python3-matplotlib"
        ) from None

    places, all_panels = _places(studies)
    across = min(_MOST_ACROSS, max([len(chart.panels) for _, chart, _ in places] + [1]))
    if across <= 2 and len(places) > 4:
        across = 4 if across == 2 else 3
    down = max(1, -(-len(places) // across))
    figure = Figure(figsize=(4.1 * across, 3.25 * down + 0.7), dpi=110, layout="constrained")
    figure.suptitle(_plain(title), fontsize=14, fontweight="bold", x=0.01, ha="left")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(places) :]:
        axes.axis("off")
    for axes, (name, chart, panel) in zip(grid.flat, places):
        _panel(axes, name, chart, panel)
    _legend(figure, [(chart, panel) for _, chart, panel in places])
    if len(places) < all_panels:
        figure.supxlabel(f"{all_panels - len(places)} more panels are on the page.", fontsize=8.5, x=0.01, ha="left")
    if not places:
        grid[0][0].text(0.5, 0.5, "No figures to plot.", ha="center", transform=grid[0][0].transAxes)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": "Warpmeter scripts/report"})
    return picture.getvalue()


def _places(studies):
    """[(the study's name where there are several, chart, panel)] and how many panels there are. Where that is more than
    a picture takes, every study gets its share, and what one leaves goes to the others."""
    looks, wanted = charts.Looks(), []
    for whole in studies:
        mine = charts.styles(whole, looks)
        roof = roofline.of_study(whole, mine)
        name = whole.name if len(studies) > 1 else ""
        drawn = charts.of_study(whole, mine) + ([roof] if roof else [])
        wanted.append([(name, chart, panel) for chart in drawn for panel in chart.panels])
    places, left = {}, _MOST_PANELS
    for rank, number in enumerate(sorted(range(len(wanted)), key=lambda number: len(wanted[number]))):
        places[number] = wanted[number][: -(-left // (len(wanted) - rank))]
        left -= len(places[number])
    return [place for number in sorted(places) for place in places[number]], sum(map(len, wanted))


def _plain(text):
    return str(text).replace("$", r"\$")  # else matplotlib reads formulas


def _panel(axes, name, chart, panel):
    horizontal, vertical = chart.x_axis, chart.y_axis
    title = ": ".join(text for text in (name, chart.title, panel.title) if text)
    axes.set_title(_plain(textwrap.fill(title, _TITLE_WIDTH)), fontsize=8.5, loc="left", fontweight="bold")
    axes.set_xlabel(_plain(chart.x_label), fontsize=8.5)
    for line in panel.lines:
        places = [
            (0, vertical.position(y)) if x is None else (horizontal.position(x), vertical.position(y))
            for x, y in line.points
        ]
        places = places if len(places) > 1 else [places[0], (1, places[0][1])]
        axes.plot(*zip(*places), color="#57606a", linewidth=0.9, linestyle=(0, (5, 3)))
        level = abs(places[0][1] - places[-1][1]) < 1e-9
        axes.text(
            places[-1][0] if level else places[0][0],
            places[-1][1] if level else places[0][1],
            _plain(line.text),
            fontsize=6.5,
            color="#57606a",
            ha="right" if level else "left",
            va="bottom",
        )
    top = 1.07 if chart.has_missing else 1.0
    for rank, series in enumerate(series for series in panel.series if series.points or series.missing):
        _series(axes, chart, series, top, rank)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top + (0.05 if chart.has_missing else 0))
    for axis, which in ((axes.xaxis, horizontal), (axes.yaxis, vertical)):
        labelled = [tick for tick in which.ticks if tick.text]
        axis.set_ticks(
            [which.position(tick.value) for tick in labelled],
            [_plain(svg.shortened(tick.text, 14)) for tick in labelled],
            fontsize=7.5,
        )
        axis.set_ticks([which.position(tick.value) for tick in which.ticks if not tick.text], minor=True)
    axes.grid(True, color="#e4e7ea", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _series(axes, chart, series, top, rank):
    looks = series.style
    colour = _COLOURS[looks.colour % len(_COLOURS)]
    places = [(chart.x_axis.position(point.x), chart.y_axis.position(point.y)) for point in series.points]
    hollow = bool(series.points) and series.points[0].hollow
    if places:
        axes.plot(
            *zip(*places),
            color=colour,
            linewidth=0.6 if chart.kind == "roofline" else 1.4,
            linestyle=_DASHES[looks.variant % len(_DASHES)] if series.joined else "none",
            marker=_MARKERS[looks.marker % len(_MARKERS)],
            markersize=4.5,
            markerfacecolor="white" if hollow else colour,
        )
    # Side by side where several have no figure at one place.
    axes.plot(
        [chart.x_axis.position(missing.x) - 0.02 * rank for missing in series.missing],
        [top] * len(series.missing),
        linestyle="none",
        marker="x",
        color=colour,
        markersize=5,
    )


def _legend(figure, places):
    """One for the whole picture."""
    from matplotlib.lines import Line2D

    named, statuses = {}, {}
    for chart, panel in places:
        for series in panel.series:
            if series.label and chart.kind != "roofline":
                named.setdefault(series.label, series.style)
            statuses.update(dict.fromkeys(missing.status for missing in series.missing))
    handles = [
        Line2D(
            [],
            [],
            color=_COLOURS[looks.colour % len(_COLOURS)],
            linestyle=_DASHES[looks.variant % len(_DASHES)],
            marker=_MARKERS[looks.marker % len(_MARKERS)],
            markersize=5,
            label=_plain(svg.shortened(label, 30)),
        )
        for label, looks in list(named.items())[: charts.MAX_SERIES]
    ]
    if statuses:
        handles.append(
            Line2D(
                [],
                [],
                color="#57606a",
                linestyle="none",
                marker="x",
                markersize=5,
                label=f"no figure: {numerals.listed(statuses, 'or').replace('_', ' ')}",
            )
        )
    if handles:
        looks = {"handles": handles, "ncol": min(len(handles), 4), "fontsize": 8.5, "frameon": False}
        try:
            figure.legend(loc="outside upper right", **looks)
        except ValueError:  # before matplotlib 3.7: over the panels, so they make room for all but the heading's line
            more = -(-len(handles) // looks["ncol"]) - 1
            figure.get_layout_engine().set(rect=(0, 0, 1, 1 - _LINE * more / figure.get_figheight()))
            figure.legend(loc="upper right", **looks)
