from __future__ import annotations

import numpy as np

from tests.rollout.test_recurrent_state import Run
from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.evaluator.evaluation import EpisodePlayer
from zmqrl.types import Array, Weights


class Watched(Policy):
    """Notes the state that each call is given."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.given: list[Array] = []

    def load(self, weights: Weights, schedule: object) -> None:
        raise NotImplementedError

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        raise NotImplementedError

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        self.given.append(state["core"].copy())
        return self._policy.act_greedily(obs, state)

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
