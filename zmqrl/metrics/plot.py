"""Learning curves against env steps, wall clock and episodes. The only place that imports matplotlib."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

import numpy as np

from zmqrl.errors import ConfigError
from zmqrl.metrics.curves import EVALUATED, RETURN, X_AXES, IqmCurve, Series, XAxis, curve_of, series_of, unknown_metric
from zmqrl.metrics.groups import RunGroup, env_ids
from zmqrl.types import Array

Column: TypeAlias = XAxis | Literal["final"]
FINAL: Literal["final"] = "final"
"""The column of last values."""
Y_LABELS = {RETURN: "return", EVALUATED: "return of the evaluator's episodes"}
X_LABELS = {"env_steps": "env steps", "episodes": "episodes", FINAL: "last value"}
TRAINING, GREEDY = "training, last 100 episodes", "evaluated, greedy"
BAND = "line: interquartile mean of the runs; band: its 95 % bootstrap interval"
RANGE = "range: that all runs have; on the wall clock, where any run is"
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""Units of wall clock: the first is used in which the longest run has less than `MOST_UNITS`."""
MOST_UNITS = 300.0
MARKED = 20
"""Scores of a run: fewer are marked, since the line between them was not measured."""
COLUMNS = ("label", "metric", "axis", "x", "value", "low", "high", "runs")


@dataclass(frozen=True)
class PlotLine:
    """A curve of the plot, or the last values of a group."""

    label: str
    metric: str
    axis: Column
    curve: IqmCurve
    panel: str = ""
    """The metric whose panel it is in; empty: its own."""
    marks: tuple[tuple[Array, Array], ...] = ()
    """Where it was measured: x and values. Empty: often, or it is a curve of several runs."""

    @property
    def is_main(self) -> bool:
        """Whether its panel is that of its metric."""
        return self.panel in ("", self.metric)


@dataclass(frozen=True)
class Plot:
    """All lines, and what has none."""

    title: str
    metrics: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[PlotLine, ...]
    left_out: tuple[str, ...]
    has_updates: bool = False
    """Whether the x axis counts the updates of a run without env steps."""


def make_plot(
    groups: Sequence[RunGroup],
    metrics: Sequence[str] = (RETURN,),
    window: int = 1,
    columns: Sequence[Column] = X_AXES,
) -> Plot:
    """The lines of `metrics`; with the training return also the evaluated one.

    Raises:
        ConfigError: No run has a row with a metric, or none has a column.
    """
    lines: list[PlotLine] = []
    left_out: list[str] = []
    has_updates, known = False, set()
    for group, panel in product(groups, metrics):
        for name in (panel, EVALUATED) if panel == RETURN else (panel,):
            drawn = series_of(group, name, window if name == panel else 1)
            left_out += drawn.left_out if name == panel else ()
            known |= {name} if drawn.series else set()
            has_updates |= any(series.counts_updates for series in drawn.series)
            lines += [line for column in columns for line in _lines(group.label, name, panel, column, drawn.series)]
    for metric in metrics:
        if metric not in known:
            raise unknown_metric(groups, metric)
    for column in columns:
        if not any(line.axis == column for line in lines):
            raise ConfigError("no run has rows with it", key=("--x",), value=column)
    title = ", ".join(env_ids(run for group in groups for run in group.runs))
    unique = tuple(dict.fromkeys(left_out))
    return Plot(title, tuple(metrics), tuple(columns), tuple(lines), unique, has_updates)


def _lines(label: str, metric: str, panel: str, column: Column, found: Sequence[Series]) -> Iterator[PlotLine]:
    """The line of a group in a column, if a run has it."""
    axis: XAxis = "env_steps" if column == FINAL else column
    series = [one.last if column == FINAL else one for one in found if not np.isnan(one.x(axis)).any()]
    if series:
        few = len(series) == 1 and metric == EVALUATED and len(series[0].values) < MARKED
        marked = series if few or column == FINAL else []
        marks = tuple((one.x(axis), one.values) for one in marked)
        yield PlotLine(label, metric, column, curve_of(series, axis), panel, marks)


def draw(plot: Plot, out: Path) -> None:
    """Write the picture. OSError when it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    varied = {line.axis for line in plot.lines if line.curve.there.min() < line.curve.there.max()}
    heights = [3.6 if len(plot.metrics) == 1 else 2.6] * len(plot.metrics) + [0.6] * bool(varied)
    widths = [1.2 if column == FINAL else 4.6 for column in plot.columns]
    figure, panels = pyplot.subplots(
        len(heights), len(widths), squeeze=False, sharex="col", sharey="row", layout="constrained",
        figsize=(max(6.5, sum(widths) + 0.8), sum(heights) + 1.2), height_ratios=heights, width_ratios=widths,
    )  # fmt: skip
    for k, column in enumerate(plot.columns):
        for panel, metric in zip(panels[:, k], plot.metrics, strict=False):
            _draw_panel(panel, plot, metric, column)
        if varied:
            _draw_counts(panels[-1, k], plot, column, column in varied)
        lowest = panels[-1 if column in varied else len(plot.metrics) - 1, k]
        lowest.set_xlabel(_x_label(plot, column))
        lowest.tick_params(labelbottom=column != FINAL)
    _draw_legend(figure, panels[0, 0], plot)
    figure.suptitle(plot.title)
    try:
        figure.savefig(out, dpi=150)
    finally:
        pyplot.close(figure)


def write_csv(plot: Plot, path: Path) -> None:
    """Every point of every line. OSError when it cannot be written."""
    with path.open("w", encoding="utf-8", newline="") as file:
        write_points(plot.lines, file)


def write_points(lines: Sequence[PlotLine], file: TextIO) -> None:
    """Every point of the lines as CSV."""
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerows(_points(line))


def _points(line: PlotLine) -> Iterator[tuple[Any, ...]]:
    curve = line.curve
    columns = (curve.x, curve.value, curve.low, curve.high, curve.there)
    for x, *numbers, runs in zip(*(column.tolist() for column in columns), strict=True):
        if runs:
            yield line.label, line.metric, line.axis, "" if line.axis == FINAL else x, *numbers, runs


def _scale(plot: Plot, column: Column) -> tuple[str, float]:
    """Unit of the x axis, and how much of `x` it is."""
    if column != "wall_s":
        return "", 1.0
    longest_s = max(line.curve.x[-1] for line in plot.lines if line.axis == column)
    unit = next((unit for unit, seconds in UNITS.items() if longest_s < MOST_UNITS * seconds), "h")
    return unit, UNITS[unit]


def _x_label(plot: Plot, column: Column) -> str:
    if column == "env_steps" and plot.has_updates:
        return "env steps (updates of mode offline)"
    return X_LABELS.get(column, f"wall clock, {_scale(plot, column)[0]}")


def _colours(plot: Plot) -> dict[str, str]:
    return {label: f"C{k % 10}" for k, label in enumerate(dict.fromkeys(line.label for line in plot.lines))}


def _draw_panel(panel: Any, plot: Plot, metric: str, column: Column) -> None:
    from matplotlib.ticker import EngFormatter

    colours = _colours(plot)
    for line in plot.lines:
        if (line.panel, line.axis) == (metric, column):
            if column == FINAL:
                _draw_final(panel, line, [*colours].index(line.label), colours[line.label])
            else:
                _draw_line(panel, line, _scale(plot, column)[1], colours[line.label])
    panel.grid(alpha=0.3)
    if column == plot.columns[0]:
        panel.set_ylabel(Y_LABELS.get(metric, metric))
    if column == FINAL:
        panel.set_xticks([])
        panel.set_xlim(-0.6, len(colours) - 0.4)
    elif column != "wall_s":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_line(panel: Any, line: PlotLine, scale: float, colour: str) -> None:
    curve = line.curve
    panel.plot(
        curve.x / scale,
        curve.value,
        color=colour,
        linestyle="-" if line.is_main else "--",
        linewidth=1.6 if line.is_main else 1.2,
        marker="o" if len(curve.x) == 1 and not line.marks else None,
        label=f"{line.label} ({line.curve.runs} run{'s' if line.curve.runs != 1 else ''})" if line.is_main else None,
    )
    for x, values in line.marks:
        panel.plot(x / scale, values, "o", color=colour, markersize=4)
    if line.curve.runs > 1 and line.is_main:
        panel.fill_between(curve.x / scale, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def _draw_final(panel: Any, line: PlotLine, place: int, colour: str) -> None:
    """The IQM with its interval as a bar, and the value of each run; markers of the evaluator are unfilled."""
    at, value = place + (-0.15 if line.is_main else 0.2), line.curve.value
    bar = np.stack([value - line.curve.low, line.curve.high - value])
    filled = colour if line.is_main else "white"
    panel.errorbar([at], value, yerr=bar, fmt="o", color=colour, markerfacecolor=filled, capsize=3, zorder=3)
    for x, values in line.marks if line.curve.runs > 1 else ():
        panel.plot(x + at + 0.12, values, ".", color=colour, alpha=0.5, markersize=4)


def _draw_counts(panel: Any, plot: Plot, column: Column, is_varied: bool) -> None:
    """How many runs each point of the first metric is of; nothing in a column where it is all of them."""
    if not is_varied:
        panel.set_axis_off()
        return
    for line in plot.lines:
        if (line.metric, line.axis) == (plot.metrics[0], column) and line.curve.runs > 1:
            x = line.curve.x / _scale(plot, column)[1]
            panel.step(x, line.curve.there, where="mid", color=_colours(plot)[line.label], linewidth=1.2)
    panel.set_ylabel("runs")
    panel.set_ylim(bottom=0)
    panel.yaxis.get_major_locator().set_params(integer=True, nbins=3)
    panel.tick_params(labelleft=True)
    panel.grid(alpha=0.3)


def _draw_legend(figure: Any, panel: Any, plot: Plot) -> None:
    from matplotlib.lines import Line2D

    handles, labels = panel.get_legend_handles_labels()
    if RETURN in plot.metrics:
        handles += [Line2D([], [], color="grey", linestyle=style) for style in ("-", "--")]
        labels += [TRAINING, GREEDY]
    title = f"{BAND}\n{RANGE}" if any(line.curve.runs > 1 for line in plot.lines) else None
    figure.legend(handles, labels, loc="outside lower center", ncols=3, title=title, title_fontsize="small")
