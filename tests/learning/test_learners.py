"""What a learner's `train` receives, and what a learner that takes over has of the one before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.contracts.test_algorithms import CNN, DICT
from zmqrl.acting.spec import ActingSpec, previous_size
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.codec import replace
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import TrainingFailed
from zmqrl.learning import PRIORITY, Batch, BatchLearner, Group, LearnerContext, LearnResult, Noise, Progress
from zmqrl.learning.net import Net
from zmqrl.learning.net_learner import NetLearner
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.plugins import load
from zmqrl.replay.base import SegmentBatch
from zmqrl.spaces import SpaceSpec
from zmqrl.testing.algorithm import DISCRETE, PIXELS, VECTOR
from zmqrl.testing.expect import is_same
from zmqrl.testing.experience import SEED, SEGMENTS, UPDATES, acted, context_of, learn, observed, progress_at
from zmqrl.types import MODES, Array, ColumnSpec, EnvSpec, ModeName, Weights


class Sums:
    """Statistics of a learner: one number."""

    def __init__(self) -> None:
        self.total = np.zeros(1)

    def state(self) -> dict[str, Array]:
        return {"total": self.total.copy()}

    def load_state(self, state: Weights) -> None:
        (self.total,) = (array.copy() for array in state.values())


@dataclass(frozen=True)
class Settings:
    learning_rate: float = 1e-3
    epochs: int = 3
    minibatch_size: int = 16


class Rows(Algorithm):
    Config: ClassVar[type[Settings]] = Settings
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = True

    def network(self) -> NetworkSpec:
        return NetworkSpec((("p", (LayerSpec("linear", "p.0", 3, self.env.action.n),)),))

    def acting(self) -> ActingSpec:
        return ActingSpec(self.network().tower("p"), "categorical", self.env.action, self.env.observation)

    def learner(self, context: LearnerContext) -> Recording:
        return Recording(self, context, [Group("p")], {"obs": Sums(), "obs_more": Sums()})


@dataclass(frozen=True)
class RateAlone:
    learning_rate: float = 1e-3


class Recording(BatchLearner):
    """Keeps which rows its minibatches had."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.orders: list[list[int]] = []
        """Of each epoch."""

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        obs = self.observations(batch.columns["obs"][:-1]).flatten(0, 1)
        for number, part in enumerate(self.parts.values(), 1):
            assert isinstance(part, Sums)
            part.total = part.total + number * batch.columns["obs"].mean()
        return {"obs": obs, "row": torch.arange(len(obs))}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        if not self.orders or len(self.orders[-1]) == ROWS:
            self.orders.append([])
        self.orders[-1] += batch["row"].tolist()
        self.net.step("p", self.net("p", batch["obs"]).square().mean())
        return {}


ROWS = SEGMENTS * 16 * 2
OF_ROWS = Rows(Settings(), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), 16, 2)


def after(*rounds: int, seed: int = SEED) -> Recording:
    learner = OF_ROWS.learner(replace(context_of(OF_ROWS), seed=seed))
    for number in rounds:
        learn(OF_ROWS, learner, acted(OF_ROWS, 1), number)
    return learner


def test_rows_are_in_another_order_in_each_epoch_and_round_and_the_same_after_a_resume() -> None:
    orders = after(0, 1).orders
    assert all(sorted(order) == list(range(ROWS)) for order in orders)
    assert len({tuple(order) for order in orders}) == 2 * Settings.epochs, "each its own"
    assert after(1).orders == orders[Settings.epochs :]
    assert after(0, 1, seed=SEED + 1).orders != orders


def test_a_learner_that_takes_over_has_the_network_the_optimiser_and_every_part() -> None:
    before = after(0, 1)
    weights, state = before.weights(), before.state()
    assert state["obs/total"].any() and np.array_equal(state["obs_more/total"], 2 * state["obs/total"])
    resumed = after()
    resumed.load_state(weights, state)
    for learner in (before, resumed):
        learn(OF_ROWS, learner, acted(OF_ROWS, 1), 2)
    is_same(before.weights(), resumed.weights(), "weights after a resume")
    is_same(before.state(), resumed.state(), "state after a resume")


class Numbered(Recording):
    """Its metric is the number of the minibatch; the training ends with number `last`."""

    size, last = ROWS, 99

    def prepare(self, batch: SegmentBatch, progress: Progress) -> dict[str, Tensor]:
        return {"obs": torch.ones(self.size, 3), "row": torch.arange(self.size)}

    def numbers(self, progress: Progress) -> Mapping[str, float]:
        return {"third": 1 / 3}

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        assert batch["third"].dtype == torch.float32 and float(batch["third"]) == np.float32(1 / 3)
        self.orders.append(batch["row"].tolist())
        self.net.step("p", self.net("p", batch["obs"]).square().mean())
        return {"number": torch.tensor(float(len(self.orders)))}

    def is_done(self, results: Mapping[str, Tensor]) -> bool:
        return float(results["number"]) == self.last


class NumberedRows(Rows):
    def learner(self, context: LearnerContext) -> Numbered:
        return Numbered(self, context, [Group("p")])


def numbered(config: object) -> Numbered:
    return NumberedRows(config, NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), 16, 2).learner(context_of(OF_ROWS))


def learned(learner: Numbered) -> LearnResult:
    return learn(OF_ROWS, learner, acted(OF_ROWS, 1))


@pytest.mark.parametrize(
    ("config", "sizes", "mean"),
    [
        (Settings(epochs=2, minibatch_size=50), [43, 43, 42] * 2, 5.0),
        (Settings(epochs=2, minibatch_size=64), [64] * 4, 3.5),
        (Settings(epochs=1, minibatch_size=1000), [128], 1.0),
        (RateAlone(), [128], 1.0),
    ],
)
def test_rows_are_spread_evenly_and_metrics_are_those_of_the_last_epoch(
    config: object, sizes: list[int], mean: float
) -> None:
    learner = numbered(config)
    result = learned(learner)
    assert [len(order) for order in learner.orders] == sizes
    assert (result.updates, result.metrics["number"]) == (len(sizes), mean)


class Noisy(Numbered):
    """Keeps the noise and the variant of each update by its number."""

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self.drawn_in: dict[int, list[float]] = {}
        self.number = -1

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        return {"epsilon": (), "level": Noise((2,), "uniform")}

    def variant(self, number: int) -> Mapping[str, bool]:
        self.number = number
        return {"even": number % 2 == 0}

    def train(self, batch: Batch, even: bool = False) -> Mapping[str, Tensor]:
        assert even == (self.number % 2 == 0)
        assert batch["epsilon"].shape == (len(batch["row"]),) and batch["level"].shape == (len(batch["row"]), 2)
        self.drawn_in[self.number] = [*batch["epsilon"].tolist(), *batch["level"].flatten().tolist()]
        return super().train(batch)


def noise_of(*rounds: int, seed: int = SEED) -> dict[int, list[float]]:
    learner = Noisy(OF_ROWS, replace(context_of(OF_ROWS), seed=seed), [Group("p")])
    for number in rounds:
        learn(OF_ROWS, learner, acted(OF_ROWS, 1), number)
    return learner.drawn_in


def test_noise_of_a_minibatch_is_that_of_its_update_also_after_a_resume() -> None:
    whole = noise_of(0, 1)
    assert set(whole) == set(range(UPDATES + 24)), "the second round begins with update 10"
    assert len({tuple(noise) for noise in whole.values()}) == len(whole), "each its own"
    resumed = noise_of(1)
    assert {number: whole[number] for number in resumed} == resumed
    assert noise_of(0, seed=SEED + 1)[0] != whole[0]


class Phasic(Numbered):
    """Trains on the held rows again, with another loss."""

    rounds: list[bool]

    def learn(self, batch: SegmentBatch, progress: Progress) -> LearnResult:
        self.rounds = []
        first = super().learn(batch, progress)
        assert self.replay is not None
        parts = list(self.replay.batches(3))
        assert [len(part.metas) for part in parts] == [3, 1] and self.replay.segments == SEGMENTS
        obs = np.concatenate([part.columns["obs"] for part in parts], axis=1)
        assert np.array_equal(obs, batch.columns["obs"])
        sample = self.tensors(self.replay.sample(5, 1, 0.9, progress.updates))
        assert sample["obs"].shape == (5, 3) and sample["n_step_return"].dtype == torch.float32
        rows, later = self.prepare(batch, progress), replace(progress, updates=progress.updates + first.updates)
        again = self.fit(rows, later, 2, is_again=True)
        return LearnResult(first.updates + again.updates, again.metrics)

    def train(self, batch: Batch, is_again: bool = False) -> Mapping[str, Tensor]:
        self.rounds.append(is_again)
        return super().train(batch)


class Held(Rows):
    held_batches = 1

    def learner(self, context: LearnerContext) -> Phasic:
        return Phasic(self, context, [Group("p")])


def test_held_segments_are_trained_on_again_with_another_variant() -> None:
    algorithm = Held(Settings(epochs=1, minibatch_size=64), NetworkSection(), OF_ROWS.env, 16, 2)
    learner = algorithm.learner(context_of(OF_ROWS))
    result = learn(algorithm, learner, acted(OF_ROWS, 1))
    assert learner.rounds == [False] * 2 + [True] * 4 and (result.updates, result.metrics["number"]) == (6, 5.5)
    orders = [[*one, *other] for one, other in zip(learner.orders[::2], learner.orders[1::2], strict=True)]
    assert all(sorted(order) == list(range(ROWS)) for order in orders) and len(set(map(tuple, orders))) == 3


def test_an_update_may_end_the_training_on_a_batch() -> None:
    learner = numbered(Settings(epochs=3, minibatch_size=50))
    learner.last = 4
    result = learned(learner)
    assert (result.updates, result.metrics["number"]) == (4, 3.0), "of as many minibatches as an epoch has"


def test_a_batch_without_rows_has_no_update() -> None:
    learner = numbered(Settings())
    learner.size = 0
    assert learned(learner) == LearnResult(0, {})


def test_a_gradient_that_is_not_finite_ends_the_training_and_priorities_are_no_metric() -> None:
    learner = numbered(Settings())
    results = {"loss": torch.tensor(math.inf), PRIORITY: torch.ones(3), "grad_norm/p": torch.tensor(0.5)}
    assert learner.measured(results, 0) == {"loss": math.inf, "grad_norm/p": 0.5}
    first, later = "no learning rate has been applied", "lower algorithm.learning_rate"
    for norm, update, fix in ((math.inf, 0, first), (math.nan, 0, first), (math.nan, 7, later)):
        with pytest.raises(TrainingFailed, match=f"grad_norm/p is {norm} in update {update}: {fix}"):
            learner.measured({**results, "grad_norm/p": torch.tensor(norm)}, update)


def test_what_prepare_adds_to_the_metrics_is_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = numbered(Settings())
    prepare = type(learner).prepare

    def measuring(self: Any, batch: SegmentBatch, progress: Progress) -> Mapping[str, Tensor]:
        self.add_metrics({"rho/mean": torch.tensor(0.25), "rows": np.float32(1)})
        self.add_metrics({"rows": 2})
        return prepare(self, batch, progress)

    monkeypatch.setattr(type(learner), "prepare", measuring)
    assert learned(learner).metrics.items() >= {"rho/mean": 0.25, "rows": 2.0}.items()
    monkeypatch.setattr(type(learner), "prepare", prepare)
    assert not {"rho/mean", "rows"} & learned(learner).metrics.keys()


def test_a_learner_of_an_algorithm_without_a_rate_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = numbered(Settings())
    monkeypatch.setattr(learner.algorithm, "learning_rate", lambda progress: None)
    with pytest.raises(NotImplementedError, match="learning_rates"):
        learner.learning_rates(progress_at())


def test_the_names_of_the_network_are_those_of_its_tensors() -> None:
    assert numbered(Settings()).network_names() == tuple(initial_weights(OF_ROWS.network(), SEED))


@pytest.mark.parametrize("space", [VECTOR, PIXELS, DICT], ids=["vector", "pixels", "dict"])
def test_rows_are_the_valid_ones_of_arrays_and_tensors(space: SpaceSpec) -> None:
    algorithm = Rows(Settings(), NetworkSection(), EnvSpec("toy", space, DISCRETE), 16, 2)
    learner = Recording(algorithm, context_of(OF_ROWS), [Group("p")])
    random, valid = np.random.default_rng(1), np.random.default_rng(2).random((16, 6)) < 0.7
    columns = {"obs": observed(algorithm, random, (17, 6)), "action": random.integers(4, size=(16, 6)), "valid": valid}
    numbers, rows = random.normal(size=(16, 6, 2)), [(t, e) for t in range(16) for e in range(6) if valid[t, e]]
    doubled = {"obs": 2.0 * torch.arange(96).reshape(16, 6), "array": numbers}
    found = learner.rows(SegmentBatch(columns, ()), "action", **doubled)
    assert list(found) == ["action", "obs", "array"] and found["array"].dtype == torch.float32
    for row, (t, e) in enumerate(rows):
        assert (int(found["action"][row]), float(found["obs"][row])) == (columns["action"][t, e], 2 * (6 * t + e))
        assert np.array_equal(found["array"][row].numpy(), numbers[t, e].astype(np.float32))
    inputs = learner.observations(columns["obs"][:-1])
    expected = torch.stack([inputs[t, e] for t, e in rows])
    assert torch.equal(learner.rows(SegmentBatch(columns, ()), "obs")["obs"], expected)


def test_an_extra_column_has_an_array_for_each_row() -> None:
    assert OF_ROWS.extra("log_prob") == ColumnSpec("log_prob", "float32", (16, 2))
    assert OF_ROWS.extra("best", "int64", (3,)) == ColumnSpec("best", "int64", (16, 2, 3))


@pytest.mark.parametrize("space", [VECTOR, PIXELS, DICT], ids=["vector", "pixels", "dict"])
def test_observations_keep_their_leading_axes_and_given_floats_replace_the_float_parts(space: SpaceSpec) -> None:
    algorithm = Rows(Settings(), NetworkSection(), EnvSpec("toy", space, DISCRETE), 16, 2)
    learner = Recording(algorithm, context_of(OF_ROWS), [Group("p")])
    drawn = observed(algorithm, np.random.default_rng(1), (2, 5))
    found = learner.observations(drawn)
    assert found.shape == (2, 5, *algorithm.input.shape)
    rows = learner.observations(drawn.reshape(10, *space.shape))
    assert rows.shape == (10, *algorithm.input.shape) and torch.equal(found.flatten(0, 1), rows)
    size = algorithm.input.statistics_size
    floats = np.arange(10.0 * size).reshape(2, 5, size)
    given = learner.observations(drawn, floats)
    assert given[..., -size:].tolist() == floats.tolist() if size else torch.equal(given, found)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_pixels_are_bytes_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network makes floats of them: these would be four times as many bytes to copy and to hold."""
    kind = load(name, "zmqrl.algorithms", Algorithm)
    algorithm = kind(kind.Config(), CNN, EnvSpec("toy", PIXELS, DISCRETE), 16, 2)
    learner = algorithm.learner(replace(context_of(algorithm), executor="eager"))
    assert isinstance(learner, NetLearner)
    train, seen = learner.train, []

    def recorded(batch: Mapping[str, Tensor], **variant: bool) -> Mapping[str, Tensor]:
        seen.extend(batch[column].dtype for column in ("obs", "next_obs") if column in batch)
        return train(batch, **variant)

    monkeypatch.setattr(learner, "train", recorded)
    learn(algorithm, learner, acted(algorithm, 1), updates=1)
    assert seen and set(seen) == {torch.uint8}


@pytest.mark.parametrize("shared", [False, True])
def test_pixels_are_floats_for_one_minibatch_at_a_time(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of a batch are computed in parts, too."""
    algorithm = PPO(PPOConfig(minibatch_size=8, shared=shared), CNN, EnvSpec("toy", PIXELS, DISCRETE), 16, 2)
    learner = algorithm.learner(replace(context_of(algorithm), executor="eager"))
    forward, seen = Net.__call__, []

    def recorded(net: Net, tower: str, *inputs: Tensor) -> Tensor:
        seen.extend(len(x) for x in inputs if x.dtype == torch.uint8)
        return forward(net, tower, *inputs)

    monkeypatch.setattr(Net, "__call__", recorded)
    learn(algorithm, learner, acted(algorithm, 1), updates=1)
    assert seen and max(seen) == 8


class Joined(Rows):
    """The tower sees the step before."""

    def network(self) -> NetworkSpec:
        size = previous_size(self.env.action)
        joined, last = LayerSpec("concat", inputs=3, outputs=3 + size), LayerSpec("linear", "p.0", 3 + size, 3)
        return NetworkSpec((("p", (joined, last)),))

    def acting(self) -> ActingSpec:
        return replace(super().acting(), previous=True)

    def learner(self, context: LearnerContext) -> Preparing:
        return Preparing(self, context, [Group("p")])


class Preparing(BatchLearner):
    def prepare(self, batch: SegmentBatch, progress: Progress) -> Mapping[str, Tensor]:
        self.columns, self.found = batch.columns, self.previous(batch)
        return self.rows(batch, "obs", previous=self.found[:-1])

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        loss = self.net("p", batch["obs"], batch["previous"]).square().mean()
        self.net.step("p", loss)
        return {"loss": loss}


def test_a_batch_of_segments_has_the_previous_action_and_reward() -> None:
    algorithm = Joined(Settings(), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), 16, 2)
    learner = algorithm.learner(context_of(algorithm))
    slots = acted(algorithm, SEED)
    learn(algorithm, learner, slots)
    found, ends = learner.found, slots["state_end.previous"][:, 0]
    assert found.shape == (17, SEGMENTS * 2, 4)
    assert np.array_equal(found[0], slots["state.previous"][:, 0].reshape(-1, 4)) and not found[0].any()
    assert np.array_equal(found[-1], ends.reshape(-1, 4)) and found[-1].any()
    action, reward, valid = (learner.columns[name] for name in ("action", "reward", "valid"))
    assert np.array_equal(found[1:, :, :3], np.eye(3)[action] * valid[..., None]) and not valid.all()
    assert np.array_equal(found[1:, :, 3], reward * valid)
