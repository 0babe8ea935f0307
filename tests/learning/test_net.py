"""A net's groups against torch.optim, and what a checkpoint holds of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.raising import fields, raises
from zmqrl.errors import ConfigError
from zmqrl.learning.executor import EagerExecutor
from zmqrl.learning.groups import Group
from zmqrl.learning.net import Net
from zmqrl.learning.optimisers import AdamW
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import LayerSpec, NetworkSpec

SPEC = NetworkSpec(
    (
        ("a", (LayerSpec("linear", "a.0", 3, 5), LayerSpec("tanh"), LayerSpec("linear", "a.1", 5, 2))),
        ("b", (LayerSpec("concat", inputs=3, outputs=5), LayerSpec("linear", "b.0", 5, 1))),
    ),
    (("scale", (), 0.5),),
    learner_only=("b", "scale"),
)
RATE = 3e-3


def made(*groups: Group) -> Net:
    return Net(SPEC, groups or (Group("a"), Group("b", ("b", "scale"))), initial_weights(SPEC, 1), "cpu")


def batch(rows: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {"x": torch.randn(rows, 3, generator=generator), "y": torch.randn(rows, generator=generator)}


def loss_of(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs.sum(1) - y).square().mean()


def trained(net: Net, updates: int) -> dict[str, torch.Tensor]:
    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        loss = loss_of(net("a", rows["x"]), rows["y"])
        net.step("a", loss)
        out = net("b", rows["x"], net("a", rows["x"]).detach()) * net.parameter("scale")
        net.step("b", loss_of(out, rows["y"]))
        net.update_targets(0.5)
        return {"loss": loss}

    rates = {name: torch.tensor(RATE, dtype=torch.float64) for name in net.groups}
    results: dict[str, torch.Tensor] = {}
    for number in range(updates):
        results = EagerExecutor(net).run(update, batch(5 + number), rates)
    return results


@pytest.mark.parametrize(("decay", "norm"), [(0.0, None), (0.1, None), (0.0, 0.05)])
@pytest.mark.whole
def test_a_group_moves_as_with_torch_optim(decay: float, norm: float | None) -> None:
    net = made(Group("a", optimiser=AdamW(weight_decay=decay), max_grad_norm=norm), Group("b", ("b", "scale")))
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    weights = initial_weights(SPEC, 1)
    for layer, index in ((0, 0), (2, 1)):
        module[layer].weight.data = torch.tensor(weights[f"a.{index}.weight"])
        module[layer].bias.data = torch.tensor(weights[f"a.{index}.bias"])
    adam = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=decay)
    for number in range(50):
        rows = batch(5 + number)
        adam.zero_grad()
        loss_of(module(rows["x"]), rows["y"]).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), norm or float("inf"))
        adam.step()
    trained(net, 50)
    np.testing.assert_allclose(net.weights()["a.0.weight"], module[0].weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(net.weights()["a.1.bias"], module[2].bias.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_learner_only_tensors_are_in_the_state_alone() -> None:
    net = made()
    assert set(net.weights()) == {"a.0.weight", "a.0.bias", "a.1.weight", "a.1.bias"} == set(net.network_names)
    assert {"private.b.0.weight", "private.b.0.bias", "private.scale"} <= set(net.state())


def test_a_restored_net_continues_with_the_same_bits() -> None:
    groups = (Group("a", target=True), Group("b", ("b", "scale"), target=True))
    net, other = made(*groups), made(*groups)
    trained(net, 10)
    other.load_state(net.weights(), {name: np.ascontiguousarray(array) for name, array in net.state().items()})
    for each in (net, other):
        trained(each, 10)
    for one, two in ((net.weights(), other.weights()), (net.state(), other.state())):
        assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in two.items()}


def test_targets_follow_without_sharing_memory() -> None:
    net = made(Group("a", target=True), Group("b", ("b", "scale")))
    before = net("a", batch()["x"], target=True)
    assert torch.equal(before, net("a", batch()["x"]))
    trained(net, 1)
    mixed, online = net("a", batch()["x"], target=True), net("a", batch()["x"])
    assert not torch.equal(mixed, before) and not torch.equal(mixed, online) and not mixed.requires_grad
    net.update_targets()
    assert torch.equal(net("a", batch()["x"], target=True), online)


def test_a_second_input_is_unrolled_row_by_row() -> None:
    net, x, y = made(), torch.randn(4, 7, 3), torch.randn(4, 7, 2)
    found, _ = net.unroll("b", x, {}, torch.zeros(4, 7, dtype=torch.bool), y)
    assert torch.equal(found.flatten(0, 1), net("b", x.flatten(0, 1), y.flatten(0, 1)))


def test_a_loss_that_reaches_no_weight_is_refused() -> None:
    net = made()

    def update(rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        net.step("b", (net.parameter("b.0.bias") * rows["y"].mean()).sum())
        return {}

    with pytest.raises(ValueError, match=r"group 'b' does not depend on \['b.0.weight', 'scale'\]"):
        EagerExecutor(net).run(update, batch(), {"a": torch.tensor(1.0), "b": torch.tensor(1.0)})


def test_an_unknown_group_is_named_with_the_groups_and_the_line() -> None:
    net = made()
    with raises(ConfigError, key=("net", "step"), value="'bb'", what="no such group") as caught:
        net.step("bb", net.parameter("b.0.bias").sum())
    assert re.fullmatch(r"groups: a, b \(\S+test_net\.py:\d+\)", caught.value.fix)


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        (
            (Group("a"),),
            fields(what="no group has the tensors ['b.0.weight', 'b.0.bias', 'scale']: nothing would train them"),
        ),
        ((Group("a"), Group("c", ("a", "b"))), fields(what="tensor 'a.0.weight' is in two groups: 'a' and 'c'")),
        ((Group("q"),), fields(what="group 'q': the network has no tower or parameter 'q'")),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: tuple[Group, ...], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        made(*groups)


def test_a_target_that_does_not_exist_is_named_with_those_that_do() -> None:
    net = made(Group("a", target=("target", "old")), Group("b", ("b", "scale"), target="mean"))
    rows = batch()
    for target in (True, "target", "old"):
        assert torch.equal(net("a", rows["x"], target=target), net("a", rows["x"]).detach())
    declared = "a Group declares them: target"
    with raises(ConfigError, value="True", fix=f"targets of 'b': mean; {declared}=True"):
        net("b", rows["x"], rows["x"][:, :2], target=True)
    with raises(ConfigError, value="'mean'", fix=f"targets of 'a': target, old; {declared}='mean'"):
        net.unroll("a", rows["x"].unsqueeze(0), {}, torch.zeros(1, 7, dtype=torch.bool), target="mean")
    with raises(ConfigError, value="'old'", fix=f"targets of 'scale': mean; {declared}='old'"):
        net.parameter("scale", target="old")
    with raises(ConfigError, value="'new'", fix=f"targets of a, b: target, old, mean; {declared}='new'"):
        net.update_targets(0.5, target="new")
    with raises(ConfigError, value="'mean'", fix=f"targets of a: target, old; {declared}='mean'"):
        net.update_targets(0.5, "a", target="mean")
    with raises(ConfigError, value="True", fix=f"targets of a: none; {declared}=True"):
        made().update_targets(1.0, "a")
    with raises(ConfigError, key=("net", "update_targets"), value="'c'", what="no such group"):
        net.update_targets(1.0, "c")
    with raises(ConfigError, key=("Group", "target"), value="('old', 'a.b')"):
        Group("a", target=("old", "a.b"))
    assert Group("a", target=["old", True]).targets == ("old", "target")  # type: ignore[arg-type]
