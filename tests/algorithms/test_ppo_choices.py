"""PPO with masks and multi-discrete actions: log-probabilities of worker and learner agree, and it learns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from zmqrl.acting.numpy_policy import make_policy
from zmqrl.algorithms.base import LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.sections import EnvSection, NetworkSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.base import SegmentMeta, gather
from zmqrl.rollout.collector import Collector
from zmqrl.types import Array, SegmentId, SlotRef, Version

N, T = 8, 32


class Symbols(gym.Env[Any, Any]):
    """A symbol x of 3: reward 1 for a first entry x, and 1 for a second entry (x + 1) % 3. A second entry x, the
    first answer once more, is forbidden and would have reward 9."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(6), "x": spaces.Discrete(3)})
    action_space = spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._drawn(), {}

    def step(self, action: Any) -> Any:
        assert action[1] != self._x, "it is forbidden"
        reward = float(action[0] == self._x) + float(action[1] == (self._x + 1) % 3)
        return self._drawn(), reward, False, False, {}

    def _drawn(self) -> Any:
        self._x = int(self.np_random.integers(3))
        mask = np.ones(6, np.int8)
        mask[3 + self._x] = 0
        return {"action_mask": mask, "x": self._x}


def rewards(env: str, rounds: int, executor: str = "eager") -> list[float]:
    """Mean reward of each round. Progress has `debug`: the learner checks the log-probabilities of every batch."""
    section = EnvSection(id=env, num_envs=N, max_episode_steps=20)
    spec = probe(section)
    config = PPOConfig(learning_rate=0.01, minibatch_size=64, epochs=4, gamma=0.0)
    algorithm = PPO(config, NetworkSection(hidden=(16,)), spec, T, N)
    assert algorithm.executors == ("eager", "compiled")
    weights = initial_weights(algorithm.network(), 1)
    acting = algorithm.acting()
    policy, learner = make_policy(acting), algorithm.learner(LearnerContext(weights, seed=1, executor=executor))
    assert isinstance(learner, OnPolicyLearner)
    columns: dict[str, Array] = {
        "obs": np.zeros((T + 1, N, *spec.observation.shape), spec.observation.dtype),
        "action": np.zeros((T, N, *spec.action.shape), spec.action.dtype),
        "reward": np.zeros((T, N), np.float32),
        **{name: np.zeros((T, N), bool) for name in ("terminated", "truncated", "valid")},
        **{column.name: np.zeros(column.shape, column.dtype) for column in acting.extras},
    }
    collector = Collector(make_vector_env(section, spec, "sync", 1, 0), policy, acting, 1, 0)
    collector.start()
    found, updates = [], 0
    for index in range(rounds):
        policy.load(learner.weights(), {})
        rows = collector.collect(columns, index, lambda _: None, lambda: False)
        assert rows is not None
        meta = SegmentMeta(SegmentId(0, 0, index), Version(0, index), rows)
        batch = gather({name: column[None] for name, column in columns.items()}, [SlotRef(0, 1)], [meta])
        result = learner.learn(batch, Progress(1, 0, updates, 10_000, debug=True, version=Version(0, index)))
        updates += result.updates
        found.append(float(columns["reward"][columns["valid"]].mean()))
    collector.close()
    return found


def test_a_masked_bandit_is_learned() -> None:
    """Action 2 would have the highest reward, and is always forbidden."""
    found = rewards("tests.envs.space_envs:MaskedBandit", 10)
    assert found[0] < 0.75 and found[-1] > 0.95


@pytest.mark.whole
def test_several_masked_choices_are_learned() -> None:
    found = rewards(f"{__name__}:Symbols", 15)
    assert found[0] < 1.2 and found[-1] > 1.8


@pytest.mark.parametrize("env", ["Mixed", "Pair", "Numbered", "MaskedSeveral"])
def test_log_probabilities_of_worker_and_learner_agree(env: str) -> None:
    assert np.isfinite(rewards(f"tests.envs.space_envs:{env}", 2)).all()
