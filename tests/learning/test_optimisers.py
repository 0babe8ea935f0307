"""Each optimiser of a group against that of torch, in every executor, and as a part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.reports import Reports
from tests.learning.test_net import SPEC, batch, loss_of
from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.learning.compiled import CompiledExecutor, TracedExecutor
from zmqrl.learning.executor import EagerExecutor, Executor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.learning.optimisers import SGD, Adam, AdamW, Optimiser, RAdam, RMSProp
from zmqrl.networks.initial import initial_weights

STEPS = 40
"""More than the 5 that rectified Adam takes without second moments."""
OF_TORCH: Mapping[Optimiser, Callable[..., torch.optim.Optimizer]] = {
    Adam(): torch.optim.Adam,
    Adam((0.5, 0.99), 1e-4): lambda tensors, lr: torch.optim.Adam(tensors, lr, (0.5, 0.99), 1e-4),
    Adam((0.0, 0.9)): lambda tensors, lr: torch.optim.Adam(tensors, lr, (0.0, 0.9)),
    AdamW(): torch.optim.AdamW,
    AdamW((0.8, 0.9), 1e-5, 0.2): lambda tensors, lr: torch.optim.AdamW(tensors, lr, (0.8, 0.9), 1e-5, 0.2),
    RAdam(): torch.optim.RAdam,
    RAdam((0.8, 0.9), 1e-4): lambda tensors, lr: torch.optim.RAdam(tensors, lr, (0.8, 0.9), 1e-4),
    RAdam((0.9, 0.6)): lambda tensors, lr: torch.optim.RAdam(tensors, lr, (0.9, 0.6)),
    RMSProp(): torch.optim.RMSprop,
    RMSProp(0.9, 1e-5, 0.5): lambda tensors, lr: torch.optim.RMSprop(tensors, lr, 0.9, 1e-5, momentum=0.5),
    RMSProp(centred=True): lambda tensors, lr: torch.optim.RMSprop(tensors, lr, centered=True),
    RMSProp(0.95, 1e-3, 0.9, True): lambda tensors, lr: torch.optim.RMSprop(
        tensors, lr, 0.95, 1e-3, momentum=0.9, centered=True
    ),
    SGD(): torch.optim.SGD,
    SGD(0.9): lambda tensors, lr: torch.optim.SGD(tensors, lr, 0.9),
    SGD(0.9, nesterov=True): lambda tensors, lr: torch.optim.SGD(tensors, lr, 0.9, nesterov=True),
}


def rate_at(number: int) -> float:
    return 3e-3 / (1 + number)


@pytest.mark.parametrize("optimiser", OF_TORCH, ids=repr)
def test_steps_are_those_of_torch(optimiser: Optimiser) -> None:
    random = np.random.default_rng(5)
    first, scale = (random.normal(size=50).astype(np.float32) for _ in range(2))
    ours, theirs = torch.tensor(first), torch.tensor(first, requires_grad=True)
    reference = OF_TORCH[optimiser]([theirs], rate_at(0))
    state, steps = {name: torch.zeros(50) for name in optimiser.tensors}, torch.zeros((), dtype=torch.float64)
    for number in range(STEPS):
        grad = torch.tensor((random.normal(size=50) * np.exp(scale)).astype(np.float32))
        theirs.grad, reference.param_groups[0]["lr"] = grad.clone(), rate_at(number)
        reference.step()
        optimiser.step(ours, grad, state, steps.add_(1.0), torch.tensor(rate_at(number), dtype=torch.float64))
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-6, atol=1e-6, err_msg=str(number))
    assert (ours - torch.tensor(first)).abs().max() > 1e-3


class Learner:
    """Steps group `a` by one optimiser, and `b` by another."""

    def __init__(self, *optimisers: Optimiser) -> None:
        groups = [
            Group(name, of, optimiser=each)
            for name, of, each in zip("ab", ((), ("b", "scale")), optimisers, strict=True)
        ]
        self.net = Net(SPEC, groups, initial_weights(SPEC, 1), "cpu")

    def train(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        loss = loss_of(self.net("a", rows["x"]), rows["y"])
        self.net.step("a", loss)
        outputs = self.net("b", rows["x"], self.net("a", rows["x"]).detach()) * self.net.parameter("scale")
        self.net.step("b", loss_of(outputs, rows["y"]))
        return {"loss": loss}

    def run(self, executor: Executor, *numbers: int) -> None:
        for number in numbers:
            rates = {name: torch.tensor(rate_at(number), dtype=torch.float64) for name in self.net.groups}
            executor.run(self.train, batch(32 + number), rates)


PAIRS = [
    (RAdam(), RMSProp(0.9, 1e-3, 0.5, True)),
    (AdamW((0.5, 0.9)), SGD(0.9, nesterov=True)),
    (RMSProp(), SGD()),
]


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
@pytest.mark.whole
def test_a_recorded_step_is_the_eager_one(pair: tuple[Optimiser, ...]) -> None:
    """Also after the step at which rectified Adam begins with second moments."""
    one, other = Learner(*pair), Learner(*pair)
    one.run(EagerExecutor(one.net), *range(10))
    other.run(TracedExecutor(other.net, reports := Reports()), *range(10))
    assert not reports
    for name, tensor in one.net.tensors.items():
        np.testing.assert_allclose(other.net.tensors[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.long
@pytest.mark.whole
def test_a_compiled_step_is_the_eager_one(tmp_path: Path) -> None:
    one, other = Learner(*PAIRS[0]), Learner(*PAIRS[0])
    one.run(EagerExecutor(one.net), *range(10))
    other.run(CompiledExecutor(other.net, tmp_path), *range(10))
    for name, tensor in one.net.tensors.items():
        np.testing.assert_allclose(other.net.tensors[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("pair", PAIRS, ids=repr)
def test_a_restored_optimiser_continues_with_the_same_bits(pair: tuple[Optimiser, ...]) -> None:
    straight, stopped, resumed = (Learner(*pair) for _ in range(3))
    straight.run(EagerExecutor(straight.net), *range(20))
    stopped.run(EagerExecutor(stopped.net), *range(9))
    resumed.net.load_state(stopped.net.weights(), stopped.net.state())
    resumed.run(EagerExecutor(resumed.net), *range(9, 20))
    for name, tensor in straight.net.tensors.items():
        assert torch.equal(tensor, resumed.net.tensors[name]), name


def test_the_state_of_adam_has_the_names_of_0_2() -> None:
    names = {name for name in Learner(Adam(), AdamW()).net.state() if name.startswith("optimiser.")}
    assert names == {f"optimiser.{group}.{part}" for group in "ab" for part in ("mean", "square", "steps")}


@pytest.mark.parametrize(
    ("stored", "built", "lacking", "more"),
    [
        (Adam(), SGD(), "nothing", "optimiser.a.mean, optimiser.a.square"),
        (SGD(), RMSProp(0.9, momentum=0.5), "optimiser.a.square, optimiser.a.velocity", "nothing"),
    ],
)
def test_the_state_of_another_optimiser_is_refused(
    stored: Optimiser, built: Optimiser, lacking: str, more: str
) -> None:
    before, now = Learner(stored, Adam()), Learner(built, Adam())
    what = f"the full checkpoint is of groups with other optimisers or targets: it lacks {lacking}, and has {more}"
    with raises(ConfigError, what=f"{what} in addition"):
        now.net.load_state(before.net.weights(), before.net.state())


@pytest.mark.parametrize(
    ("made", "key", "value", "what"),
    [
        (lambda: Adam((0.9, 1.0)), ("Adam", "betas"), "(0.9, 1.0)", "must be two in [0, 1)"),
        (lambda: AdamW(epsilon=0.0), ("AdamW", "epsilon"), "0.0", "must be above 0"),
        (lambda: AdamW(weight_decay=-1.0), ("AdamW", "weight_decay"), "-1.0", "must be at least 0"),
        (lambda: RAdam(epsilon=float("nan")), ("RAdam", "epsilon"), "nan", "must be above 0"),
        (lambda: RAdam(betas=0.9), ("RAdam", "betas"), "0.9", "must be two in [0, 1)"),  # type: ignore[arg-type]
        (lambda: RMSProp(alpha=1.0), ("RMSProp", "alpha"), "1.0", "must be in [0, 1)"),
        (lambda: RMSProp(momentum=-0.1), ("RMSProp", "momentum"), "-0.1", "must be in [0, 1)"),
        (lambda: SGD(nesterov=True), ("SGD", "nesterov"), "True", "needs momentum above 0"),
        (lambda: Group("a", (), None, 1e-5), ("Group", "optimiser"), "1e-05", "must be an optimiser"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_are_not_allowed_are_named(
    made: Callable[[], Any], key: tuple[str, ...], value: str, what: str
) -> None:
    with raises(ConfigError, key=key, value=value, what=what):
        made()
