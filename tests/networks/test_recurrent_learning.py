"""Layers with state that train: an algorithm of a user's over an LSTM, and over a module with state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.contracts.suites import name_of
from tests.networks import nets
from tests.support.marks import long
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import state_of
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import Batch, Group, LearnerContext, Net, ReplayLearner
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import ReplaySpec
from zmqrl.testing.algorithm import (
    ALGORITHM,
    DISCRETE,
    VECTOR,
    AlgorithmMaker,
)
from zmqrl.testing.training import recorded_updates_are_the_eager_ones
from zmqrl.types import MODES, EnvSpec, ModeName

STEPS, ENVS, SIZE, BURN_IN = 16, 2, 6, 4
MODULE = NetworkSection("tests.networks.nets:Remembers")


@dataclass(frozen=True)
class Settings:
    learning_rate: float = 1e-2
    gamma: float = 0.9
    batch_size: int = 8


class Remembering(Algorithm):
    """Deep Q-learning over sequences. Its memory is an LSTM, or that of the module of section `network`."""

    Config: ClassVar[type[Settings]] = Settings
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    on_policy: ClassVar[bool] = False
    actions = frozenset({"discrete"})

    def network(self) -> NetworkSpec:
        *layers, last = tower("q", self.network_section, self.env.observation, self.env.action.n, output_gain=1.0)
        if not state_of(layers):
            layers.append(LayerSpec("lstm", "q.lstm", last.inputs, SIZE))
            last = LayerSpec("linear", last.name, SIZE, last.outputs)
        return NetworkSpec((("q", (*layers, last)),))

    def acting(self) -> ActingSpec:
        layers = self.network().tower("q")
        action, obs = self.env.action, self.env.observation
        return ActingSpec(layers, "categorical", action, obs, input=self.input, state=state_of(layers), state_every=4)

    def replay(self) -> ReplaySpec:
        return ReplaySpec(length=8, burn_in=BURN_IN, stride=4)

    def learner(self, context: LearnerContext) -> RememberingLearner:
        return RememberingLearner(self, context, [Group("q", target=True)])


class RememberingLearner(ReplayLearner):
    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        net, (core,) = self.net, state_of(self.algorithm.network().tower("q"))
        names = ("obs", "reset", "action", "reward", "terminated", "mask")
        obs, reset, action, reward, terminated, mask = (batch[name].transpose(0, 1) for name in names)
        start = {core.name: batch[f"state.{core.name}"]}
        with torch.no_grad():
            following, _ = net.unroll("q", obs, start, reset, target=True)
            _, start = net.unroll("q", obs[:BURN_IN], start, reset[:BURN_IN])
        q, _ = net.unroll("q", obs[BURN_IN:], start, reset[BURN_IN:])
        target = reward + 0.9 * ~terminated * following[1:].amax(2)
        delta = q[:-1].gather(2, action[BURN_IN:].unsqueeze(2)).squeeze(2) - target[BURN_IN:]
        loss = (delta.square() * mask[BURN_IN:]).sum() / mask.sum()
        net.step("q", loss)
        net.update_targets(0.1)
        return {"loss/q": loss}


def made(network: NetworkSection) -> Algorithm:
    return Remembering(Settings(), network, EnvSpec("toy", VECTOR, DISCRETE), STEPS, ENVS)


@pytest.mark.parametrize("network", [NetworkSection(hidden=(8,)), MODULE], ids=lambda section: section.kind)
@pytest.mark.parametrize("check", ALGORITHM, ids=name_of)
@pytest.mark.whole
def test_contract(check: Callable[[AlgorithmMaker], None], network: NetworkSection) -> None:
    """Such as the same bits after a resume, and a policy for two vector envs that mixes nothing."""
    check(lambda: made(network))


@pytest.mark.whole
@pytest.mark.parametrize("network", [NetworkSection(hidden=(8,)), long(MODULE)], ids=lambda section: section.kind)
def test_recorded_updates_are_the_eager_ones(network: NetworkSection) -> None:
    recorded_updates_are_the_eager_ones(lambda: made(network))


def test_a_module_with_state_is_unrolled_as_its_cell() -> None:
    """Outputs, last state and gradients of a Net are those of the module itself, with episodes that begin inside."""
    spec, generator = made(MODULE).network(), torch.Generator().manual_seed(1)
    net = Net(spec, [Group("q")], initial_weights(spec, 1), "cpu")
    module = nets.Remembers(nets.spaces.Box(-1, 1, VECTOR.shape))
    own = {name: torch.from_numpy(array.copy()) for name, array in net.weights().items() if name.startswith("q.0.")}
    module.load_state_dict({name.removeprefix("q.0."): tensor for name, tensor in own.items()})
    x, start = torch.randn(5, 3, *VECTOR.shape, generator=generator), torch.randn(3, 6, generator=generator)
    reset = torch.rand(5, 3, generator=generator) < 0.4
    found, after = net.unroll("q", x, {"q.0": start}, reset)
    held, rows = start, list[Any]()
    for t in range(5):
        features, held = module(x[t], held * ~reset[t].unsqueeze(1))  # type: ignore[misc]
        rows.append(torch.nn.functional.linear(features, net.parameter("q.1.weight"), net.parameter("q.1.bias")))
    torch.testing.assert_close(found, torch.stack(rows))
    torch.testing.assert_close(after["q.0"], held)
    names = [name for name, _ in module.named_parameters()]
    ours = torch.autograd.grad(found.square().sum(), [net.parameter(f"q.0.{name}") for name in names])
    theirs = torch.autograd.grad(torch.stack(rows).square().sum(), list(module.parameters()))
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, msg=name)
