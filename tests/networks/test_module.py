"""A `torch.nn.Module` of the user's as the body of a tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.networks import nets
from tests.support.raising import fields, raises
from zmqrl.acting.base import ActingContext, Place, noise_for
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.learning import Group, Net
from zmqrl.learning.compiled import TracedExecutor
from zmqrl.learning.executor import EagerExecutor
from zmqrl.networks.build import tower
from zmqrl.networks.initial import buffer_names, initial_weights, parameter_shapes
from zmqrl.networks.kinds.base import LayerKind, is_training, runtime_of
from zmqrl.networks.kinds.module import check_gradients
from zmqrl.networks.spec import LayerSpec, ModuleSpec, NetworkSpec
from zmqrl.random_streams import stream
from zmqrl.spaces import composite
from zmqrl.types import SpaceSpec

VECTOR = SpaceSpec("box", (5,), "float32")
ACTION = SpaceSpec("discrete", (), "int64", 3)


def section(name: str, **kwargs: Any) -> NetworkSection:
    return NetworkSection(f"tests.networks.nets:{name}", kwargs=kwargs)


def network(name: str, space: SpaceSpec = VECTOR, **kwargs: Any) -> NetworkSpec:
    return NetworkSpec((("q", tower("q", section(name, **kwargs), space, 3, output_gain=0.0, orthogonal=False)),))


def rates(net: Net) -> dict[str, torch.Tensor]:
    return dict.fromkeys(net.groups, torch.tensor(1e-2, dtype=torch.float64))


def trained(net: Net, updates: int, seed: int = 0) -> None:
    for number in range(updates):
        x = torch.from_numpy(stream(seed, "x", index=number).standard_normal((8, 5)).astype(np.float32))
        with torch.enable_grad(), net.running(rates(net)):
            net.step("q", net("q", x).square().mean())


def test_arrays_are_parameters_and_persistent_buffers_of_the_module_and_the_last_layer() -> None:
    spec = network("Residual")
    module = nets.Residual(nets.spaces.Box(-1, 1, (5,)))
    expected = {f"q.0.{name}": tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert parameter_shapes(spec) == {**expected, "q.1.weight": (3, 16), "q.1.bias": (3,)}
    assert buffer_names(spec) == {f"q.0.{name}" for name, _ in module.named_buffers()}


def test_version_0_is_a_function_of_the_seed_and_leaves_torchs_random_state_alone() -> None:
    spec = network("Residual")
    before = torch.get_rng_state()
    one, again, other = (initial_weights(spec, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["q.0.first.weight"], other["q.0.first.weight"])
    assert {array.dtype for array in one.values()} == {np.dtype(np.float32)}


def test_two_towers_are_two_modules() -> None:
    spec = NetworkSpec(
        tuple((n, tower(n, section("Residual"), VECTOR, 1, output_gain=1.0)) for n in ("actor", "critic"))
    )
    weights = initial_weights(spec, 1)
    assert not np.array_equal(weights["actor.0.first.weight"], weights["critic.0.first.weight"])


def test_kwargs_reach_the_constructor() -> None:
    assert parameter_shapes(network("Residual", width=7, batch_norm=False))["q.1.weight"] == (3, 7)


def test_the_spec_is_plain_data() -> None:
    layers = network("Residual", width=7).tower("q")
    assert tuple(from_json(LayerSpec, to_json(layer)) for layer in layers) == layers


def test_a_policy_acts_as_the_module_in_evaluation_mode() -> None:
    spec = network("Residual")
    net = Net(spec, [Group("q")], initial_weights(spec, 1), "cpu")
    trained(net, 3)
    layers = spec.tower("q")
    assert runtime_of(layers) == "torch"
    policy = make_policy(ActingSpec(layers, "zmqrl.testing.network:OutputsHead", VECTOR, VECTOR, runtime="torch"))
    policy.load(net.weights(), {})
    obs = stream(1, "obs").standard_normal((4, 5)).astype(np.float32)
    found = policy.act(obs, 0, ActingContext(noise_for(stream(1, "n"), 1, 4, 0), {}, Place.of(0, 1, 4)))
    module = nets.Residual(nets.spaces.Box(-1, 1, (5,))).eval()
    weights = {name: torch.from_numpy(array) for name, array in net.weights().items()}
    module.load_state_dict(
        {name.removeprefix("q.0."): tensor for name, tensor in weights.items() if name.startswith("q.0.")}
    )
    expected = module(torch.from_numpy(obs)) @ weights["q.1.weight"].t() + weights["q.1.bias"]
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_updates_are_those_of_torch() -> None:
    spec = network("Residual")
    net = Net(spec, [Group("q")], initial_weights(spec, 1), "cpu")
    module = nets.Residual(nets.spaces.Box(-1, 1, (5,)))
    last = torch.nn.Linear(16, 3)
    weights = {name: torch.from_numpy(array.copy()) for name, array in net.weights().items()}
    module.load_state_dict({n.removeprefix("q.0."): t for n, t in weights.items() if n.startswith("q.0.")})
    last.load_state_dict({"weight": weights["q.1.weight"], "bias": weights["q.1.bias"]})
    optimiser = torch.optim.Adam([*module.parameters(), *last.parameters()], lr=1e-2)
    for number in range(5):
        x = torch.from_numpy(stream(0, "x", index=number).standard_normal((8, 5)).astype(np.float32))
        optimiser.zero_grad()
        last(module(x)).square().mean().backward()
        optimiser.step()
    trained(net, 5)
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(net.weights()[f"q.0.{name}"], tensor.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    assert net.weights()["q.0.batch_norm.num_batches_tracked"] == 5


def test_a_restored_net_continues_with_the_same_bits() -> None:
    spec = network("Constant")
    straight, resumed = (Net(spec, [Group("q", target=True)], initial_weights(spec, 1), "cpu") for _ in range(2))
    trained(straight, 3)
    resumed.load_state(straight.weights(), straight.state())
    for net in (straight, resumed):
        trained(net, 2, seed=5)
    assert straight.weights()["q.0.calls"] == 5
    for found, expected in ((resumed.weights(), straight.weights()), (resumed.state(), straight.state())):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_a_module_without_gradient_is_in_evaluation_mode_and_its_buffers_stay() -> None:
    spec = network("Residual")
    net = Net(spec, [Group("q", target=True)], initial_weights(spec, 1), "cpu")
    before = net.weights()
    with torch.no_grad():
        net("q", torch.ones(4, 5))
        net("q", torch.ones(4, 5), target=True)
    assert all(np.array_equal(before[name], array) for name, array in net.weights().items())


def test_the_mode_of_a_module_is_that_of_the_call_with_gradients_or_without() -> None:
    """As CrossQ needs it: the actor's loss passes a gradient through a critic in evaluation mode."""
    spec = network("Residual")
    net = Net(spec, [Group("q", target=True)], initial_weights(spec, 1), "cpu")
    trained(net, 3)
    module, x = nets.Residual(nets.spaces.Box(-1, 1, (5,))).eval(), torch.linspace(-1, 1, 20).reshape(4, 5)
    weights = {name: torch.from_numpy(array) for name, array in net.weights().items()}
    module.load_state_dict({n.removeprefix("q.0."): t for n, t in weights.items() if n.startswith("q.0.")})
    for training in (False, True):
        given, expected = (x.clone().requires_grad_() for _ in range(2))
        outputs = module.train(training)(expected) @ weights["q.1.weight"].t() + weights["q.1.bias"]
        outputs.square().sum().backward()
        net("q", given, training=training).square().sum().backward()
        assert given.grad is not None and expected.grad is not None
        np.testing.assert_allclose(given.grad.numpy(), expected.grad.numpy(), rtol=1e-4, atol=1e-6)
        changed = not all(np.array_equal(weights[name], array) for name, array in net.weights().items())
        assert changed == training
    with torch.no_grad():
        found = net.unroll("q", x.unsqueeze(0), {}, torch.zeros(1, 4, dtype=torch.bool), training=True)[0]
        assert torch.equal(found[0], net("q", x, training=True)) and not torch.equal(found[0], net("q", x))
        assert not torch.equal(net("q", x, target=True, training=True), net("q", x, target=True))


class Doubling(LayerKind):
    """A kind of the user's that doubles in training."""

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return 2 * x if is_training() else x


@pytest.mark.whole
def test_a_kind_of_the_users_reads_the_mode_and_a_recorded_update_keeps_it() -> None:
    double = LayerSpec("tests.networks.test_module:Doubling")
    spec = NetworkSpec((("q", (LayerSpec("linear", "q.0", 5, 3), double)),))

    def update(net: Net, rows: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        modes = {str(mode): net("q", rows["x"], training=mode).sum(1) for mode in (None, False, True)}
        net.step("q", modes["False"].square().mean())
        with torch.no_grad():
            return {**modes, "without": net("q", rows["x"]).sum(1), "kept": net("q", rows["x"], training=True).sum(1)}

    for kind in (EagerExecutor, TracedExecutor):
        net = Net(spec, [Group("q")], initial_weights(spec, 1), "cpu")
        found = kind(net).run(lambda rows, net=net: update(net, rows), {"x": torch.ones(4, 5)}, rates(net))
        assert torch.equal(found["None"], found["True"]) and torch.equal(found["None"], 2 * found["False"])
        assert torch.equal(found["kept"], 2 * found["without"])


def test_parts_of_a_dict_arrive_by_name_with_their_shapes() -> None:
    image = SpaceSpec("box", (3, 9, 9), "uint8")
    space = composite([("image", image, ("image",)), ("vector", SpaceSpec("box", (4,), "float32"), ("vector",))])
    layers = tower("q", section("ImageAndVector"), space, 2, output_gain=1.0)
    assert [(part.name, part.shape) for part in layers[0].module.parts] == [  # type: ignore[union-attr]
        ("image", (3, 9, 9)),
        ("vector", (4,)),
    ]


@pytest.mark.parametrize(
    ("kind", "kwargs", "fault"),
    [
        ("tests.networks.nets:Residual", {"depth": 3}, fields("network.kind", "'tests.networks.nets:Residual'")),
        (
            "tests.networks.nets:Drops",
            {},
            fields(
                "network.kind",
                "'tests.networks.nets:Drops'",
                what="forward draws random numbers (such as dropout), which no resume repeats",
            ),
        ),
        (
            "tests.networks.nets:Flat",
            {},
            fields(
                "network.kind",
                "'tests.networks.nets:Flat'",
                what="forward of a tensor [B, 5] with B=2 gave torch.float32 [2]",
            ),
        ),
        (
            "tests.networks.nets:Remembers",
            {"returns": "features"},
            fields(
                "network.kind",
                what="forward of a tensor [B, 5], and a state [B, 6] with B=2 gave torch.float32 [2, 5]",
                fix="it must give features, float32 [B, F], and the next state, float32 [B, 6]",
            ),
        ),
        (
            "tests.networks.nets:Remembers",
            {"returns": "wide state"},
            fields(
                "network.kind",
                what="forward of a tensor [B, 5], and a state [B, 6] with B=2 gave "
                "torch.float32 [2, 5], torch.float32 [2, 12]",
            ),
        ),
        (
            "tests.networks.nets:Remembers",
            {"returns": "float size"},
            fields(
                "network.kind",
                "'tests.networks.nets:Remembers'",
                what="attribute state_size is 6.0, must be a whole number: the numbers of recurrent state of a row",
            ),
        ),
        ("tests.networks.nets:Fails", {}, fields("network.kind", "'tests.networks.nets:Fails'")),
        (
            "tests.networks.nets:Double",
            {},
            fields("network.kind", "'tests.networks.nets:Double'", what="parameter 'linear.weight' is torch.float64"),
        ),
        (
            "tests.networks.nets:NoModule",
            {},
            fields(
                "network.kind", "'tests.networks.nets:NoModule'", what="is not a torch.nn.Module: found class NoModule"
            ),
        ),
        (
            "tests.networks.nets:nn",
            {},
            fields(
                "network.kind",
                "'tests.networks.nets:nn'",
                what="is not a torch.nn.Module: found an object of type module",
            ),
        ),
        (
            "tests.networks.nets:Missing",
            {},
            fields(
                "network.kind",
                what="'tests.networks.nets:Missing' cannot be loaded: module 'tests.networks.nets' has no 'Missing'",
            ),
        ),
        (
            "tests.networks.no_module:Net",
            {},
            fields(
                "network.kind",
                what="'tests.networks.no_module:Net' cannot be loaded: No module named 'tests.networks.no_module'",
            ),
        ),
        (
            "mpl",
            {},
            fields("network.kind", "'mpl'", what="mlp and cnn are known, or `module:Name` of a torch.nn.Module"),
        ),
        ("mlp", {"width": 3}, fields("network.kwargs", "{'width': 3}", what="network.kind 'mlp' has no arguments")),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, kwargs: dict[str, Any], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        tower("q", NetworkSection(kind, kwargs=kwargs), VECTOR, 3, output_gain=1.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Backbone", "have no gradient: classifier.weight, classifier.bias; .*register_buffer"),
        ("Frozen", "have no gradient: features.weight, features.bias, classifier.weight, and 1 more"),
        ("NoBackward", r"forward and backward of a tensor \[B, 5\] raised RuntimeError: .*inplace"),
    ],
)
def test_what_a_learner_cannot_train_is_refused(name: str, words: str) -> None:
    spec = network(name)
    net = Net(spec, [Group("q")], initial_weights(spec, 1), "cpu")
    with pytest.raises((ValueError, RuntimeError), match=r"does not depend on|inplace"):
        trained(net, 1)
    with raises(ConfigError, key=("network", "kind")):
        check_gradients(_spec_of(spec))


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Residual", {}),
        ("Constant", {}),
        ("Backbone", {"buffers": True}),
        ("OfSomeRows", {}),
        ("Unchanged", {}),
        ("Remembers", {}),
    ],
)
def test_what_a_learner_trains_is_not_refused(name: str, kwargs: dict[str, Any]) -> None:
    spec = network(name, **kwargs)
    before = torch.get_rng_state()
    check_gradients(_spec_of(spec))
    assert torch.equal(before, torch.get_rng_state())
    trained(Net(spec, [Group("q")], initial_weights(spec, 1), "cpu"), 2)


def _spec_of(spec: NetworkSpec) -> ModuleSpec:
    module = spec.tower("q")[0].module
    assert module is not None
    return module
