"""Rounds of an algorithm in this process and thread, without files: what mode single does, for checks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.state import state_columns
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner, Progress, schedule_of
from zmqrl.config.sections import EnvSection, ReplaySection
from zmqrl.envs.vector import make_vector_env
from zmqrl.evaluator.evaluation import evaluate
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.base import SegmentMeta, gather
from zmqrl.replay.segment_replay import build_replay
from zmqrl.rollout.collector import Collector
from zmqrl.types import Array, SegmentId, SlotRef, Version


class Rounds:
    """One segment of each vector env per round, then its updates. `close` it."""

    def __init__(
        self, algorithm: Algorithm, section: EnvSection, env_steps: int, seed: int, replay: ReplaySection
    ) -> None:
        """`env_steps`: the horizon of the schedules, and the most that is collected."""
        self._algorithm, self._section, self._seed, self._section_of_replay = algorithm, section, seed, replay
        self._acting, self._horizon = algorithm.acting(), env_steps
        weights = {**initial_weights(algorithm.network(), seed), **algorithm.statistics()}
        given = None if algorithm.on_policy else replay
        self._learner = algorithm.learner(LearnerContext(weights, "cpu", seed, env_steps, given))
        self._policy = make_policy(self._acting)
        self._collectors = [self._collector(v) for v in range(section.vector_envs)]
        rows = section.vector_envs * section.segment_steps * section.num_envs
        held = algorithm.held_batches if algorithm.on_policy else 2 + 2 * env_steps // rows  # every second row resets
        self._rounds_of_slots = held + 1
        self._slots = self._columns(self._rounds_of_slots * section.vector_envs)
        spec, observation = algorithm.replay(), algorithm.env.observation
        self._replay = build_replay(self._slots, held * rows, seed, spec, observation) if held else None
        self.env_steps = self._updates = self._round = 0

    def train(self, env_steps: int) -> None:
        """Until so many env steps were made in all."""
        while self.env_steps < min(env_steps, self._horizon):
            self._advance()

    def score(self, episodes: int) -> float:
        """Mean return of greedy episodes."""
        return evaluate(self._loaded(), self._section, self._algorithm.env, episodes, self._seed).mean

    def close(self) -> None:
        """Close the envs."""
        for collector in self._collectors:
            collector.close()

    def _collector(self, vector_env: int) -> Collector:
        section = self._section
        env = make_vector_env(section, self._algorithm.env, "single", self._seed, vector_env, 0)
        collector = Collector(env, self._policy, self._acting, self._seed, vector_env, vector_envs=section.vector_envs)
        collector.start()
        return collector

    def _columns(self, slots: int) -> dict[str, Array]:
        env, steps, envs = self._algorithm.env, self._section.segment_steps, self._section.num_envs
        fixed: list[tuple[str, str, Sequence[int]]] = [
            ("obs", env.observation.dtype, (steps + 1, envs, *env.observation.shape)),
            ("action", env.action.dtype, (steps, envs, *env.action.shape)),
            ("reward", "float32", (steps, envs)),
            *((name, "bool", (steps, envs)) for name in ("terminated", "truncated", "valid")),
        ]
        added = (*self._acting.extras, *state_columns(self._acting, steps, envs))
        fixed += [(column.name, column.dtype, column.shape) for column in added]
        return {name: np.zeros((slots, *shape), dtype) for name, dtype, shape in fixed}

    def _progress(self) -> Progress:
        version = Version(0, self._round)
        return Progress(self._seed, self.env_steps, self._updates, self._horizon, debug=True, version=version)

    def _loaded(self) -> Policy:
        self._policy.load(self._learner.weights(), schedule_of(self._algorithm, self._progress()))
        return self._policy

    def _advance(self) -> None:
        self._loaded()
        first = self._round % self._rounds_of_slots * len(self._collectors)
        refs, metas = [], []
        for vector_env, collector in enumerate(self._collectors):
            slot = {name: column[first + vector_env] for name, column in self._slots.items()}
            rows = collector.collect(slot, self._round, lambda _: None, lambda: False)
            assert rows is not None
            refs.append(SlotRef(first + vector_env, 1))
            metas.append(SegmentMeta(SegmentId(vector_env, 0, self._round), Version(0, self._round), rows))
        self.env_steps += sum(meta.rows for meta in metas)
        batch = gather(self._slots, refs, metas)
        if self._replay is not None:
            for ref, meta in zip(refs, metas, strict=True):
                self._replay.add(ref, meta)
        if isinstance(self._learner, OnPolicyLearner):
            self._learner.replay = self._replay
            self._updates += self._learner.learn(batch, self._progress()).updates
        else:
            assert self._replay is not None
            self._learner.observe(batch)
            due = int((self.env_steps - self._section_of_replay.learning_starts) * self._section_of_replay.ratio)
            if due > self._updates and self._replay.size:
                self._updates += self._learner.update(self._replay, due - self._updates, self._progress()).updates
        self._round += 1
