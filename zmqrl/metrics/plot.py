"""Learning curves against env steps and wall clock. The only place that imports matplotlib."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from zmqrl.metrics.curves import EVALUATED, RETURN, X_AXES, IqmCurve, Series, XAxis, curve_of, series_of, unknown_metric
from zmqrl.metrics.groups import RunGroup, env_ids
from zmqrl.types import Array

Y_LABELS = {RETURN: "return", EVALUATED: "return of the evaluator's episodes"}
TRAINING, GREEDY = "training, last 100 episodes", "evaluated, greedy"
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
"""Units of wall clock: the first is used in which the longest run has less than `MOST_UNITS`."""
MOST_UNITS = 300.0
MARKED = 20
"""Scores of a run: fewer are marked, since the line between them was not measured."""
COLUMNS = ("label", "metric", "axis", "x", "value", "low", "high", "runs")


@dataclass(frozen=True)
class PlotLine:
    """A curve of the plot."""

    label: str
    metric: str
    axis: XAxis
    curve: IqmCurve
    marks: tuple[Array, Array] | None = None
    """Where it was measured: x and values. None: often, or it is of several runs."""


@dataclass(frozen=True)
class Plot:
    """All lines, and what has none."""

    title: str
    metric: str
    lines: tuple[PlotLine, ...]
    left_out: tuple[str, ...]
    has_updates: bool = False
    """Whether the x axis counts the updates of a run without env steps."""


def make_plot(groups: Sequence[RunGroup], metric: str = RETURN, window: int = 1) -> Plot:
    """The lines of `metric`; with the training return also the evaluated one.

    Raises:
        ConfigError: No run has a row with the metric.
    """
    lines: list[PlotLine] = []
    left_out: list[str] = []
    has_updates = False
    for group in groups:
        for name in (metric, EVALUATED) if metric == RETURN else (metric,):
            drawn = series_of(group, name, window if name == metric else 1)
            left_out += drawn.left_out if name == metric else ()
            has_updates |= any(series.counts_updates for series in drawn.series)
            if drawn.series:
                lines += [_line(group.label, name, axis, drawn.series) for axis in X_AXES]
    if not any(line.metric == metric for line in lines):
        raise unknown_metric(groups, metric)
    title = ", ".join(env_ids(run for group in groups for run in group.runs))
    return Plot(title, metric, tuple(lines), tuple(left_out), has_updates)


def _line(label: str, metric: str, axis: XAxis, series: Sequence[Series]) -> PlotLine:
    one, few = series[0], len(series) == 1 and metric == EVALUATED and len(series[0].values) < MARKED
    return PlotLine(label, metric, axis, curve_of(series, axis), (one.x(axis), one.values) if few else None)


def draw(plot: Plot, out: Path) -> None:
    """Write the picture. OSError when it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
    colours = {label: f"C{k % 10}" for k, label in enumerate(dict.fromkeys(line.label for line in plot.lines))}
    unit = _unit(max(line.curve.x[-1] for line in plot.lines if line.axis == "wall_s"))
    for panel, axis in zip(panels, X_AXES, strict=True):
        scale = UNITS[unit] if axis == "wall_s" else 1.0
        for line in plot.lines:
            if line.axis == axis:
                _draw_line(panel, line, scale, colours[line.label], plot.metric)
        panel.grid(alpha=0.3)
    panels[0].set_xlabel("env steps (updates of mode offline)" if plot.has_updates else "env steps")
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[1].set_xlabel(f"wall clock, {unit}")
    panels[0].set_ylabel(Y_LABELS.get(plot.metric, plot.metric))
    handles, labels = panels[0].get_legend_handles_labels()
    if plot.metric == RETURN:
        handles += [Line2D([], [], color="grey", linestyle=style) for style in ("-", "--")]
        labels += [TRAINING, GREEDY]
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
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
    for numbers in zip(curve.x.tolist(), curve.value.tolist(), curve.low.tolist(), curve.high.tolist(), strict=True):
        yield line.label, line.metric, line.axis, *numbers, curve.runs


def _unit(longest_s: float) -> str:
    return next((unit for unit, seconds in UNITS.items() if longest_s < MOST_UNITS * seconds), "h")


def _draw_line(panel: Any, line: PlotLine, scale: float, colour: str, metric: str) -> None:
    curve, is_main = line.curve, line.metric == metric
    runs = f"{curve.runs} run{'s' if curve.runs != 1 else ''}"
    panel.plot(
        curve.x / scale,
        curve.value,
        color=colour,
        linestyle="-" if is_main else "--",
        linewidth=1.6 if is_main else 1.2,
        marker="o" if len(curve.x) == 1 and line.marks is None else None,
        label=f"{line.label} ({runs})" if is_main else None,
    )
    if line.marks is not None:
        x, values = line.marks
        panel.plot(x / scale, values, "o", color=colour, markersize=4)
    if curve.runs > 1 and is_main:
        panel.fill_between(curve.x / scale, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
