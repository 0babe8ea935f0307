"""The log-probabilities that workers send (numpy) are those that the learner computes (torch)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.driver import CONTINUOUS, DISCRETE, env_spec
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.algorithms.base import LearnerContext
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.sections import NetworkSection
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.networks.module import FlatParameters, Tower
from zmqrl.types import SpaceSpec

STEPS, ENVS = 4, 64


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_log_probabilities(action: SpaceSpec, activation: str) -> None:
    network = NetworkSection(activation=activation)  # type: ignore[arg-type]
    algorithm = PPO(PPOConfig(orthogonal_init=False, log_std_init=-1.0), network, env_spec(action), STEPS, ENVS)
    weights = initial_weights(algorithm.network(), 3)
    policy = make_policy(algorithm.acting())
    policy.load(weights, {})
    rng = np.random.default_rng(1)
    noise = noise_for(rng, STEPS, ENVS, 0 if action is DISCRETE else 1)
    extras = {"log_prob": np.zeros((STEPS, ENVS), np.float32)}
    context = ActingContext(noise, extras, Place.of(0, 1, ENVS))
    learner = algorithm.learner(LearnerContext(weights, executor="manual"))
    for t in range(STEPS):
        obs = rng.normal(size=(ENVS, 3)).astype(np.float32) * 3
        actions = policy.act(obs, t, context).copy()
        head = learner._policy  # type: ignore[attr-defined]
        encoded = head.encode(torch.tensor(actions).view(ENVS, -1))
        np.testing.assert_allclose(head.log_prob(torch.tensor(obs), encoded), extras["log_prob"][t], atol=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_greedy_actions(dueling: bool) -> None:
    algorithm = DQN(DQNConfig(dueling=dueling), NetworkSection(), env_spec(DISCRETE), STEPS, ENVS)
    weights = initial_weights(algorithm.network(), 3)
    policy = make_policy(algorithm.acting())
    policy.load(weights, {"epsilon": 0.0})
    parameters = FlatParameters(parameter_shapes(algorithm.network()))
    parameters.load(weights)
    obs = np.random.default_rng(1).normal(size=(ENVS, 3)).astype(np.float32)
    q = Tower(algorithm.network().tower("q"), parameters).run(torch.tensor(obs))
    np.testing.assert_array_equal(policy.act_greedily(obs), q.argmax(1))
