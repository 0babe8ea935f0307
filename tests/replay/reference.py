"""Replay in plain Python, row by row: slow, and written from the description rather than from the code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.replay.base import ReplaySample
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Array, SegmentId, SegmentMeta, SlotRef, Version

DECAY = 0.5


@dataclass
class Acted:
    """Slots `[slots, T, N, ...]` as one collector of N envs fills them in turn, with a recurrent state."""

    slots: int
    steps: int
    envs: int
    seed: int
    state_every: int = 1
    end_share: float = 0.15
    columns: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, lead = np.random.default_rng(self.seed), (self.slots, self.steps, self.envs)
        flags = {name: np.zeros(lead, bool) for name in ("terminated", "truncated", "valid")}
        states = np.zeros((self.slots, self.steps // self.state_every, self.envs, 2), np.float32)
        self.columns = {
            "obs": np.zeros((self.slots, self.steps + 1, self.envs, 2), np.float32),
            "action": rng.integers(0, 5, lead),
            "reward": rng.normal(size=lead).astype(np.float32),
            **flags,
            "td": rng.normal(size=lead).astype(np.float32),
            "acted": np.zeros((*lead, 2), np.float32),
            "state.core": states,
        }
        for env in range(self.envs):
            self._act(rng, env)

    def _act(self, rng: np.random.Generator, env: int) -> None:
        c = self.columns
        obs, state, was_ended, was_autoreset = rng.normal(size=2), np.zeros(2), False, False
        for slot in range(self.slots):
            for t in range(self.steps):
                if was_autoreset:  # an episode begins with this row
                    state = np.zeros(2)
                if t % self.state_every == 0:
                    c["state.core"][slot, t // self.state_every, env] = state
                at = slot, t, env
                c["obs"][at], c["acted"][at], c["valid"][at] = obs, state, not was_ended
                ended = bool(rng.random() < self.end_share) and not was_ended
                truncated = ended and bool(rng.random() < 0.4)
                c["terminated"][at], c["truncated"][at] = ended and not truncated, truncated
                state = (state * DECAY + c["obs"][at]).astype(np.float32)
                was_ended, was_autoreset = ended, was_ended
                obs = rng.normal(size=2)
                c["obs"][slot, t + 1, env] = obs

    def meta(self, slot: int) -> SegmentMeta:
        return SegmentMeta(SegmentId(0, 0, slot), Version(0, slot), int(self.columns["valid"][slot].sum()))

    def replay(self, spec: ReplaySpec, places: int, slots: Any) -> SegmentReplay:
        """With the `slots` added."""
        replay = SegmentReplay(self.columns, places, 1, spec)
        for slot in slots:
            replay.add(SlotRef(slot, 1), self.meta(slot))
        return replay

    def sequences(self, spec: ReplaySpec) -> list[tuple[int, int]]:
        """(start, env) of the sequences of a segment, in the order of their numbers."""
        rows, stride = spec.burn_in + spec.length, spec.stride or spec.length
        starts = [start for start in range(0, self.steps, stride) if start + rows <= self.steps]
        return [(start, env) for start in starts for env in range(self.envs)]

    def learned(self, spec: ReplaySpec, slot: int, start: int, env: int) -> list[int]:
        """Rows of a sequence that count."""
        first = start + spec.burn_in
        return [t for t in range(first, first + spec.length) if self.columns["valid"][slot, t, env]]

    def transition(self, slot: int, t: int, env: int, n: int, gamma: float) -> tuple[float, int, float]:
        """n-step return, row of the next obs, discount."""
        c, total, length = self.columns, 0.0, 0
        while length < n and t + length < self.steps:
            at = slot, t + length, env
            total += gamma**length * float(c["reward"][at])
            length += 1
            if c["terminated"][at]:
                return total, t + length, 0.0
            if c["truncated"][at]:
                break
        return total, t + length, gamma**length


def check_transitions(acted: Acted, sample: ReplaySample, slots: list[int], n: int, gamma: float) -> None:
    """`slots[place]` is the slot in a place."""
    c = acted.columns
    for i, row in enumerate(sample.rows.tolist()):
        place, within = divmod(row, acted.steps * acted.envs)
        (t, env), slot = divmod(within, acted.envs), slots[place]
        assert c["valid"][slot, t, env]
        total, after, discount = acted.transition(slot, t, env, n, gamma)
        assert abs(sample.n_step_return[i] - total) < 1e-5 and abs(sample.discount[i] - discount) < 1e-6
        assert np.array_equal(sample.obs[i], c["obs"][slot, t, env])
        assert np.array_equal(sample.next_obs[i], c["obs"][slot, after, env])
        assert sample.action[i] == c["action"][slot, t, env]
        for name in ("td", "acted"):
            assert np.array_equal(sample.extras[name][i], c[name][slot, t, env])
