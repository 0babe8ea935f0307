"""Functions of goals, and trajectories of an env with goals that name their own place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.spaces import SpaceSpec, composite, unpack
from zmqrl.types import Array, SegmentId, SegmentMeta, SlotRef, Version

GOAL = SpaceSpec("box", (3,), "float32")
PLAIN = composite([(name, GOAL, (name,)) for name in ("achieved_goal", "desired_goal", "observation")])
PACKED = composite(
    [
        ("flags", SpaceSpec("box", (3,), "uint8"), ("flags",)),
        ("goal.now", SpaceSpec("box", (3,), "float64"), ("goal", "now")),
        ("goal.then", SpaceSpec("box", (3,), "float64"), ("goal", "then")),
    ]
)
"""Bytes, with parts that have another dtype."""


def distance(achieved: Array, desired: Array) -> Array:
    found: Array = -np.abs(achieved - desired).sum(-1)
    return found


def near(achieved: Array, desired: Array) -> Array:
    found: Array = np.abs(achieved - desired).sum(-1) <= 1.0
    return found


def never(achieved: Array, desired: Array) -> Array:
    return np.zeros(len(desired), bool)


def flat(achieved: Array, desired: Array) -> Array:
    """Of another shape than it must have."""
    return distance(achieved, desired)[:1]


@dataclass
class Step:
    """A step of an env slot, with the observation after it."""

    slot: int
    t: int
    episode: int
    valid: bool
    terminated: bool
    truncated: bool
    after: Array


@dataclass
class Walks:
    """Slots as V vector envs of N envs fill them in turn; a goal that is achieved is (stream, episode, step)."""

    seed: int
    vector_envs: int = 2
    envs: int = 3
    steps: int = 4
    segments: int = 7
    """Of each vector env."""
    end_share: float = 0.12
    space: SpaceSpec = PLAIN
    names: tuple[str, str] = ("achieved_goal", "desired_goal")
    incarnations: tuple[int, ...] = ()
    """Of the segments of each vector env; a new one begins new episodes. Empty: all 0."""
    columns: dict[str, Array] = field(default_factory=dict)
    walked: dict[tuple[int, int], list[Step]] = field(default_factory=dict)
    """By vector env and env slot."""

    def __post_init__(self) -> None:
        lead = (self.vector_envs * self.segments, self.steps, self.envs)
        self.columns = {name: np.zeros(lead, bool) for name in ("terminated", "truncated", "valid")}
        obs = np.zeros((lead[0], self.steps + 1, self.envs, *self.space.shape), self.space.dtype)
        rng = np.random.default_rng(self.seed)
        self.columns |= {"obs": obs, "action": rng.integers(0, 4, lead), "reward": np.zeros(lead, np.float32)}
        self.columns["reward"][...] = rng.normal(size=lead)
        parts = unpack(obs, self.space)
        self.achieved, self.desired = (parts[name] for name in self.names)
        for vector_env in range(self.vector_envs):
            for env in range(self.envs):
                self._walk(rng, vector_env, env)

    def _walk(self, rng: np.random.Generator, vector_env: int, env: int) -> None:
        stream, episode, count, was_ended = 10 * vector_env + env, 0, 0, False
        walked = self.walked[vector_env, env] = []
        for index in range(self.segments):
            slot = index * self.vector_envs + vector_env
            if index and self.incarnation(index) != self.incarnation(index - 1):
                episode, count, was_ended = episode + 1, 0, False
            for t in range(self.steps + 1):
                self.achieved[slot, t, env] = stream, episode, count
                self.desired[slot, t, env] = stream, episode, -1
                if t == self.steps:
                    break
                ended = not was_ended and bool(rng.random() < self.end_share)
                truncated = ended and bool(rng.random() < 0.4)
                for name, flag in (("terminated", ended and not truncated), ("truncated", truncated)):
                    self.columns[name][slot, t, env] = flag
                self.columns["valid"][slot, t, env] = not was_ended
                episode, count = (episode + 1, 0) if was_ended else (episode, count + 1)
                after = np.array([stream, episode, count], self.achieved.dtype)
                walked.append(Step(slot, t, episode, not was_ended, ended and not truncated, truncated, after))
                was_ended = ended

    def incarnation(self, index: int) -> int:
        return self.incarnations[index] if self.incarnations else 0

    def replay(self, spec: ReplaySpec, places: int, continues_episodes: bool = True) -> SegmentReplay:
        """With all segments added in turn, of which the newest ones are held."""
        replay = SegmentReplay(self.columns, places, 1, spec, self.space, continues_episodes)
        for slot in range(self.vector_envs * self.segments):
            index, vector_env = divmod(slot, self.vector_envs)
            id = SegmentId(vector_env, self.incarnation(index), index)
            replay.add(SlotRef(slot, 1), SegmentMeta(id, Version(0, index), 1))
        return replay

    def from_row(self, slot: int, t: int, env: int) -> list[Step]:
        """The steps of the episode from a row on."""
        walked = self.walked[slot % self.vector_envs, env]
        first = next(i for i, step in enumerate(walked) if (step.slot, step.t) == (slot, t))
        return [step for step in walked[first:] if step.episode == walked[first].episode and step.valid]


def broken(achieved: Array, desired: Array) -> Array:
    """A fault of a user's function."""
    raise KeyError("distance")


def undefined(achieved: Array, desired: Array) -> Array:
    """No number."""
    return np.full(len(achieved), np.nan, np.float32)
