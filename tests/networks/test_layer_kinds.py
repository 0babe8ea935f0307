"""The suite of `zmqrl.testing` over every layer kind of the package; unknown kinds are refused everywhere."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.suites import name_of
from tests.support.raising import fields, raises
from tests.support.waiting import WAIT_S
from zmqrl.acting.numpy_policy import make_layers
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.networks.forward import forward
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.networks.kinds.base import (
    LayerKind,
    NoisyLayer,
    check_layer,
    known_kinds,
    layer_kind,
    runtime_of,
    without_backward,
)
from zmqrl.networks.kinds.relu import Relu
from zmqrl.networks.module import FlatParameters, Tower
from zmqrl.networks.spec import LayerSpec, ModulePart, ModuleSpec, NetworkSpec
from zmqrl.testing.layer import LAYER, MANY, Layer, LayerMaker, acting_allocates_no_arrays
from zmqrl.types import Array, SpaceSpec

VECTOR = SpaceSpec("box", (5,), "float32")
PIXELS = SpaceSpec("box", (3, 20, 20), "uint8")
UNKNOWN = r"layer kind 'norm' is unknown \(known: concat, conv, .*tanh; or a dotted path"
NORM = LayerSpec("norm", "a.0", 5, 5)
MODULE = ModuleSpec("tests.networks.nets:Residual", '{"batch_norm": false}', (ModulePart("", (5,)),))
REMEMBERS = ModuleSpec("tests.networks.nets:Remembers", "{}", (ModulePart("", (5,)),))
CASES: Mapping[str, tuple[Layer, ...]] = {
    "linear": (
        Layer(LayerSpec("linear", "a.0", 5, 7, gain=1.5), (5,)),
        Layer(LayerSpec("linear", "a.0", 5, 3, gain=0.0), (5,)),
    ),
    "conv": (Layer(LayerSpec("conv", "a.0", 2, 4, kernel=3, stride=2), (2, 7, 7)),),
    "dueling": (
        Layer(LayerSpec("dueling", "a.0", 5, 4, gain=0.0), (5,)),
        Layer(LayerSpec("dueling", "a.0", 5, 12, options=(("atoms", 3),)), (5,)),
        Layer(LayerSpec("dueling", "a.0", 5, 4, options=(("noisy", 1), ("sigma", 0.1))), (5,)),
        Layer(LayerSpec("dueling", "a.0", 5, 12, options=(("atoms", 3), ("noisy", 1))), (5,)),
    ),
    "tanh": (Layer(LayerSpec("tanh"), (5,)), Layer(LayerSpec("tanh"), (2, 3, 3))),
    "relu": (Layer(LayerSpec("relu"), (5,)),),
    "gelu": (Layer(LayerSpec("gelu"), (5,)), Layer(LayerSpec("gelu"), (2, 3, 3))),
    "silu": (Layer(LayerSpec("silu"), (5,)),),
    "layernorm": (
        Layer(LayerSpec("layernorm", "a.0", 5, 5), (5,)),
        Layer(LayerSpec("layernorm", "a.0", 18, 18, options=(("epsilon", 0.1),)), (2, 3, 3)),
    ),
    "gru": (Layer(LayerSpec("gru", "a.0", 5, 3, gain=0.0), (5,)), Layer(LayerSpec("gru", "a.0", 5, 8), (5,))),
    "lstm": (Layer(LayerSpec("lstm", "a.0", 5, 3, gain=0.0), (5,)), Layer(LayerSpec("lstm", "a.0", 5, 8), (5,))),
    "noisy": (
        Layer(LayerSpec("noisy", "a.0", 5, 7), (5,)),
        Layer(LayerSpec("noisy", "a.0", 5, 3, options=(("sigma", 0.1),)), (5,)),
    ),
    "expectation": (Layer(LayerSpec("expectation", "", 12, 3, options=(("high", 2.0), ("low", -1.0))), (12,)),),
    "cosine": (Layer(LayerSpec("cosine", "a.0", 5, 5, options=(("cosines", 6), ("fractions", 4))), (5,)),),
    "flatten": (Layer(LayerSpec("flatten"), (2, 3, 3)),),
    "module": (
        Layer(LayerSpec("module", "a.0", 5, 16, module=MODULE), (5,)),
        Layer(LayerSpec("module", "a.0", 5, 5, module=REMEMBERS), (5,)),
    ),
    "scale": (Layer(LayerSpec("scale", inputs=255), (5,)),),
}
OWN = Layer(LayerSpec("tests.networks.own_kinds:Fractions", "a.0", 5, 5), (5,))
LAYERS = [OWN, *(layer for layers in CASES.values() for layer in layers)]
ACTIVATIONS = tuple(name for name in known_kinds() if layer_kind(name).is_activation)


def test_every_kind_is_among_them() -> None:
    assert {*CASES, "concat"} == set(known_kinds()), "concat is of zmqrl.networks.forward: test_net has it"
    assert all(layer.spec.kind == kind for kind, layers in CASES.items() for layer in layers)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.spec.kind}-{'x'.join(map(str, layer.inputs))}")
@pytest.mark.parametrize("check", LAYER, ids=name_of)
def test_contract(check: Callable[[LayerMaker], None], layer: Layer) -> None:
    check(lambda: layer)


def test_what_another_thread_allocates_is_not_of_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, plain = [], Relu.in_place

    def in_place(kind: Relu, x: Array, inner: Array) -> None:
        if not kept and tracemalloc.is_tracing():
            other = threading.Thread(target=lambda: kept.append(bytes(10 * MANY)))
            other.start()
            other.join()
        plain(kind, x, inner)

    monkeypatch.setattr(Relu, "in_place", in_place)
    acting_allocates_no_arrays(lambda: CASES["relu"][0])
    assert kept


def reference_of(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The definition of an activation in torch's own words."""
    return {
        "tanh": torch.tanh,
        "relu": torch.nn.ReLU(),
        "gelu": torch.nn.GELU("tanh"),
        "silu": torch.nn.SiLU(),
    }[kind]


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_of_large_size(kind: str) -> None:
    x = np.array([[-1e30, -100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0, 1e12]], np.float32)
    (layer,) = make_layers((LayerSpec(kind),), 1)
    expected = reference_of(kind)(torch.from_numpy(x)).numpy()
    out = forward((LayerSpec(kind),), {}, torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(layer.forward(x), expected, rtol=1e-6, atol=1e-5)


def test_a_normalised_row_has_mean_0_and_deviation_1() -> None:
    spec = LayerSpec("layernorm", "a", 50, 50)
    (layer,) = make_layers((spec,), 4)
    layer.load(initial_weights(NetworkSpec((("a", (spec,)),)), 1))
    out = layer.forward(np.random.default_rng(0).normal(3.0, 7.0, (4, 50)).astype(np.float32))
    np.testing.assert_allclose(out.mean(1), 0.0, atol=1e-5)
    np.testing.assert_allclose(out.std(1), 1.0, atol=1e-3)


def test_a_noisy_layer_has_the_weights_of_its_definition() -> None:
    """Row by row, with a matrix of weights for each."""
    spec, rng, rows = LayerSpec("noisy", "a", 4, 3), np.random.default_rng(0), 6
    shapes = layer_kind("noisy").shapes(spec)
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x, noise = rng.normal(size=(rows, 4)).astype(np.float32), rng.normal(size=(rows, 7))
    (layer,) = make_layers((spec,), rows)
    layer.load(values)
    assert isinstance(layer, NoisyLayer)
    layer.set_noise(noise)
    out = layer.forward(x.copy())
    for row in range(rows):
        by_input, by_output = (np.sign(part) * np.sqrt(np.abs(part)) for part in (noise[row, :4], noise[row, 4:]))
        weight = values["a.weight"] + values["a.weight_sigma"] * np.outer(by_output, by_input)
        bias = values["a.bias"] + values["a.bias_sigma"] * by_output
        np.testing.assert_allclose(out[row], weight @ x[row] + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_noisy_dueling_layer_over_atoms_is_that_of_rainbow(runtime: str) -> None:
    """Hessel et al. 2018: value of each atom, and advantage less its mean over actions, by noisy layers in float64."""
    spec, rng, rows = LayerSpec("dueling", "a", 4, 6, options=(("atoms", 3), ("noisy", 1))), np.random.default_rng(0), 5
    values = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in layer_kind("dueling").shapes(spec).items()
    }
    x, noise = rng.normal(size=(rows, 4)).astype(np.float32), rng.normal(size=(rows, (4 + 3) + (4 + 6)))
    if runtime == "torch":
        tensors = {name: torch.from_numpy(array) for name, array in values.items()}
        tensors["a.noise"] = torch.from_numpy(noise.astype(np.float32))
        found = forward((spec,), tensors, torch.from_numpy(x)).numpy()
    else:
        (layer,) = make_layers((spec,), rows)
        layer.load(values)
        assert isinstance(layer, NoisyLayer)
        layer.set_noise(noise)
        found = layer.forward(x.copy())
    scaled = np.sign(noise) * np.sqrt(np.abs(noise))
    for row in range(rows):
        parts = {}
        for part, drawn in (("value", scaled[row, :7]), ("advantage", scaled[row, 7:])):
            weight, bias, spread, shift = (
                values[f"a.{part}.{name}"].astype(float) for name in ("weight", "bias", "weight_sigma", "bias_sigma")
            )
            parts[part] = (weight + spread * np.outer(drawn[4:], drawn[:4])) @ x[row] + bias + shift * drawn[4:]
        for action, atom in np.ndindex(2, 3):
            mean = (parts["advantage"][atom] + parts["advantage"][3 + atom]) / 2
            expected = parts["value"][atom] + parts["advantage"][3 * action + atom] - mean
            assert found[row, 3 * action + atom] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("actions", [1, 4, 18, 40])
def test_a_plain_dueling_layer_has_the_bits_of_two_linear_layers(actions: int) -> None:
    spec = LayerSpec("dueling", "a", 7, actions, gain=0.0)
    parts = (LayerSpec("linear", "a.value", 7, 1, gain=0.0), LayerSpec("linear", "a.advantage", 7, actions, gain=0.0))
    weights, drawn = layer_kind("dueling").initial(spec, np.random.default_rng(1)), np.random.default_rng(1)
    expected = {name: array for part in parts for name, array in layer_kind("linear").initial(part, drawn).items()}
    assert list(weights) == list(expected)
    assert all(weights[name].tobytes() == array.tobytes() for name, array in expected.items())
    x = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    value, advantage = (forward((part,), tensors, torch.from_numpy(x)) for part in parts)
    found = forward((spec,), tensors, torch.from_numpy(x))
    assert torch.equal(found, value + advantage - advantage.mean(1, keepdim=True))
    (layer,), layers = make_layers((spec,), 6), make_layers(parts, 6)
    for one in (layer, *layers):
        one.load(weights)
    v, a = (one.forward(x).copy() for one in layers)
    a += v - np.add.reduce(a, axis=1, keepdims=True) * np.float32(1.0 / actions)
    assert layer.forward(x).tobytes() == a.tobytes()


def test_outputs_of_a_dueling_layer_are_atoms_of_each_action() -> None:
    spec = LayerSpec("dueling", "a", 4, 7, options=(("atoms", 3),))
    with raises(ConfigError, key=(), what="7 outputs of layer 'a' are not 3 atoms for each action"):
        make_layers((spec,), 1)


def test_the_last_layer_of_rainbow() -> None:
    layers = tower("q", NetworkSection(hidden=(7,)), VECTOR, 12, output_gain=0.5, dueling=True, noisy=True, atoms=3)
    assert [layer.kind for layer in layers] == ["noisy", "tanh", "dueling"]
    assert layers[-1] == LayerSpec("dueling", "q.1", 7, 12, gain=0.5, options=(("atoms", 3), ("noisy", 1)))
    assert without_backward(layers[2:]) == ("dueling",)
    plain = tower("q", NetworkSection(hidden=(7,)), VECTOR, 12, output_gain=0.5, dueling=True)
    assert plain[-1] == LayerSpec("dueling", "q.1", 7, 12, gain=0.5) and not without_backward(plain)


def test_the_first_values_of_a_noisy_layer_are_those_of_the_paper() -> None:
    spec = LayerSpec("noisy", "a", 64, 500, options=(("sigma", 0.4),))
    values = initial_weights(NetworkSpec((("a", (spec,)),)), 1)
    assert set(np.unique(values["a.weight_sigma"])) == set(np.unique(values["a.bias_sigma"])) == {np.float32(0.05)}
    assert np.abs(values["a.weight"]).max() <= 0.125
    assert values["a.weight"].std() == pytest.approx(0.125 / 3**0.5, rel=0.01)


@pytest.mark.parametrize(
    "use",
    [
        lambda: layer_kind("norm"),
        lambda: check_layer(NORM),
        lambda: make_layers((NORM,), 1),
        lambda: runtime_of((NORM,)),
        lambda: parameter_shapes(NetworkSpec((("a", (NORM,)),))),
        lambda: initial_weights(NetworkSpec((("a", (NORM,)),)), 1),
        lambda: forward((NORM,), {}, torch.zeros(1, 5)),
        lambda: Tower((NORM,), FlatParameters({})),
    ],
)
def test_an_unknown_kind_gives_one_message_everywhere(use: Callable[[], object]) -> None:
    with raises(ConfigError, key=(), what="layer kind 'norm' is unknown"):
        use()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "no_such_module:Kind",
            fields(what="'no_such_module:Kind' cannot be loaded as a LayerKind: No module named 'no_such_module'"),
        ),
        (
            "zmqrl.networks.kinds.relu:Nothing",
            fields(
                what="'zmqrl.networks.kinds.relu:Nothing' cannot be loaded as a LayerKind: "
                "module 'zmqrl.networks.kinds.relu' has no 'Nothing'"
            ),
        ),
        (
            "zmqrl.networks.spec:LayerSpec",
            fields(
                value="'zmqrl.networks.spec:LayerSpec'", what="is not a subclass of LayerKind: found class LayerSpec"
            ),
        ),
    ],
)
def test_a_wrong_path_is_a_config_error(name: str, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        layer_kind(name)


def test_a_kind_by_its_path() -> None:
    assert type(layer_kind("zmqrl.networks.kinds.relu:Relu")) is type(layer_kind("relu"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("linear", ""), ("norm", ""), ("leaky_relu", ""), ("relux", "relu"), ("ReLU", "relu"), ("torch.nn:ReLU6", "")],
)
def test_an_activation_is_elementwise(name: str, meant: str) -> None:
    with raises(ConfigError, key=("network", "activation")) as found:
        tower("q", NetworkSection(activation=name), VECTOR, 2, output_gain=1.0)
    assert name in str(found.value)
    assert str(found.value).endswith(f"did you mean {meant!r}?") == bool(meant)


def test_layers_that_do_not_fit_into_memory_name_their_key() -> None:
    layers = tower("q", NetworkSection(hidden=(10**6, 10**6)), VECTOR, 2, output_gain=1.0)
    with raises(ConfigError, key=("network", "hidden"), fix="set smaller numbers"):
        runtime_of(layers)


def test_options_are_sorted_and_known() -> None:
    one = LayerSpec("layernorm", "a", 3, 3, options=(("z", 1.0), ("epsilon", 0.1)))
    assert one.options == (("epsilon", 0.1), ("z", 1.0))
    with raises(ConfigError, key=(), what="layer 'a': kind 'layernorm' has no option 'z' (known: epsilon)"):
        check_layer(one)
    with raises(ConfigError, key=(), what="a layer of kind 'layernorm' has arrays and needs a name"):
        check_layer(LayerSpec("layernorm", inputs=3, outputs=3))


def test_layer_norm_is_before_each_activation() -> None:
    plain = tower("q", NetworkSection(hidden=(7, 9)), VECTOR, 2, output_gain=1.0)
    normed = tower("q", NetworkSection(hidden=(7, 9), layer_norm=True), VECTOR, 2, output_gain=1.0)
    assert [layer.kind for layer in plain] == ["linear", "tanh", "linear", "tanh", "linear"]
    kinds = [layer.kind for layer in normed]
    assert kinds == ["linear", "layernorm", "tanh", "linear", "layernorm", "tanh", "linear"]
    assert [layer.name for layer in normed if layer.name] == ["q.0", "q.1", "q.2", "q.3", "q.4"]
    images = tower("q", NetworkSection("cnn", (16,), "relu", (4,), (5,), (3,), True), PIXELS, 2, output_gain=1.0)
    assert [layer.kind for layer in images][:4] == ["scale", "conv", "layernorm", "relu"]
    weights = initial_weights(NetworkSpec((("q", images),)), 1)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    assert forward(images, tensors, torch.rand(3, *PIXELS.shape)).shape == (3, 2)


def test_workers_need_torch_for_convolutions_and_modules_only() -> None:
    assert [kind for kind in CASES if runtime_of((CASES[kind][0].spec,)) == "torch"] == ["conv", "module"]


def test_kinds_import_no_torch() -> None:
    code = (
        "import sys\n"
        "from zmqrl.networks.kinds.base import known_kinds, layer_kind\n"
        "assert all(map(layer_kind, known_kinds())) and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S).returncode == 0


class Wrong(LayerKind):
    """Numpy does not compute what torch computes; has a tensor that numpy lacks."""

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        del spec, tensors
        return x


def test_a_kind_without_a_backward_pass_is_named_by_the_tower() -> None:
    layers = (LayerSpec("linear", "a.0", 5, 4), LayerSpec("gelu"), LayerSpec(f"{__name__}:{Wrong.__name__}"))
    with raises(
        ConfigError,
        key=(),
        what="layers of kind gelu, tests.networks.test_layer_kinds:Wrong have no hand-written backward pass",
    ):
        Tower(layers, FlatParameters(parameter_shapes(NetworkSpec((("a", layers),)))))


@pytest.mark.parametrize("method", [Tower.run, Tower.forward])
def test_a_tower_under_autograd_trains_its_weights_too(method: Callable[[Tower, torch.Tensor], torch.Tensor]) -> None:
    layers = tower("q", NetworkSection(hidden=(7,)), VECTOR, 4, output_gain=1.0)
    flat = FlatParameters(parameter_shapes(NetworkSpec((("q", layers),))))
    flat.load(initial_weights(NetworkSpec((("q", layers),)), 1))
    by_hand = Tower(layers, flat)
    x, grad = torch.rand(6, 5), torch.rand(6, 4)
    by_hand.forward(x)
    by_hand.backward(grad)
    for tensor in flat.tensors.values():
        tensor.requires_grad_()
    method(by_hand, x).backward(grad)
    for name, tensor in flat.tensors.items():
        assert tensor.grad is not None, name
        torch.testing.assert_close(tensor.grad, flat.grads[name], atol=1e-5, rtol=1e-5)
