"""Several targets of a group, each with a rate or a period of its own, as MPO and averages of parameters need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.reports import Reports
from tests.learning.test_net import SPEC, batch, loss_of
from tests.stand_ins.several_targets import SeveralTargets
from zmqrl.config.sections import NetworkSection
from zmqrl.learning.compiled import TracedExecutor
from zmqrl.learning.executor import EagerExecutor, Executor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.networks.initial import initial_weights
from zmqrl.testing import algorithm, training
from zmqrl.types import Array, EnvSpec

OLD_EVERY, CRITIC_EVERY, SHARE, RATE = 3, 5, 0.1, 1e-2


class Learner:
    """As MPO: the actor has an old policy and an average, the critic a target with another period.

    The free parameter has an average whose share comes from the batch.
    """

    def __init__(self) -> None:
        groups = (Group("a", target=("old", "mean")), Group("b", target=True), Group("scale", target="mean"))
        self.net = Net(SPEC, groups, initial_weights(SPEC, 1), "cpu")
        self.history: list[dict[str, Tensor]] = []
        """What was trained after each update."""

    def variant(self, number: int) -> dict[str, bool]:
        return {"moves_old": number % OLD_EVERY == 0, "moves_critic": number % CRITIC_EVERY == 0}

    def train(self, rows: Mapping[str, Tensor], moves_old: bool, moves_critic: bool) -> Mapping[str, Tensor]:
        net = self.net
        old = net("a", rows["x"], target="old")
        net.step("a", loss_of(net("a", rows["x"]), rows["y"]) + (net("a", rows["x"]) - old).square().mean())
        value = net("b", rows["x"], net("a", rows["x"], target="mean")) * net.parameter("scale", target="mean")
        net.step("b", loss_of(net("b", rows["x"], old) - net("b", rows["x"], old, target=True), rows["y"]))
        net.step("scale", (net.parameter("scale") - value.detach().mean()).square())
        net.update_targets(SHARE, "a", target="mean")
        net.update_targets(rows["share"], "scale", target="mean")
        if moves_old:
            net.update_targets(target="old")
        if moves_critic:
            net.update_targets(1.0, target=True)
        return {"value": value.mean()}

    def run(self, executor: Executor, *numbers: int) -> None:
        rates = {name: torch.tensor(RATE, dtype=torch.float64) for name in self.net.groups}
        for number in numbers:
            rows = {**batch(30 + number), "share": torch.tensor(share_of(number))}
            executor.run(self.train, rows, rates, **self.variant(number))
            self.history.append({name: self.net.parameter(name).detach().clone() for name in NAMES})


NAMES = ("a.0.weight", "b.0.weight", "scale")


def share_of(number: int) -> float:
    return 1.0 / (2 + number)


def after(*numbers: int) -> Learner:
    learner = Learner()
    learner.run(EagerExecutor(learner.net), *numbers)
    return learner


def average(values: list[Array], first: Array, shares: list[float]) -> Array:
    for value, share in zip(values, shares, strict=True):
        first = first + share * (value - first)
    return first


def test_each_target_has_its_own_rate_or_period() -> None:
    start, learner = Learner(), after(*range(8))  # old: after update 6; critic: after update 5
    found, history = learner.net, learner.history
    assert torch.equal(found.parameter("a.0.weight", target="old"), history[6]["a.0.weight"])
    assert torch.equal(found.parameter("b.0.weight", target=True), history[5]["b.0.weight"])
    for name, shares in (("a.0.weight", [SHARE] * 8), ("scale", [share_of(number) for number in range(8)])):
        first = start.net.parameter(name).detach().numpy()
        expected = average([values[name].numpy() for values in history], first, shares)
        np.testing.assert_allclose(found.parameter(name, target="mean").numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.whole
def test_recorded_updates_move_them_as_eager_ones() -> None:
    one, other = after(*range(8)), Learner()
    other.run(TracedExecutor(other.net, reports := Reports()), *range(8))
    assert not reports
    for name, tensor in one.net.tensors.items():
        np.testing.assert_allclose(other.net.tensors[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resume_has_the_bits_of_every_target(stop: int) -> None:
    whole, stopped, resumed = after(*range(9)), after(*range(stop)), Learner()
    state = stopped.net.state()
    names = {"target.b.0.weight", "target:old.a.0.weight", "target:mean.a.0.weight", "target:mean.scale"}
    assert names < state.keys() and "target.a.0.weight" not in state
    resumed.net.load_state(stopped.net.weights(), state)
    resumed.run(EagerExecutor(resumed.net), *range(stop, 9))
    for name, tensor in whole.net.tensors.items():
        assert torch.equal(tensor, resumed.net.tensors[name]), name


CHECKS = (
    algorithm.a_restored_learner_continues_bit_for_bit,
    training.a_target_network_is_read,
    training.a_target_network_lags,
    training.recorded_updates_are_the_eager_ones,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.whole
def test_an_algorithm_with_several_targets_passes(check: Callable[[Any], None]) -> None:
    env = EnvSpec("toy", algorithm.VECTOR, algorithm.DISCRETE)
    check(lambda: SeveralTargets(SeveralTargets.Config(), NetworkSection(hidden=(8,)), env, 16, 2))
