"""Hand-written gradients and autograd train the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.algorithms.driver import CONTINUOUS, DISCRETE, Driver, MatchTheObs, env_spec
from tests.algorithms.test_two_hundred_updates import Given
from tests.oracles import two_hundred_updates as oracle
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner, OnPolicyLearner, Progress
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.sections import NetworkSection
from zmqrl.networks.initial import initial_weights
from zmqrl.types import Array, EnvSpec, SpaceSpec

BATCHES, UPDATES = 3, 50


def trained_ppo(
    executor: str, action: SpaceSpec, options: dict[str, Any], hidden: tuple[int, ...] = (16,)
) -> tuple[dict[str, Array], Mapping[str, float]]:
    """Weights, and the metrics of the last batch."""
    config = PPOConfig(**{"minibatch_size": 32, "epochs": 4, "learning_rate": 1e-3, **options})
    algorithm = PPO(config, NetworkSection(hidden=hidden), env_spec(action, 3), 16, 8)
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    learner = algorithm.learner(LearnerContext(weights, seed=1, executor=executor))
    assert isinstance(learner, OnPolicyLearner)
    driver, updates = Driver(algorithm, MatchTheObs(8)), 0
    for _ in range(BATCHES):
        version = driver.version
        batch = driver.segment(weights)
        result = learner.learn(batch, Progress(1, 0, updates, 10_000, debug=not updates, version=version))
        updates += result.updates
    return learner.weights(), result.metrics


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize(
    "options",
    [
        {"value_clip": 0.1, "ent_coef": 0.01},
        {
            "normalise_obs": True,
            "normalise_reward": True,
            "clip_schedule": "linear",
            "learning_rate_schedule": "linear",
        },
        {"normalise_advantage": False},
        {"minibatch_size": 1, "epochs": 1},
    ],
)
def test_ppo(action: SpaceSpec, options: dict[str, Any]) -> None:
    manual, eager = (trained_ppo(executor, action, options) for executor in ("manual", "eager"))
    for expected, found in zip(manual, eager, strict=True):
        assert expected.keys() == found.keys()
    for name, array in manual[0].items():
        np.testing.assert_allclose(eager[0][name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"double": False, "loss": "mse"},
        {"dueling": True, "optimiser": "adamw", "target_tau": 0.5},
        {"max_grad_norm": 0.1},
    ],
)
def test_dqn(options: dict[str, Any]) -> None:
    config = DQNConfig(batch_size=oracle.ROWS, target_update_every=10, learning_rate=1e-3, **options)
    algorithm = DQN(config, oracle.NETWORK, EnvSpec("toy", oracle.OBSERVATION, oracle.DISCRETE), 16, 1)
    found, metrics = [], []
    for executor in ("manual", "eager"):
        weights = initial_weights(algorithm.network(), 1)
        learner = algorithm.learner(LearnerContext(weights, executor=executor))
        assert isinstance(learner, OffPolicyLearner)
        metrics.append(learner.update(Given("dqn"), UPDATES, Progress(1, 0, 0, 1)).metrics)
        found.append(learner.weights())
    assert metrics[0].keys() == metrics[1].keys()
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", [{"target_kl": 1e-9}, {"normalise_value": True}])
def test_options_that_autograd_alone_has(options: dict[str, Any]) -> None:
    algorithm = PPO(PPOConfig(**options), NetworkSection(), env_spec(DISCRETE, 3), 16, 8)
    assert algorithm.executors == ("eager", "compiled")
    weights, _ = trained_ppo("eager", DISCRETE, options)
    assert all(np.isfinite(array).all() for array in weights.values())


def test_a_shared_torso_without_layers_is_two_linear_heads() -> None:
    apart, shared = (trained_ppo("eager", DISCRETE, {"shared": both}, hidden=())[0] for both in (False, True))
    assert {name: array.shape for name, array in shared.items()} == {n: array.shape for n, array in apart.items()}


@pytest.mark.parametrize("shape", [(2, 3), (4, 4, 2)])
def test_a_shared_torso_that_only_flattens_is_two_linear_heads(shape: tuple[int, ...]) -> None:
    spec = EnvSpec("toy", SpaceSpec("box", shape, "float32"), DISCRETE)
    algorithm = PPO(PPOConfig(shared=True), NetworkSection(hidden=()), spec, 16, 8)
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    learner = algorithm.learner(LearnerContext(weights, executor="eager"))
    assert {name.partition(".")[0] for name in learner.weights()} == {"actor", "critic"}
