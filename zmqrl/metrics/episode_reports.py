"""Reports of envs (`env.report`): numbers of `info` of each step, reduced to one per episode.

See decision 0056: docs/decisions/0056-reports-of-envs-are-a-column.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from zmqrl.config.sections import Reduction
from zmqrl.errors import ConfigError
from zmqrl.types import LARGEST_FINITE, Array


class EpisodeReports:
    """The numbers of each episode, from those of its steps. One thread."""

    def __init__(self, report: Mapping[str, Reduction], env: str, shape: tuple[int, int], window: int | None) -> None:
        """`env`: its id, for messages. `shape`: vector envs, and envs of each. `window`: newest episodes that count."""
        self._kinds, self._env = dict(report), env
        self._total = {name: np.full(shape, _begin(kind)) for name, kind in report.items()}
        self._count = {name: np.zeros(shape, np.int64) for name in report}
        """Steps of the running episode that had the name."""
        self.finished: dict[str, deque[float]] = {name: deque(maxlen=window) for name in report}

    def means(self) -> Iterator[tuple[str, float]]:
        """Name and mean over the newest episodes, where there is one, and it is finite."""
        means = ((name, float(np.mean(values))) for name, values in self.finished.items() if values)
        return ((name, mean) for name, mean in means if abs(mean) <= LARGEST_FINITE)

    def observe(self, vector_env: int, values: Array, valid: Array, done: Array) -> None:
        """Count steps of a vector env: `values [T, N, names]`, of those that are `valid [T, N]`.

        Raises:
            ConfigError: No step of an episode that is `done [T, N]` had one of the names.
        """
        parts = _Parts(valid, done)
        for place, (name, kind) in enumerate(self._kinds.items()):
            total, count = self._total[name][vector_env], self._count[name][vector_env]
            totals, counts = parts.reduced(kind, values[:, :, place].T.ravel())
            totals[parts.first] = _joined(kind, total, totals[parts.first])
            counts[parts.first] += count
            found, steps = totals[parts.finished], counts[parts.finished]
            if not steps.all():
                raise self._missing(name)
            found = found / steps if kind == "mean" else found
            self.finished[name].extend(found[~np.isnan(found)].tolist())
            total[:] = np.where(parts.runs_on, totals[parts.last], _begin(kind))
            count[:] = np.where(parts.runs_on, counts[parts.last], 0)

    def begin_anew(self, vector_env: int) -> None:
        """Abandon the running episodes of a vector env."""
        for name, kind in self._kinds.items():
            self._total[name][vector_env], self._count[name][vector_env] = _begin(kind), 0

    def arrays(self) -> dict[str, Array]:
        """For FULL."""
        arrays: dict[str, Array] = {}
        for name, kind in self._kinds.items():
            key = f"report.{kind}.{name}"
            arrays |= {f"{key}.total": self._total[name], f"{key}.count": self._count[name]}
            arrays[f"{key}.finished"] = np.array(self.finished[name], np.float64)
        return arrays

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` gave. Of a name that is new in `env.report`, the running episodes do not count."""
        for name, kind in self._kinds.items():
            key = f"report.{kind}.{name}"
            if f"{key}.total" not in arrays:
                self._total[name].fill(math.nan)
                self._count[name].fill(1)
                continue
            known = min(len(self._total[name]), len(arrays[f"{key}.total"]))
            self._total[name][:known] = arrays[f"{key}.total"][:known]
            self._count[name][:known] = arrays[f"{key}.count"][:known]
            self.finished[name].extend(arrays[f"{key}.finished"].tolist())

    def _missing(self, name: str) -> ConfigError:
        what = f"no step of an episode of env {self._env} had info[{name!r}]"
        fix = "return it in at least one step of each episode, or remove it"
        return ConfigError(what, key=("env", "report", name), fix=fix)


class _Parts:
    """Parts of episodes that `[T, N]` rows of a vector env have, env by env."""

    def __init__(self, valid: Array, done: Array) -> None:
        steps, envs = valid.shape
        self._valid, done = valid.T.ravel(), done.T.ravel()
        is_start = np.zeros(steps * envs, bool)
        is_start[1:] = done[:-1]
        is_start[::steps] = True
        self._starts = np.flatnonzero(is_start)
        ends = np.append(self._starts[1:], steps * envs) - 1
        self.first = np.flatnonzero(self._starts % steps == 0)
        """The first part of each env."""
        self.last = np.append(self.first[1:], len(ends)) - 1
        self.runs_on = ~done[ends[self.last]]
        """Whether the last part of each env is of an episode that continues."""
        finished = np.flatnonzero(done[ends])
        self.finished = finished[np.argsort(ends[finished] % steps, kind="stable")]
        """Parts at whose end an episode ends, in the order of their ends."""

    def reduced(self, kind: Reduction, column: Array) -> tuple[Array, Array]:
        """The number of each part of `column [N * T]`, NaN or 0 where it has none; and of how many rows it is."""
        there, starts = self._valid & ~np.isnan(column), self._starts
        counts = np.add.reduceat(there.astype(np.int64), starts)
        if kind in ("mean", "sum"):
            return np.add.reduceat(np.where(there, column, 0.0), starts), counts
        if kind == "last":
            newest = np.maximum.reduceat(np.where(there, np.arange(len(column)), -1), starts)
            return np.where(newest < 0, math.nan, column[newest]), counts
        extreme = np.fmin if kind == "min" else np.fmax
        return extreme.reduceat(np.where(there, column, math.nan), starts), counts


def _joined(kind: Reduction, before: Array, after: Array) -> Array:
    if kind in ("mean", "sum"):
        return before + after
    if kind == "last":
        return np.where(np.isnan(after), before, after)
    return np.fmin(before, after) if kind == "min" else np.fmax(before, after)


def _begin(kind: Reduction) -> float:
    return 0.0 if kind in ("mean", "sum") else math.nan
