from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.test_recurrent_state import Run
from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.envs.base import StepResult
from zmqrl.evaluator.evaluation import EpisodePlayer
from zmqrl.types import Array, Weights


class Watched(Policy):
    """Notes the state that each call is given."""

    def __init__(self, policy: Policy, name: str = "core") -> None:
        self._policy, self._name = policy, name
        self.given: list[Array] = []
        self.actions: list[Array] = []

    def load(self, weights: Weights, schedule: object) -> None:
        raise NotImplementedError

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        raise NotImplementedError

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        self.given.append(state[self._name].copy())
        self.actions.append(self._policy.act_greedily(obs, state))
        return self.actions[-1]

    def zero_state(self, rows: int) -> dict[str, Array]:
        return self._policy.zero_state(rows)


def test_every_evaluation_begins_with_zero_state_and_carries_it_from_step_to_step() -> None:
    run = Run("CartPole-v1", steps=1)
    policy = Watched(run.policy)
    evaluation = EpisodePlayer(run.section, run.env, 3, 1)
    scores = [evaluation.play(policy) for _ in range(2)]
    evaluation.close()
    assert scores[0] == scores[1]
    half = len(policy.given) // 2
    assert scores[0] is not None and half == max(scores[0].lengths) > 2
    for given in (policy.given[:half], policy.given[half:]):
        assert not given[0].any()
        assert all(np.abs(state).max(axis=1).min() > 0 for state in given[1:])


def test_an_evaluation_shows_the_step_before_to_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("tests.envs.odd_envs:Lottery", steps=1, previous=True, kind="discrete")
    policy, rewards = Watched(run.policy, "previous"), []
    evaluation = EpisodePlayer(run.section, run.env, 3, 1)
    step = evaluation._env.step
    monkeypatch.setattr(evaluation._env, "step", lambda actions: _noted(step(actions), rewards))
    score = evaluation.play(policy)
    evaluation.close()
    assert score is not None and score.lengths == (4, 4, 4) and len(policy.given) == 4
    assert not policy.given[0].any()
    for given, actions, reward in zip(policy.given[1:], policy.actions, rewards[:-1], strict=False):
        assert np.array_equal(given, np.column_stack((np.eye(3)[actions], reward)).astype(np.float32))


def _noted(result: StepResult, rewards: list[Array]) -> StepResult:
    rewards.append(result.reward.copy())
    return result
