"""A sweep as its commands and the page of `zmqrl view` show it: counts, a table, and parallel coordinates."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from zmqrl.queue.folder import QueueFolder
from zmqrl.sweeps.folder import SweepFolder
from zmqrl.sweeps.trials import best_of, has_ended, judge
from zmqrl.types import LARGEST_FINITE

LOG_FROM = 20.0
"""Ratio of the greatest to the least value above which an axis is logarithmic."""


class Axis(Struct, frozen=True):
    """A coordinate of the trials that have a value."""

    name: str
    heights: list[float]
    """Height of each trial, in [0, 1]."""
    texts: list[tuple[float, str]]
    """Texts at some heights."""


class SweepReport:
    """The trials as their records are now. OSError: the folder or its queue cannot be read."""

    def __init__(self, folder: SweepFolder, queue: QueueFolder) -> None:
        self._folder, self._trials = folder, folder.trials(queue.read())
        self._verdicts = judge(folder.sweep.keys, self._trials)
        self.best = best_of(self._verdicts)
        valued = [(verdict.value, n) for n, verdict in enumerate(self._verdicts) if verdict.value is not None]
        self.drawn = [n for _, n in sorted(valued)]
        """Trials that have a value, the highest last: its line is on top."""
        self._keys = list(dict.fromkeys(key for trial in self._trials for key in trial.parameters))

    def summary(self) -> list[str]:
        """Counts of the trials, and the best one."""
        counts = Counter(verdict.status for verdict in self._verdicts)
        shown = ", ".join(f"{count} {status}" for status, count in counts.items()) or "none has begun"
        stopped = " (stopped)" if self._folder.is_stopped else ""
        lines = [f"{len(self._trials)} of {self._folder.sweep.keys.count} trials{stopped}: {shown}"]
        if self.best is not None:
            values = " ".join(f"{key}={json.dumps(it)}" for key, it in self._trials[self.best].parameters.items())
            lines.append(f"best: trial {self.best}, {self._verdicts[self.best].value:.2f}: {values}")
        return lines

    def hint(self) -> str:
        """How a sweep continues that has not ended and has no driver; empty for others."""
        is_idle = not self._folder.has_driver and not has_ended(self._folder.sweep.keys, self._trials)
        return f"no driver is active; to continue: zmqrl sweep resume {self._folder.path}" if is_idle else ""

    def table(self) -> list[tuple[Any, ...]]:
        """Head, and a row per trial, the best first."""
        rows: list[tuple[Any, ...]] = [("trial", "state", "value", *self._keys)]
        for n in sorted(range(len(self._trials)), key=self._rank):
            verdict, trial = self._verdicts[n], self._trials[n]
            state: str = verdict.status
            if state in ("pruned", "failed"):
                at = self._folder.sweep.stage_name(verdict.stage)
                state += f" {at}" if state == "pruned" else f" ({trial.reason()})"
            rows.append((n, state, verdict.value, *map(trial.parameters.get, self._keys)))
        return rows

    def axes(self) -> list[Axis]:
        """Parallel coordinates of `drawn`: an axis per parameter, and one of the value."""
        own = [self._trials[n].parameters for n in self.drawn]
        found = [_axis(key.rpartition(".")[2], [each.get(key) for each in own]) for key in self._keys]
        return [*found, _axis("value", [self._verdicts[n].value for n in self.drawn])]

    def is_complete(self, trial: int) -> bool:
        """Whether it is neither pruned nor running nor failed."""
        return self._verdicts[trial].status == "complete"

    def _rank(self, trial: int) -> tuple[bool, float]:
        return not self.is_complete(trial), -(self._verdicts[trial].value or 0.0)


def draw(report: SweepReport, path: Path) -> None:
    """Draw the parallel coordinates. Imports matplotlib, as `metrics.plot` does; errors as of `savefig`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = report.axes()
    figure, plot = pyplot.subplots(figsize=(1.8 * len(axes) + 1.8, 4.0), layout="constrained")
    for line, trial in enumerate(report.drawn):
        heights = [axis.heights[line] for axis in axes]
        style = "-" if report.is_complete(trial) else ":"
        plot.plot(heights, color=pyplot.get_cmap("viridis")(heights[-1]), linestyle=style)
    for at, axis in enumerate(axes):
        plot.axvline(at, color="0.7", linewidth=0.8, zorder=0)
        for height, text in axis.texts:
            plot.annotate(text, (at, height), xytext=(3, 0), textcoords="offset points", fontsize=7, va="center")
    plot.set_xticks(range(len(axes)), [axis.name for axis in axes])
    plot.set_yticks([])
    plot.set_title("solid: complete; dotted: pruned, failed or running", fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _is_finite(value: float) -> bool:
    return not isinstance(value, bool) and abs(value) <= LARGEST_FINITE


def _axis(name: str, values: Sequence[Any]) -> Axis:
    if values and all(isinstance(value, (int, float)) and _is_finite(value) for value in values):
        low, high = min(values), max(values)
        scale = math.log if low > 0 and high / low > LOG_FROM else float
        width = scale(high) - scale(low) or 1.0
        heights = [(scale(value) - scale(low)) / width for value in values]
        return Axis(name, heights, [*{0.0: f"{low:.4g}", max(heights): f"{high:.4g}"}.items()])
    texts = sorted({json.dumps(value) for value in values})
    places = {text: at / max(1, len(texts) - 1) for at, text in enumerate(texts)}
    return Axis(name, [places[json.dumps(value)] for value in values], [(at, text) for text, at in places.items()])
