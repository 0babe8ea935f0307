"""Writes iqm.json: the interquartile mean and its stratified bootstrap interval by rliable.

Run it where rliable is installed (1.2.0 needs pandas < 2.1): `python tests/oracles/iqm.py > tests/oracles/iqm.json`.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import numpy as np


def case(runs: int, tasks: int, resamples: int, confidence: float) -> dict[str, Any]:
    from rliable import library, metrics

    drawn = []

    class Recorded(library.StratifiedBootstrap):  # type: ignore[misc, name-defined]
        def update_indices(self) -> Any:
            indices = super().update_indices()
            drawn.append(indices[0].tolist())
            return indices

    library.StratifiedBootstrap = Recorded
    np.random.seed(10 * runs + tasks)
    scores = np.random.standard_normal((runs, tasks)).round(3) * 10
    point, interval = library.get_interval_estimates(
        {"a": scores},
        lambda x: np.array([metrics.aggregate_iqm(x)]),
        reps=resamples,
        confidence_interval_size=confidence,
    )
    low, high = interval["a"][:, 0]
    return {
        "scores": scores.tolist(),
        "indices": drawn[-resamples:],
        "confidence": confidence,
        "iqm": float(point["a"][0]),
        "interval": [float(low), float(high)],
    }


def main() -> None:
    names = ("rliable", "arch", "numpy", "scipy")
    origin = "tests/oracles/iqm.py with " + ", ".join(f"{name} {version(name)}" for name in names)
    cases = [case(5, 3, 100, 0.95), case(3, 1, 60, 0.95), case(10, 4, 50, 0.8), case(4, 1, 40, 0.5)]
    print(json.dumps({"origin": origin, "cases": cases}))


if __name__ == "__main__":
    main()
