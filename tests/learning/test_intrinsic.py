"""Intrinsic rewards: their definitions in numpy, which rows they are for, and what a checkpoint holds of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.raising import raises
from tests.support.running import ROOT
from zmqrl.acting.spec import previous_size
from zmqrl.algorithms.base import Algorithm, check_intrinsic
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.ppo import PPO, PPOConfig, PPOLearner
from zmqrl.algorithms.r2d2 import R2D2, R2D2Config
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.learning import Intrinsic, IntrinsicSection
from zmqrl.learning.intrinsic.base import make_intrinsic
from zmqrl.learning.intrinsic.learner import IntrinsicLearner
from zmqrl.learning.net_learner import NetLearner
from zmqrl.networks.build import tower
from zmqrl.replay.base import SegmentBatch, SegmentMeta, gather
from zmqrl.testing.algorithm import DISCRETE, VECTOR
from zmqrl.testing.experience import SEGMENTS, acted, context_of, learn, progress_at
from zmqrl.types import ACTING_STATE, PREVIOUS, Array, EnvSpec, SegmentId, SlotRef, SpaceSpec, Version

MLP = NetworkSection(hidden=(8,), activation="relu")
BOX = SpaceSpec("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
SEVERAL = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
WEIGHT, ROWS = 0.5, 20
PAGE = ROOT / "docs" / "algorithms" / "intrinsic.md"


class Wide(Intrinsic):
    """A reward of large observations; its one tower is only there to be trained."""

    def towers(self) -> Mapping[str, Any]:
        return {"any": tower("any", self.network_section, self.env.observation, 1, output_gain=1.0)}

    def rewards(self, net: Any, rows: Any) -> torch.Tensor:
        found: torch.Tensor = rows["next_obs"].square().sum(1)
        return found

    def losses(self, net: Any, rows: Any) -> torch.Tensor:
        found: torch.Tensor = net("any", rows["obs"]).squeeze(1).square()
        return found


def section(kind: str, **more: Any) -> IntrinsicSection:
    return IntrinsicSection(kind, weight=WEIGHT, **more)


def made(kind: str, action: SpaceSpec = DISCRETE, **more: Any) -> IntrinsicLearner:
    given, env = section(kind, **more), EnvSpec("toy", VECTOR, action)
    model = make_intrinsic(given, MLP, env)
    assert model is not None
    return IntrinsicLearner(model, given, context_of(PPO(PPOConfig(), MLP, env, 16, 2)))


def mlp(arrays: Mapping[str, Array], name: str, x: Array) -> Array:
    """A hidden layer with relu, then a linear one."""
    first, last = (
        (arrays[f"{name}.{i}.weight"].astype(np.float64), arrays[f"{name}.{i}.bias"].astype(np.float64)) for i in (0, 1)
    )
    found: Array = np.maximum(x @ first[0].T + first[1], 0.0) @ last[0].T + last[1]
    return found


def whitened(x: Array, seen: Array) -> Array:
    """(x - mean) / deviation within 5 deviations (Burda et al. 2018, section 2.4)."""
    found: Array = np.clip((x - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -5, 5)
    return found


def rows_of(action: SpaceSpec, seed: int = 3) -> dict[str, Array]:
    random, size = np.random.default_rng(seed), VECTOR.shape[0]
    choices = action.choices
    drawn = np.stack([random.integers(0, n, ROWS) for n in choices], 1) if choices else random.normal(size=(ROWS, 2))
    obs, following = (random.normal(3, 2, (ROWS, size)).astype(np.float32) for _ in range(2))
    given = drawn[:, 0] if action.kind == "discrete" else drawn.astype(action.dtype)
    return {"obs": obs, "action": given, "next_obs": following, "n_step_return": random.normal(size=ROWS)}


def tensors(rows: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in rows.items()}


def rnd_reward(arrays: Mapping[str, Array], rows: Mapping[str, Array], action: SpaceSpec) -> Array:
    """||f(s') - f_target(s')||^2 as a mean over features (section 2.2 of Burda et al. 2018)."""
    x = whitened(rows["next_obs"].astype(np.float64), rows["next_obs"])
    found: Array = np.square(mlp(arrays, "predictor", x) - mlp(arrays, "random", x)).mean(1)
    return found


def icm_terms(arrays: Mapping[str, Array], rows: Mapping[str, Array], action: SpaceSpec) -> tuple[Array, Array]:
    """Equations 3 to 6 of Pathak et al. 2017: half the squared error of the features, and the inverse loss."""
    now, following = (
        mlp(arrays, "features", whitened(rows[name].astype(np.float64), rows["next_obs"]))
        for name in ("obs", "next_obs")
    )
    taken, choices = rows["action"].reshape(ROWS, -1), action.choices
    hot = np.concatenate([np.eye(n)[taken[:, i]] for i, n in enumerate(choices)], 1) if choices else taken
    error = 0.5 * np.square(mlp(arrays, "forward", np.concatenate((now, hot), 1)) - following).sum(1)
    found = mlp(arrays, "inverse", np.concatenate((now, following), 1))
    if not choices:
        return error, 0.5 * np.square(found - taken).sum(1)
    inverse, begin = np.zeros(ROWS), 0
    for entry, n in enumerate(choices):
        logits = found[:, begin : begin + n]
        inverse += np.log(np.exp(logits).sum(1)) - logits[np.arange(ROWS), taken[:, entry]]
        begin += n
    return error, inverse


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, BOX], ids=lambda space: space.kind)
@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_the_reward_of_transitions_is_that_of_the_paper(kind: str, action: SpaceSpec) -> None:
    intrinsic, rows = made(kind, action, kwargs={"features": 4}), rows_of(action)
    before = intrinsic.state()
    found = intrinsic.rewarded(tensors(rows))
    raw = rnd_reward(before, rows, action) if kind == "rnd" else icm_terms(before, rows, action)[0]
    expected = rows["n_step_return"] + WEIGHT * raw / np.sqrt(raw.var() + 1e-8)
    np.testing.assert_allclose(found["n_step_return"].numpy(), expected, rtol=2e-5)
    metrics = intrinsic.metrics(0)
    loss = raw.mean()
    if kind == "icm":
        error, inverse = icm_terms(before, rows, action)
        loss = (0.8 * inverse + 0.2 * error).mean()
    np.testing.assert_allclose(metrics["intrinsic/loss"], loss, rtol=2e-5)
    np.testing.assert_allclose(metrics["intrinsic/reward"], (expected - rows["n_step_return"]).mean(), rtol=2e-5)


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_training_makes_what_is_seen_often_less_new(kind: str) -> None:
    intrinsic, rows = made(kind, learning_rate=1e-2), tensors(rows_of(DISCRETE))
    losses = []
    for _ in range(60):
        intrinsic.rewarded(rows)
        losses.append(intrinsic.metrics(0)["intrinsic/loss"])
    assert losses[-1] < 0.5 * losses[0]


def test_the_random_network_of_rnd_stays() -> None:
    intrinsic, rows = made("rnd"), tensors(rows_of(DISCRETE))
    before = intrinsic.state()
    intrinsic.rewarded(rows)
    moved = {name for name, array in intrinsic.state().items() if not np.array_equal(array, before[name])}
    assert {name.split(".")[0] for name in moved} == {"predictor", "optimiser", "reward", "obs"}


def test_sequences_have_the_rewards_of_their_valid_steps() -> None:
    random, one, other = np.random.default_rng(1), made("rnd"), made("rnd")
    obs = random.normal(size=(4, 6, VECTOR.shape[0])).astype(np.float32)
    action, reward, valid = random.integers(0, 3, (4, 5)), random.normal(size=(4, 5)), random.random((4, 5)) < 0.7
    steps: dict[str, Array] = {"obs": obs[:, :-1], "action": action, "next_obs": obs[:, 1:], "n_step_return": reward}
    expected = one.rewarded(tensors({name: array[valid] for name, array in steps.items()}))["n_step_return"].numpy()
    given = tensors({"obs": obs, "action": action, "reward": reward, "valid": valid})
    found = other.rewarded(given)["reward"].numpy()
    np.testing.assert_allclose(found[valid], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[~valid], reward[~valid])


def segments(algorithm: Algorithm) -> SegmentBatch:
    slots = acted(algorithm, 1)
    metas = [SegmentMeta(SegmentId(v, 0, 0), Version(0, 0), int(slots["valid"][v].sum())) for v in range(SEGMENTS)]
    return gather(slots, [SlotRef(slot, 1) for slot in range(SEGMENTS)], metas)


def test_each_valid_row_of_segments_is_rewarded_and_trained_on_once() -> None:
    algorithm = PPO(PPOConfig(), MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)
    batch, intrinsic = segments(algorithm), made("rnd", batch_size=32)
    columns, valid = batch.columns, batch.columns["valid"]
    before = intrinsic.state()
    found = intrinsic.learn(batch, lambda obs: torch.tensor(obs), progress_at())
    following = columns["obs"][1:][valid]
    raw = rnd_reward(before, {"next_obs": following}, DISCRETE)
    expected = columns["reward"][valid] + WEIGHT * raw / np.sqrt(raw.var() + 1e-8)
    np.testing.assert_allclose(found.columns["reward"][valid], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.columns["reward"][~valid], columns["reward"][~valid])
    assert found.columns["reward"].dtype == np.float32 and found.columns["obs"] is columns["obs"]
    assert intrinsic.state()["optimiser.trained.steps"] == -(-int(valid.sum()) // 32)
    assert intrinsic.state()["reward.count"] == valid.sum() > 64


def test_the_previous_reward_is_that_of_the_env() -> None:
    """Workers act on it."""
    algorithm = PPO(PPOConfig(), MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)
    plain, learner = segments(algorithm), PPOLearner(algorithm, context_of(algorithm))
    first = np.zeros((1, plain.columns["reward"].shape[1], previous_size(DISCRETE)), np.float32)
    batch = replace(plain, columns={**plain.columns, ACTING_STATE + PREVIOUS: first})
    rewarded = made("rnd").learn(batch, lambda obs: torch.tensor(obs), progress_at())
    assert not np.array_equal(rewarded.columns["reward"], batch.columns["reward"])
    np.testing.assert_array_equal(learner.previous(rewarded), learner.previous(batch))


def with_intrinsic(kind: type[Any], config: Any, **more: Any) -> Any:
    given = replace(config, intrinsic=section("rnd", **more))
    return kind(given, MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)


SMALL_R2D2 = R2D2Config(batch_size=4, burn_in=2, length=4, stride=2, lstm_size=8)


@pytest.mark.parametrize(
    ("kind", "config"),
    [(PPO, PPOConfig(epochs=2)), (DQN, DQNConfig(batch_size=16)), (R2D2, SMALL_R2D2)],
    ids=["ppo", "dqn", "r2d2"],
)
@pytest.mark.whole
def test_a_learner_that_is_restored_continues_with_the_same_bits(kind: type[Any], config: Any) -> None:
    algorithm = with_intrinsic(kind, config)
    one, other = (algorithm.learner(context_of(algorithm)) for _ in range(2))
    slots = acted(algorithm, 1)
    learn(algorithm, one, slots, 0)
    other.load_state(one.weights(), one.state())
    for number in (1, 2):
        first, second = (learn(algorithm, learner, slots, number) for learner in (one, other))
        assert first == second and first.metrics["intrinsic/loss"] > 0
    for name, array in {**one.state(), **one.weights()}.items():
        np.testing.assert_array_equal(array, {**other.state(), **other.weights()}[name])


def test_a_weight_of_zero_leaves_the_bits_of_the_algorithm() -> None:
    """Its network and its order of rows are its own."""
    plain = PPO(PPOConfig(epochs=2), MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)
    other = PPO(replace(plain.config, intrinsic=IntrinsicSection("icm", weight=0.0)), MLP, plain.env, 16, 2)
    one, two = PPOLearner(plain, context_of(plain)), PPOLearner(other, context_of(other))
    slots = acted(plain, 1)
    for algorithm, learner in ((plain, one), (other, two)):
        learn(algorithm, learner, slots)
    assert plain.network() == other.network() and plain.executors[0] == "manual" and other.executors[0] == "eager"
    for name, array in one.weights().items():
        assert array.tobytes() == two.weights()[name].tobytes(), name


def test_a_class_of_the_users() -> None:
    intrinsic, rows = made(f"{__name__}:Wide"), rows_of(DISCRETE)
    raw = np.square(whitened(rows["next_obs"].astype(np.float64), rows["next_obs"])).sum(1)
    expected = rows["n_step_return"] + WEIGHT * raw / np.sqrt(raw.var() + 1e-8)
    np.testing.assert_allclose(intrinsic.rewarded(tensors(rows))["n_step_return"].numpy(), expected, rtol=1e-5)


def test_the_class_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.search(r"```python\n# my_surprise.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    (tmp_path / "my_surprise.py").write_text(block[1])
    monkeypatch.syspath_prepend(tmp_path)
    intrinsic, rows = made("my_surprise:Surprise", kwargs={"scale": 2}), rows_of(DISCRETE)
    now, following = (whitened(rows[name].astype(np.float64), rows["next_obs"]) for name in ("obs", "next_obs"))
    raw = 2 * np.square(mlp(intrinsic.state(), "model", now) - following).sum(1)
    expected = rows["n_step_return"] + WEIGHT * raw / np.sqrt(raw.var() + 1e-8)
    np.testing.assert_allclose(intrinsic.rewarded(tensors(rows))["n_step_return"].numpy(), expected, rtol=2e-5)


@dataclass(frozen=True)
class OtherConfig(DQNConfig):
    intrinsic: Any = 0.5
    """A field of the same name and another type."""


def test_a_field_of_another_type_is_the_users_own() -> None:
    algorithm = DQN(OtherConfig(), MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2)
    learner = algorithm.learner(context_of(algorithm))
    assert isinstance(learner, NetLearner) and learner.intrinsic is None and not learner.parts


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (section("rdn"), ("algorithm", "intrinsic", "kind")),
        (section("zmqrl.replay.spec:ReplaySpec"), ("algorithm", "intrinsic", "kind")),
        (section("rnd", kwargs={"feature": 3}), ("algorithm", "intrinsic", "kwargs")),
        (section("icm", kwargs={"features": "many"}), ("algorithm", "intrinsic", "kwargs")),
    ],
)
def test_what_cannot_be_made_is_refused_by_the_launcher(given: IntrinsicSection, key: tuple[str, ...]) -> None:
    with raises(ConfigError, key=key):
        check_intrinsic(PPO(PPOConfig(intrinsic=given), MLP, EnvSpec("toy", VECTOR, DISCRETE), 16, 2))


def test_transitions_of_several_steps_are_refused_and_sequences_are_not() -> None:
    with raises(ConfigError, key=("algorithm", "n_step"), value="3"):
        check_intrinsic(with_intrinsic(DQN, DQNConfig(n_step=3)))
    check_intrinsic(with_intrinsic(R2D2, SMALL_R2D2))
    check_intrinsic(with_intrinsic(DQN, DQNConfig()))
