"""Count, mean and variance of a stream of rows, merged batch by batch in float64, and rewards scaled by them."""

from __future__ import annotations

from dataclasses import dataclass

from zmqrl.loading import np
from zmqrl.types import Array, Weights

VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True)
class RunningStats:
    """Count, mean `[D]` and M2 `[D]` (sum of squared deviations). Starts at count 0, without pseudo-counts."""

    count: float
    mean: Array
    m2: Array

    @classmethod
    def empty(cls, size: int) -> RunningStats:
        """Nothing seen yet."""
        return cls(0.0, np.zeros(size), np.zeros(size))

    @classmethod
    def of_scale(cls, count: float, mean: Array, scale: Array) -> RunningStats:
        """Statistics of `count` rows with this mean and `scale`, up to rounding."""
        return cls(count, mean.copy(), np.maximum(scale**-2.0 - VARIANCE_FLOOR, 0.0) * count)

    @classmethod
    def load(cls, arrays: Weights, prefix: str) -> RunningStats:
        """Back from what `state` gave. KeyError: an array is missing."""
        count, mean, m2 = (arrays[f"{prefix}{name}"].copy() for name in ("count", "mean", "m2"))
        return cls(float(count[0]), mean, m2)

    def state(self, prefix: str) -> dict[str, Array]:
        """Copies: `<prefix>count [1]`, `<prefix>mean [D]` and `<prefix>m2 [D]`, float64."""
        arrays = {"count": np.array([self.count]), "mean": self.mean.copy(), "m2": self.m2.copy()}
        return {f"{prefix}{name}": array for name, array in arrays.items()}

    def merge(self, rows: Array) -> RunningStats:
        """Statistics with `rows [B, D]` added, by the parallel formula (Chan, Golub & LeVeque 1979, equation 2.1)."""
        assert rows.ndim == 2 and rows.shape[1:] == self.mean.shape, (rows.shape, self.mean.shape)
        if not len(rows):
            return self
        wide = rows.astype(np.float64)
        mean = wide.mean(0)
        delta, total = mean - self.mean, self.count + len(rows)
        m2 = self.m2 + ((wide - mean) ** 2).sum(0) + delta**2 * (self.count * len(rows) / total)
        return RunningStats(total, self.mean + delta * (len(rows) / total), m2)

    @property
    def scale(self) -> Array:
        """1 / deviation `[D]`; 1 before the first row."""
        return np.ones_like(self.mean) if self.count == 0 else 1.0 / np.sqrt(self.m2 / self.count + VARIANCE_FLOOR)


def discounted_returns(reward: Array, done: Array, valid: Array, start: Array, gamma: float) -> tuple[Array, Array]:
    """Running discounted returns `[T, N]` float64 of one vector env, and where they stand `[N]` after its last row.

    R_t = gamma R_{t-1} + r_t, from `start [N]`; it starts again after a `done [T, N]`. Invalid rows leave it at 0.
    """
    assert reward.shape == done.shape == valid.shape and start.shape == reward.shape[1:], (reward.shape, start.shape)
    returns = np.empty(reward.shape, dtype=np.float64)
    running = start.astype(np.float64)
    for t in range(len(reward)):
        running = np.where(valid[t], gamma * running + reward[t], 0.0)
        returns[t] = running
        running = np.where(done[t], 0.0, running)
    return returns, running
