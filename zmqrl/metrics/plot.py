"""Learning curves: returns against env steps and wall clock, seeds as bands. The only place that imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zmqrl.errors import ConfigError
from zmqrl.metrics.jsonl import read_metrics
from zmqrl.types import Array

RETURN = "train_return_mean_100"
POINTS = 200


def plot_returns(run_dirs: Sequence[Path], out: Path) -> None:
    """One line per directory; the runs below it (`seed-*`) give the band from the lowest to the highest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for run_dir in run_dirs:
        curves = [_curve(path) for path in _metrics_files(run_dir)]
        for axis, column, label in zip(axes, (0, 1), ("env steps", "wall clock, s"), strict=True):
            x, values = _on_one_grid([curve[:, column] for curve in curves], [curve[:, 2] for curve in curves])
            (line,) = axis.plot(x, values.mean(axis=0), label=f"{run_dir.name} ({len(curves)} runs)")
            if len(curves) > 1:
                axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2)
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean return of the last 100 training episodes")
    axes[0].legend()
    figure.savefig(out, dpi=150)
    pyplot.close(figure)


def _metrics_files(run_dir: Path) -> list[Path]:
    here = run_dir / "metrics.jsonl"
    files = [here] if here.exists() else sorted(run_dir.glob("seed-*/metrics.jsonl"))
    if not files:
        raise ConfigError(f"{run_dir} is not a run directory: metrics.jsonl and seed-*/metrics.jsonl are missing")
    return files


def _curve(path: Path) -> Array:
    """`[rows, 3]`: env steps, wall clock, return."""
    rows = [(row["env_steps"], row["wall_s"], row[RETURN]) for row in read_metrics(path) if RETURN in row]
    if not rows:
        raise ConfigError(f"{path} has no {RETURN}: no finished episode, or the run was too short for metrics")
    return np.array(rows, dtype=np.float64)


def _on_one_grid(xs: Sequence[Array], ys: Sequence[Array]) -> tuple[Array, Array]:
    """Curves over the range that all of them have."""
    low, high = max(x[0] for x in xs), min(x[-1] for x in xs)
    grid = np.linspace(low, max(high, low), POINTS)
    return grid, np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
