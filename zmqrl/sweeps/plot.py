"""Parallel coordinates of the trials of a sweep. Imports matplotlib, as `metrics.plot` does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zmqrl.sweeps.trials import Verdict

LOG_FROM = 20.0
"""Ratio of the greatest to the least value above which an axis is logarithmic."""


def draw(parameters: Sequence[Mapping[str, Any]], verdicts: Sequence[Verdict], path: Path) -> None:
    """A line per trial that has a value, over an axis per parameter and one of the value. Errors as of `savefig`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [(v.value, v.status, own) for own, v in zip(parameters, verdicts, strict=True) if v.value is not None]
    shown.sort(key=lambda each: each[0])  # the best lines are on top
    keys = list(dict.fromkeys(key for *_, own in shown for key in own))
    axes = [*(_axis([own.get(key) for *_, own in shown]) for key in keys), _axis([value for value, *_ in shown])]
    figure, plot = pyplot.subplots(figsize=(1.8 * len(axes) + 1.8, 4.0), layout="constrained")
    for line, (_, status, _) in enumerate(shown):
        heights = [places[line] for places, _ in axes]
        plot.plot(
            heights, color=pyplot.get_cmap("viridis")(heights[-1]), linestyle="-" if status == "complete" else ":"
        )
    for at, (_, texts) in enumerate(axes):
        plot.axvline(at, color="0.7", linewidth=0.8, zorder=0)
        for height, text in texts.items():
            plot.annotate(text, (at, height), xytext=(3, 0), textcoords="offset points", fontsize=7, va="center")
    plot.set_xticks(range(len(axes)), [*(key.rpartition(".")[2] for key in keys), "value"])
    plot.set_yticks([])
    plot.set_title("solid: complete; dotted: pruned or running", fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def _axis(values: Sequence[Any]) -> tuple[list[float], dict[float, str]]:
    """Heights of the values in [0, 1], and the texts at some heights."""
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        scale = math.log if low > 0 and high / low > LOG_FROM else float
        width = scale(high) - scale(low) or 1.0
        heights = [(scale(value) - scale(low)) / width for value in values]
        return heights, {0.0: f"{low:.4g}", max(heights): f"{high:.4g}"}
    names = sorted({json.dumps(value) for value in values})
    places = {name: at / max(1, len(names) - 1) for at, name in enumerate(names)}
    return [places[json.dumps(value)] for value in values], {at: name for name, at in places.items()}
