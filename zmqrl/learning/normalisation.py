"""What a learner knows of observations and rewards so far: frozen per version, merged in batch order, float64."""

from __future__ import annotations

from itertools import pairwise

from zmqrl.loading import np
from zmqrl.networks.input import InputSpec
from zmqrl.ops.running_stats import RunningStats, discounted_returns
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import Array, SpaceSpec, Version, Weights

OBS, REWARD, VALUE = "obs_stats.", "reward_stats.", "value_stats."
"""Prefixes in weights that a learner begins with."""
BEFORE = "obs_before"
"""Mean and scale of observations in the version before that of a full checkpoint."""
REMEMBERED_VERSIONS = 256


class ObsNormaliser:
    """Trains each segment with the statistics its worker acted with; `merge` makes those of the next version."""

    def __init__(self, spec: InputSpec, observation: SpaceSpec, clip: float, weights: Weights) -> None:
        """`weights`: those that the learner begins with."""
        self._spec, self._observation, self._clip = spec, observation, clip
        self._stats = _first(weights, OBS, spec.statistics_size)
        self._history: dict[int, Array] = {}
        """Mean and scale `[2, size]` of versions, by number."""
        self._before: Array | None = None
        """Mean and scale of the version before the first that is remembered, where a full checkpoint has them."""

    def normalise(self, batch: SegmentBatch, version: Version | None) -> Array:
        """The float parts of `obs [T + 1, E, ...]`, float32 `[T + 1, E, size]`; a segment by its version's statistics.

        A version that is not remembered takes the current statistics: one from before a restart of the learner, except
        the last, which the full checkpoint has.
        """
        current = np.stack((self._stats.mean, self._stats.scale))
        self._remember(version, current)
        flat = self._spec.floats(batch.columns["obs"], self._observation)
        out = np.empty(flat.shape, dtype=np.float32)
        for envs, meta in by_segment(batch):
            mean, scale = self._history.get(meta.version.n, current)
            out[:, envs] = np.clip((flat[:, envs] - mean) * scale, -self._clip, self._clip)
        return out

    def merge(self, batch: SegmentBatch) -> None:
        """Add the batch's valid rows, in the order (t, vector env, env)."""
        obs, valid = batch.columns["obs"][:-1], batch.columns["valid"]
        self._stats = self._stats.merge(self._spec.floats(obs[valid], self._observation))

    def published(self) -> dict[str, Array]:
        """`obs_mean` and `obs_scale` for the workers."""
        return {"obs_mean": self._stats.mean.copy(), "obs_scale": self._stats.scale.copy()}

    def state(self) -> dict[str, Array]:
        """For FULL: also what was known in the version before, with which pipelined acts the next round."""
        before = next(reversed(self._history.values()), self._before)
        return self._stats.state(OBS) | ({} if before is None else {BEFORE: before})

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave; remembered versions are discarded."""
        self._stats = RunningStats.load(state, OBS)
        self._history, self._before = {}, state.get(BEFORE)

    def _remember(self, version: Version | None, current: Array) -> None:
        if version is None:
            return
        if self._before is not None and not self._history:
            self._history[version.n - 1] = self._before
        self._history[version.n] = current
        if len(self._history) > REMEMBERED_VERSIONS:
            del self._history[next(iter(self._history))]


class RewardNormaliser:
    """Divides rewards by the deviation of the discounted return, one accumulator per env."""

    def __init__(self, gamma: float, clip: float, weights: Weights) -> None:
        """`weights`: those that the learner begins with."""
        self._gamma, self._clip = gamma, clip
        self._stats = _first(weights, REWARD, 1)
        self._running: dict[int, Array] = {}

    def merge_and_normalise(self, batch: SegmentBatch) -> Array:
        """Add the batch's returns, then scale its rewards `[T, E]` float32."""
        columns = batch.columns
        reward, valid = columns["reward"], columns["valid"]
        done = columns["terminated"] | columns["truncated"]
        returns = np.empty(reward.shape, dtype=np.float64)
        for envs, meta in by_segment(batch):
            stream = meta.id.vector_env
            start = self._running.get(stream, np.zeros(envs.stop - envs.start))
            part = discounted_returns(reward[:, envs], done[:, envs], valid[:, envs], start, self._gamma)
            returns[:, envs], self._running[stream] = part
        self._stats = self._stats.merge(returns[valid][:, None])
        scaled: Array = np.clip(reward * self._stats.scale[0], -self._clip, self._clip).astype(np.float32)
        return scaled

    def state(self) -> dict[str, Array]:
        """For FULL."""
        running = {f"reward_running.{stream}": value.copy() for stream, value in self._running.items()}
        return running | self._stats.state(REWARD)

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""
        self._stats = RunningStats.load(state, REWARD)
        prefix = "reward_running."
        self._running = {int(k.removeprefix(prefix)): v.copy() for k, v in state.items() if k.startswith(prefix)}


class ValueNormaliser:
    """Mean and deviation of the value targets so far: the critic predicts numbers of one size, whatever the rewards."""

    def __init__(self, weights: Weights) -> None:
        """`weights`: those that the learner begins with."""
        self._stats = _first(weights, VALUE, 1)

    def merge(self, target: Array) -> None:
        """Add the targets `[B]` of a batch."""
        self._stats = self._stats.merge(target[:, None])

    def normalised(self, target: Array) -> Array:
        """What the critic is trained to predict, float32."""
        scaled: Array = ((target - self._stats.mean[0]) * self._stats.scale[0]).astype(np.float32)
        return scaled

    def restored(self, predicted: Array) -> Array:
        """The values that the critic's predictions mean, float32."""
        values: Array = (predicted / self._stats.scale[0] + self._stats.mean[0]).astype(np.float32)
        return values

    def state(self) -> dict[str, Array]:
        """For FULL."""
        return self._stats.state("")

    def load_state(self, state: Weights) -> None:
        """Back to what `state` gave."""
        self._stats = RunningStats.load(state, "")


def by_segment(batch: SegmentBatch) -> list[tuple[slice, SegmentMeta]]:
    """The segments of a batch: their envs among the E of the batch, and their meta."""
    envs = batch.columns["reward"].shape[1] // len(batch.metas)
    edges = pairwise(range(0, envs * len(batch.metas) + 1, envs))
    return [(slice(start, stop), meta) for (start, stop), meta in zip(edges, batch.metas, strict=True)]


def _first(weights: Weights, prefix: str, size: int) -> RunningStats:
    """Statistics that came with weights of another run (`Algorithm.learner_statistics`), else empty ones."""
    return RunningStats.load(weights, prefix) if f"{prefix}count" in weights else RunningStats.empty(size)
