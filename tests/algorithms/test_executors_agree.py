"""Hand-written gradients and autograd train the same weights. What autograd alone has is that of plain torch, numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.algorithms.driver import CONTINUOUS, DISCRETE, Driver, MatchTheObs, env_spec
from tests.algorithms.test_two_hundred_updates import Given
from tests.oracles import brute_force
from tests.oracles import two_hundred_updates as oracle
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner, OnPolicyLearner, Progress
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.ppo import PPO, ClipSection, PPOConfig, PPOLearner
from zmqrl.config.sections import NetworkSection
from zmqrl.networks.initial import initial_weights
from zmqrl.types import Array, EnvSpec, SpaceSpec, Version

BATCHES, UPDATES, EPOCHS, RATE = 3, 50, 4, 1e-3


def ppo(
    executor: str, action: SpaceSpec, options: dict[str, Any], hidden: tuple[int, ...] = (16,)
) -> tuple[OnPolicyLearner, Driver]:
    """A learner at version 0, and what acts for it."""
    config = PPOConfig(**{"minibatch_size": 32, "epochs": EPOCHS, "learning_rate": RATE, **options})
    algorithm = PPO(config, NetworkSection(hidden=hidden), env_spec(action, 3), 16, 8)
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    learner = algorithm.learner(LearnerContext(weights, seed=1, executor=executor))
    assert isinstance(learner, OnPolicyLearner)
    return learner, Driver(algorithm, MatchTheObs(8))


def trained_ppo(
    executor: str, action: SpaceSpec, options: dict[str, Any]
) -> tuple[dict[str, Array], Mapping[str, float]]:
    """Weights, and the metrics of the last batch."""
    (learner, driver), updates = ppo(executor, action, options), 0
    weights = learner.weights()
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
            "clip": ClipSection(0.2),
            "learning_rate": ((0, 1e-3), (600, 1e-4)),
        },
        {"normalise_advantage": False},
        {"minibatch_size": 1, "epochs": 1},
    ],
)
@pytest.mark.whole
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


@pytest.mark.parametrize("options", [{"target_kl": 1.0}, {"normalise_value": True}, {"shared": True}])
def test_options_that_autograd_alone_has(options: dict[str, Any]) -> None:
    algorithm = PPO(PPOConfig(**options), NetworkSection(), env_spec(DISCRETE, 3), 16, 8)
    assert algorithm.executors == ("eager", "compiled")


def divergences(target_kl: float | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], int]:
    """The approximate KL divergence of each minibatch of a batch, and the updates that were done."""
    learner, driver = ppo("eager", DISCRETE, {"target_kl": target_kl})
    assert isinstance(learner, PPOLearner)
    found, is_done = [], learner.is_done

    def recorded(results: Mapping[str, torch.Tensor]) -> bool:
        found.append(float(results["approx_kl"]))
        return is_done(results)

    monkeypatch.setattr(learner, "is_done", recorded)
    return found, learner.learn(driver.segment(learner.weights()), Progress(1, 0, 0, 10_000)).updates


def test_target_kl_ends_the_training_after_the_minibatch_that_exceeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, updates = divergences(None, monkeypatch)
    assert updates == len(whole) == EPOCHS * 4
    limit = 0.999 * max(whole[:10])  # between divergences of this batch
    last = next(index for index, divergence in enumerate(whole) if divergence > limit)
    assert limit / 1.5 < max(whole[:last]) and last < updates - 1
    assert divergences(limit / 1.5, monkeypatch) == (whole[: last + 1], last + 1)


def with_rows(learner: OnPolicyLearner, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, torch.Tensor]]:
    """What the learner prepares of each batch from now on."""
    assert isinstance(learner, PPOLearner)
    kept, prepare = [], learner.prepare

    def recorded(*given: Any) -> Mapping[str, torch.Tensor]:
        kept.append(prepare(*given))
        return kept[-1]

    monkeypatch.setattr(learner, "prepare", recorded)
    return kept


def test_values_are_normalised_with_the_statistics_of_all_targets_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, driver = ppo("eager", DISCRETE, {"normalise_value": True, "gamma": 0.9, "gae_lambda": 0.8})
    kept, seen, mean, deviation = with_rows(learner, monkeypatch), np.zeros(0), 0.0, 1.0
    for number in range(BATCHES):
        critic = {name: array.astype(np.float64) for name, array in learner.weights().items()}
        batch = driver.segment(learner.weights())
        learner.learn(batch, Progress(1, 0, 0, 10_000, version=Version(0, number)))
        columns, valid = batch.columns, batch.columns["valid"]
        hidden = np.tanh(columns["obs"] @ critic["critic.0.weight"].T + critic["critic.0.bias"])
        predicted = (hidden @ critic["critic.1.weight"].T + critic["critic.1.bias"])[..., 0]
        value = predicted * deviation + mean
        advantage = brute_force.gae({**columns, "value": value}, 0.9, 0.8)
        target = (advantage + value[:-1])[valid]
        seen = np.concatenate((seen, target))
        mean, deviation = seen.mean(), seen.std()
        expected = {"advantage": advantage[valid], "target": (target - mean) / deviation}
        expected["old_value"] = predicted[:-1][valid]
        for name, array in expected.items():
            np.testing.assert_allclose(kept[-1][name].numpy(), array, rtol=1e-4, atol=1e-5, err_msg=name)
    state = {name: learner.state()[f"value/{name}"] for name in ("count", "mean", "m2")}
    np.testing.assert_allclose(np.concatenate(list(state.values())), [len(seen), mean, len(seen) * seen.var()], 1e-5)


@pytest.mark.parametrize("hidden", [(), (16,)])
@pytest.mark.whole
def test_a_shared_torso_is_trained_by_both_losses(hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"shared": True, "minibatch_size": 128, "ent_coef": 0.01}
    learner, driver = ppo("eager", DISCRETE, options, hidden)
    weights, kept = learner.weights(), with_rows(learner, monkeypatch)
    features = hidden[-1] if hidden else 3
    heads = {"actor.0": nn.Linear(features, 3), "critic.0": nn.Linear(features, 1)}
    layers = {**({"torso.0": nn.Linear(3, features)} if hidden else {}), **heads}
    for name, layer in layers.items():
        layer.load_state_dict({part: torch.tensor(weights[f"{name}.{part}"]) for part in ("weight", "bias")})
    assert learner.learn(driver.segment(weights), Progress(1, 0, 0, 10_000)).updates == EPOCHS
    rows, parameters = kept[0], [parameter for layer in layers.values() for parameter in layer.parameters()]
    adam = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
    for _ in range(EPOCHS):
        seen = torch.tanh(layers["torso.0"](rows["obs"])) if hidden else rows["obs"]
        policy = torch.distributions.Categorical(logits=layers["actor.0"](seen))
        ratio = (policy.log_prob(rows["action"]) - rows["log_prob"]).exp()
        advantage = (rows["advantage"] - rows["advantage"].mean()) / (rows["advantage"].std() + 1e-8)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = (layers["critic.0"](seen).squeeze(1) - rows["target"]).square().mean()
        adam.zero_grad()
        (0.5 * error - surrogate - 0.01 * policy.entropy().mean()).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
    found = learner.weights()
    assert found.keys() == {f"{name}.{part}" for name in layers for part in ("weight", "bias")}
    for name, array in found.items():
        layer, _, part = name.rpartition(".")
        expected = getattr(layers[layer], part).detach().numpy()
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("shape", [(2, 3), (4, 4, 2)])
def test_a_shared_torso_that_only_flattens_is_two_linear_heads(shape: tuple[int, ...]) -> None:
    spec = EnvSpec("toy", SpaceSpec("box", shape, "float32"), DISCRETE)
    algorithm = PPO(PPOConfig(shared=True), NetworkSection(hidden=()), spec, 16, 8)
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    learner = algorithm.learner(LearnerContext(weights, executor="eager"))
    assert {name.partition(".")[0] for name in learner.weights()} == {"actor", "critic"}
