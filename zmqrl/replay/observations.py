"""Observations of slots. Of a stack of k frames each frame is stored once: stacks are made where they are read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.types import Array


class Observations:
    """The column `obs` of slots, `[slots, T + 1, N, ...]`, or `[slots, T + k, N, ...]` with stacks of k frames.

    Row t of a stacked column is `obs[:, t : t + k]`: k - 1 frames of history are in front. Frames from before the
    episode's first row are replaced by its first frame. An episode begins after an autoreset row; what lies in front
    of the segment was stored with this rule applied.
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._obs, self._valid = columns["obs"], columns["valid"]
        self.depth = stack_depth(columns)

    def read(self, slot: Array, t: Array, env: Array) -> Array:
        """Observations `[..., *shape]` of rows t, 0 <= t <= T; the three indices are broadcast."""
        if self.depth == 1:
            obs: Array = self._obs[slot, t, env]
            return obs
        slot, t, env = (index[..., None] for index in np.broadcast_arrays(slot, t, env))
        frames: Array = self._obs[slot, np.maximum(t + np.arange(self.depth), self._first_frames(slot, t, env)), env]
        return frames

    def _first_frames(self, slot: Array, t: Array, env: Array) -> Array:
        """The frame `[..., 1]` of the first row of row t's episode; 0 where its stack is within the episode."""
        before = t - np.arange(1, self.depth)
        is_reset = ~self._valid[slot, np.maximum(before, 0), env] & (before >= 0)
        back = is_reset.argmax(-1, keepdims=True)  # the latest autoreset row is t - 1 - back
        first: Array = np.where(is_reset.any(-1, keepdims=True), t - back + self.depth - 1, 0)
        return first

    def segments(self, slots: Array) -> Array:
        """All observations `[T + 1, len(slots) * N, ...]` of slots side by side, C-contiguous."""
        _, steps, envs = self._valid.shape
        t = np.arange(steps + 1)[:, None]
        return self.read(np.repeat(slots, envs), t, np.tile(np.arange(envs), len(slots)))


def stack_depth(columns: Mapping[str, Array]) -> int:
    """K of the columns of slots; 1 without stacks."""
    if "obs" not in columns or "valid" not in columns:
        return 1
    return max(1, columns["obs"].shape[1] - columns["valid"].shape[1])


def last_observation(columns: Mapping[str, Array], slot: int) -> Array:
    """The observation `[N, ...]` after the last row of a slot."""
    _, steps, envs = columns["valid"].shape
    return Observations(columns).read(np.array(slot), np.array(steps), np.arange(envs))
