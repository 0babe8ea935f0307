"""A hand-made driver for learner tests: one vector env of numpy toys, NEXT_STEP autoreset, acting in numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import Array, EnvSpec, SegmentId, SpaceSpec, Version, Weights

DISCRETE = SpaceSpec("discrete", (), "int64", 3)
CONTINUOUS = SpaceSpec("box", (1,), "float32", 0, (-1.0,), (1.0,))


def env_spec(action: SpaceSpec = DISCRETE, obs_size: int = 3) -> EnvSpec:
    return EnvSpec("toy", SpaceSpec("box", (obs_size,), "float32"), action)


class Toy(ABC):
    """N episodes in step. `observe` gives [N, D], `reward` [N]; an episode is `length` steps long."""

    def __init__(self, envs: int, length: int, truncates: bool) -> None:
        self.envs, self.length, self.truncates = envs, length, truncates
        self.age = np.zeros(envs, dtype=np.int64)

    @abstractmethod
    def observe(self) -> Array: ...

    @abstractmethod
    def reward(self, action: Array) -> Array: ...


class MatchTheObs(Toy):
    """The observation is one of three symbols; saying it (or, continuous, its number - 1) is worth 1."""

    def __init__(self, envs: int, length: int = 10, seed: int = 1) -> None:
        super().__init__(envs, length, truncates=False)
        self._rng = np.random.default_rng(seed)
        self._draw()

    def _draw(self) -> None:
        self.symbol = self._rng.integers(0, 3, self.envs)

    def observe(self) -> Array:
        return np.eye(3, dtype=np.float32)[self.symbol]

    def reward(self, action: Array) -> Array:
        if action.ndim == 1:
            reward = (action == self.symbol).astype(np.float32)
        else:
            reward = (np.abs(action[:, 0] - (self.symbol - 1)) < 0.5).astype(np.float32)
        self._draw()
        return reward


class InfiniteHorizon(Toy):
    """Reward 1 for ever on a ring of states, cut by a limit (InfiniteHorizonEnv of Stable-Baselines3's tests).

    V(start) is 1 / (1 - gamma) when truncation bootstraps; with termination and a ring longer than an episode it is
    the sum of `length` discounted rewards.
    """

    def __init__(self, envs: int, length: int, truncates: bool, states: int) -> None:
        super().__init__(envs, length, truncates)
        self._states = np.eye(states, dtype=np.float32)

    def observe(self) -> Array:
        return self._states[self.age % len(self._states)]

    def reward(self, action: Array) -> Array:
        return np.ones(self.envs, dtype=np.float32)


@dataclass
class Driver:
    """Fills one segment after the other with a policy made of the published weights."""

    algorithm: Algorithm
    toy: Toy
    seed: int = 1
    n: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._done = np.zeros(self.toy.envs, dtype=bool)

    @property
    def version(self) -> Version:
        return Version(0, self.n)

    def segment(self, weights: Weights, epsilon: float = 0.0) -> SegmentBatch:
        steps, envs, toy = self.algorithm.segment_steps, self.toy.envs, self.toy
        rows: dict[str, list[Array]] = {}
        for _ in range(steps):
            obs = toy.observe()
            action, log_prob = self.act(obs, weights, epsilon)
            reward = np.where(self._done, 0.0, toy.reward(action)).astype(np.float32)
            valid = ~self._done
            toy.age = np.where(valid, toy.age + 1, 0)
            self._done = valid & (toy.age == toy.length)
            ended, never = self._done.copy(), np.zeros(envs, dtype=bool)
            row = {
                "obs": obs,
                "action": action,
                "reward": reward,
                "terminated": never if toy.truncates else ended,
                "truncated": ended if toy.truncates else never,
                "valid": valid,
                "log_prob": log_prob,
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
        rows["obs"].append(toy.observe())
        columns = {name: np.stack(values) for name, values in rows.items()}
        meta = SegmentMeta(SegmentId(0, 0, self.n), self.version, int(columns["valid"].sum()))
        self.n += 1
        return SegmentBatch(columns, (meta,))

    def act(self, obs: Array, weights: Weights, epsilon: float) -> tuple[Array, Array]:
        spec, envs = self.algorithm.acting(), len(obs)
        x = obs
        if spec.normalise_obs:
            scaled = (obs - weights["obs_mean"]) * weights["obs_scale"]
            x = np.clip(scaled, -spec.obs_clip, spec.obs_clip).astype(np.float32)
        for layer in spec.layers:
            if layer.kind == "linear":
                x = x @ weights[f"{layer.name}.weight"].T + weights[f"{layer.name}.bias"]
            elif layer.kind == "dueling":
                # The value shifts all actions alike: a greedy choice does not need it.
                x = x @ weights[f"{layer.name}.advantage.weight"].T + weights[f"{layer.name}.advantage.bias"]
            else:
                x = np.tanh(x) if layer.kind == "tanh" else np.maximum(x, 0)
        if spec.head == "epsilon_greedy":
            random = self._rng.random(envs) < epsilon
            return np.where(random, self._rng.integers(0, x.shape[1], envs), x.argmax(1)), np.zeros(envs)
        if spec.head == "gaussian":
            log_std = weights["log_std"]
            z = self._rng.standard_normal(x.shape).astype(np.float32)
            log_prob = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1)
            return (x + z * np.exp(log_std)).astype(np.float32), log_prob.astype(np.float32)
        log_p = x - x.max(1, keepdims=True)
        log_p = log_p - np.log(np.exp(log_p).sum(1, keepdims=True))
        action = (np.exp(log_p).cumsum(1) < self._rng.random((envs, 1))).sum(1).clip(max=x.shape[1] - 1)
        return action, log_p[np.arange(envs), action]
