from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.raising import raises
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights, parameter_shapes
from zmqrl.networks.module import FlatParameters, Tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.types import SpaceSpec

VECTOR = SpaceSpec("box", (5,), "float32")
PIXELS = SpaceSpec("box", (3, 20, 20), "uint8")
CNN = NetworkSection("cnn", (16,), "relu", (4, 6), (5, 3), (2, 1))


def reference_of(layers: tuple[LayerSpec, ...], tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    functional = nn.functional
    for layer in layers:
        get = lambda part, name=layer.name: tensors[f"{name}.{part}"]  # noqa: E731
        if layer.kind == "linear":
            x = functional.linear(x, get("weight"), get("bias"))
        elif layer.kind == "conv":
            x = functional.conv2d(x, get("weight"), get("bias"), layer.stride)
        elif layer.kind == "dueling":
            advantage = functional.linear(x, get("advantage.weight"), get("advantage.bias"))
            x = functional.linear(x, get("value.weight"), get("value.bias")) + advantage - advantage.mean(1, True)
        elif layer.kind == "scale":
            x = x / layer.inputs
        else:
            x = {"tanh": torch.tanh, "relu": torch.relu, "flatten": lambda v: v.flatten(1)}[layer.kind](x)
    return x


@pytest.mark.parametrize(
    ("section", "space", "dueling"),
    [
        (NetworkSection(), VECTOR, False),
        (NetworkSection(hidden=(7, 9), activation="relu"), VECTOR, True),
        (NetworkSection(hidden=()), VECTOR, False),
        (NetworkSection(), PIXELS, False),
    ],
)
def test_forward_and_backward_are_autograds(section: NetworkSection, space: SpaceSpec, dueling: bool) -> None:
    layers = tower("q", section, space, 4, output_gain=1.0, dueling=dueling)
    spec = NetworkSpec((("q", layers),))
    flat = FlatParameters(parameter_shapes(spec))
    flat.load(initial_weights(spec, 1))
    ours = Tower(layers, flat)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(6, *space.shape, generator=generator) * (255 if space.dtype == "uint8" else 1)
    grad = torch.randn(6, 4, generator=generator)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in flat.tensors.items()}
    expected = reference_of(layers, leaves, x)
    expected.backward(grad)
    flat.flat_grad.fill_(7.0)
    torch.testing.assert_close(ours.forward(x), expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.run(x), expected.detach(), atol=1e-5, rtol=1e-5)
    ours.backward(grad)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(flat.grads[name], leaf.grad, atol=1e-4, rtol=1e-5)


def test_tensors_are_aligned_views_of_the_flat_one() -> None:
    flat = FlatParameters({"a": (3, 5), "b": (2,)})
    flat.flat.fill_(2.0)
    assert flat.tensors["a"].shape == (3, 5) and float(flat.tensors["b"].sum()) == 4.0
    assert flat.tensors["b"].data_ptr() % 64 == flat.tensors["a"].data_ptr() % 64 == 0


def test_a_cnn_that_does_not_fit_is_a_config_error() -> None:
    with raises(ConfigError, key=("network", "kind"), fix="write mlp"):
        tower("q", NetworkSection("cnn"), VECTOR, 2, output_gain=1.0)
    with raises(ConfigError, key=("network", "kernels"), value="8"):
        tower("q", NetworkSection("cnn"), SpaceSpec("box", (1, 6, 6), "uint8"), 2, output_gain=1.0)
    with raises(
        ConfigError,
        key=("network", "kernels"),
        what="[3] and strides [4, 2, 1] must have the length of network.channels [32, 64, 64]",
    ):
        tower("q", NetworkSection("cnn", kernels=(3,)), PIXELS, 2, output_gain=1.0)
