from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.driver import CONTINUOUS, DISCRETE, Driver, InfiniteHorizon, MatchTheObs, env_spec
from tests.support.raising import raises
from zmqrl.algorithms.base import LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo import PPO, ClipSection, PPOConfig
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError, TrainingFailed
from zmqrl.learning import RateSchedule
from zmqrl.networks.initial import initial_weights
from zmqrl.ops.returns import generalised_advantages
from zmqrl.replay.base import SegmentBatch
from zmqrl.types import Array, SpaceSpec, Version

SMALL = NetworkSection(hidden=(16,))


def make(action: SpaceSpec = DISCRETE, obs_size: int = 3, envs: int = 8, steps: int = 16, **options: object) -> PPO:
    defaults = {"minibatch_size": 32, "epochs": 4}
    config = PPOConfig(**(defaults | options))
    return PPO(config, SMALL, env_spec(action, obs_size), steps, envs)


def learner_of(algorithm: PPO) -> OnPolicyLearner:
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    return algorithm.learner(LearnerContext(weights, executor="manual"))


def progress(env_steps: int = 0, updates: int = 0, **options: object) -> Progress:
    return Progress(1, env_steps, updates, 10_000, **options)


def train(algorithm: PPO, learner: OnPolicyLearner, driver: Driver, rounds: int, debug: bool = False) -> float:
    reward = 0.0
    for _ in range(rounds):
        version = driver.version
        batch = driver.segment(learner.weights())
        learner.learn(batch, progress(debug=debug, version=version))
        reward = float(batch.columns["reward"][batch.columns["valid"]].mean())
    return reward


@pytest.mark.parametrize(("truncates", "states", "value"), [(True, 4, 50.0), (False, 9, (1 - 0.98**8) / 0.02)])
@pytest.mark.whole
def test_a_value_bootstraps_through_truncation_alone(truncates: bool, states: int, value: float) -> None:
    algorithm = make(
        obs_size=states, gamma=0.98, learning_rate=0.02, minibatch_size=128, gae_lambda=0.95, max_grad_norm=1e3
    )
    learner = learner_of(algorithm)
    driver = Driver(algorithm, InfiniteHorizon(8, 8, truncates, states))
    train(algorithm, learner, driver, 250)
    start = learner._critic.run(torch.eye(states)[:1])  # type: ignore[attr-defined]
    assert abs(float(start) - value) < 1.0


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.whole
def test_learns_to_match_the_observation(action: SpaceSpec, normalised: bool) -> None:
    algorithm = make(
        action, learning_rate=0.01, gamma=0.0, normalise_obs=normalised, normalise_reward=normalised, minibatch_size=64
    )
    driver = Driver(algorithm, MatchTheObs(8))
    assert train(algorithm, learner_of(algorithm), driver, 60, debug=True) > (0.9 if action is DISCRETE else 0.75)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_state_goes_on_bit_for_bit(action: SpaceSpec) -> None:
    algorithm = make(action, normalise_obs=True, normalise_reward=True, learning_rate=0.01, ent_coef=0.01)
    straight, resumed = learner_of(algorithm), learner_of(algorithm)
    driver = Driver(algorithm, MatchTheObs(8))
    train(algorithm, straight, driver, 3)
    resumed.load_state(straight.weights(), straight.state())
    for _ in range(3):
        now, batch = progress(version=driver.version), driver.segment(straight.weights())
        assert straight.learn(batch, now) == resumed.learn(batch, now)
    for one, other in ((straight.weights(), resumed.weights()), (straight.state(), resumed.state())):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_debug_names_a_ratio_that_is_off() -> None:
    algorithm = make()
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    version = driver.version
    batch = driver.segment(learner.weights())
    batch.columns["log_prob"][:] += 1e-3
    learner.learn(batch, progress(version=Version(0, 7), debug=True))  # Lag: nothing to check.
    with pytest.raises(TrainingFailed, match=r"differs from 1 by 0\.0"):
        learner.learn(batch, progress(version=version, debug=True))


def test_stale_segments_are_trained_with_the_statistics_they_were_acted_with() -> None:
    algorithm = make(normalise_obs=True, epochs=1, learning_rate=1e-12, orthogonal_init=False)
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    first = driver.segment(learner.weights())
    learner.learn(first, progress(version=Version(0, 0)))
    late = driver.segment(learner.weights())
    late = replace(late, metas=(replace(late.metas[0], version=Version(0, 1)),))
    first.columns["obs"][:] *= 10.0
    for n in range(1, 4):
        learner.learn(first, progress(version=Version(0, n)))
    # Frozen weights: the ratio of the late segment is 1 only under the statistics of its own version.
    assert abs(learner.learn(late, progress(version=Version(0, 4))).metrics["approx_kl"]) < 1e-6
    forgotten = replace(late, metas=(replace(late.metas[0], version=Version(9, 9)),))
    assert learner.learn(forgotten, progress(version=Version(0, 5))).metrics["approx_kl"] > 1e-4


def test_learning_uses_no_global_random_numbers() -> None:
    algorithm = make()
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    torch.manual_seed(5)
    before_torch, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    train(algorithm, learner, driver, 1)
    assert torch.equal(torch.get_rng_state(), before_torch)
    assert np.array_equal(np.random.get_state()[1], before_numpy)


def plain_loss(algorithm: PPO, tensors: dict[str, torch.Tensor], batch: SegmentBatch, value: Array) -> torch.Tensor:
    """The whole objective from its definition, with torch's distributions, for autograd."""
    config, columns, valid = algorithm.config, batch.columns, batch.columns["valid"]
    flags = (columns["terminated"], columns["truncated"], valid)
    gae = generalised_advantages(columns["reward"], value, *flags, config.gamma, config.gae_lambda)
    advantage, target = torch.tensor(gae[valid]), torch.tensor((gae + value[:-1])[valid])

    def run(tower: str) -> torch.Tensor:
        hidden = torch.tanh(torch.tensor(columns["obs"][:-1][valid]) @ tensors[f"{tower}.0.weight"].T)
        return hidden @ tensors[f"{tower}.1.weight"].T + tensors[f"{tower}.1.bias"]

    if algorithm.discrete:
        policy: torch.distributions.Distribution = torch.distributions.Categorical(logits=run("actor"))
    else:
        policy = torch.distributions.Independent(
            torch.distributions.Normal(run("actor"), tensors["log_std"].exp().expand(1)), 1
        )
    ratio = (policy.log_prob(torch.tensor(columns["action"][valid])) - torch.tensor(columns["log_prob"][valid])).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = torch.min(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage).mean()
    error = ((run("critic").squeeze(1) - target) ** 2).mean()
    return -surrogate + config.vf_coef * error - config.ent_coef * policy.entropy().mean()


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.whole
def test_the_gradient_of_an_update_is_autograds(action: SpaceSpec) -> None:
    algorithm = make(
        action, minibatch_size=128, epochs=1, ent_coef=0.3, vf_coef=0.7, max_grad_norm=1e9, orthogonal_init=False
    )
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    weights = {k: v * (not k.endswith("0.bias")) for k, v in learner.weights().items()}
    learner.load_state(weights, learner.state())
    batch = driver.segment(weights)
    batch.columns["log_prob"][::2] += 0.3
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    inputs = torch.tensor(batch.columns["obs"]).flatten(0, 1)
    value = learner._critic.run(inputs).numpy().reshape(17, 8)  # type: ignore[attr-defined]
    plain_loss(algorithm, leaves, batch, value).backward()
    learner.learn(batch, progress())
    for name, grad in learner._parameters.grads.items():  # type: ignore[attr-defined]
        if not name.endswith("0.bias"):
            torch.testing.assert_close(grad, leaves[name].grad, atol=1e-5, rtol=1e-4)


def test_updates_are_epochs_times_minibatches_and_metrics_are_finite() -> None:
    algorithm = make(minibatch_size=50, epochs=3, value_clip=0.2, ent_coef=0.01)
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    result = learner.learn(driver.segment(learner.weights()), progress())
    assert result.updates == 3 * 3
    assert {"loss/policy", "loss/value", "entropy", "approx_kl", "clip_fraction", "explained_variance"} <= set(
        result.metrics
    )
    assert np.isfinite(list(result.metrics.values())).all()
    assert result.metrics["entropy"] == pytest.approx(np.log(3), abs=0.01)


def test_a_batch_without_valid_rows_trains_nothing() -> None:
    algorithm = make()
    learner, driver = learner_of(algorithm), Driver(algorithm, MatchTheObs(8))
    batch = driver.segment(learner.weights())
    batch.columns["valid"][:] = False
    before = learner.weights()
    assert learner.learn(batch, progress()).updates == 0
    assert all(np.array_equal(value, before[name]) for name, value in learner.weights().items())


def test_invalid_rows_do_not_count() -> None:
    algorithm = make(normalise_obs=True, normalise_reward=True)
    one, other = learner_of(algorithm), learner_of(algorithm)
    batch = Driver(algorithm, MatchTheObs(8, length=3)).segment(one.weights())
    one.learn(batch, progress())
    hidden = ~batch.columns["valid"]
    assert hidden.any()
    batch.columns["action"][hidden] = 2
    batch.columns["log_prob"][hidden] = np.nan
    other.learn(batch, progress())
    assert all(np.array_equal(value, other.weights()[name]) for name, value in one.weights().items())


def test_linear_schedules_reach_zero() -> None:
    """With the bits of `learning_rate_schedule: linear` of earlier versions."""
    algorithm = make(learning_rate=RateSchedule(3e-4), clip=ClipSection(0.2))
    for steps in (1, 333, 5_000, 9_999):
        assert algorithm.learning_rate(progress(steps)) == 3e-4 * (1.0 - steps / 10_000)
        assert algorithm.clip(progress(steps)) == 0.2 * (1.0 - steps / 10_000)
    assert algorithm.clip(progress(20_000)) == 0.0


def test_a_learning_rate_with_an_end_ends_there() -> None:
    algorithm = make(learning_rate=RateSchedule(1e-3, 1e-4))
    assert [algorithm.learning_rate(progress(at)) for at in (0, 20_000)] == pytest.approx([1e-3, 1e-4])


def test_a_minibatch_larger_than_the_batch_is_a_config_error() -> None:
    algorithm = make(minibatch_size=300, batch_segments=1)
    algorithm.check("sync", 3, ReplaySection())
    for mode, vector_envs in (("sync", 2), ("async", 4)):
        with raises(ConfigError, key=("algorithm", "minibatch_size"), value="300"):
            algorithm.check(mode, vector_envs, ReplaySection())  # type: ignore[arg-type]
