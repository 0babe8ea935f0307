"""Feed-forward layers and normalisation of observations in numpy, each with its buffer: no allocation per step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from zmqrl.acting.spec import ActingSpec, LayerSpec
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.types import Array, Weights


class Layer(ABC):
    """One layer for a fixed number of rows."""

    def load(self, weights: Weights) -> None:  # noqa: B027 - most layers have no arrays
        """Copy the layer's arrays out of `weights`."""

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """The output for `x [rows, inputs]`; the array is the layer's and lives until the next call."""


class Linear(Layer):
    """x W^T + b; the weight is kept transposed and C-contiguous."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self._name = name
        self._weight = np.zeros((inputs, outputs), np.float32)
        self._bias = np.zeros(outputs, np.float32)
        self._out = np.zeros((rows, outputs), np.float32)

    def load(self, weights: Weights) -> None:
        np.copyto(self._weight, weights[f"{self._name}.weight"].T)
        np.copyto(self._bias, weights[f"{self._name}.bias"])

    def forward(self, x: Array) -> Array:
        out = self._out
        np.dot(x, self._weight, out)
        np.add(out, self._bias, out)
        return out


class Dueling(Layer):
    """value + advantage - mean(advantage) (Wang et al. 2016, eq. 9)."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self._value = Linear(f"{name}.value", inputs, 1, rows)
        self._advantage = Linear(f"{name}.advantage", inputs, outputs, rows)

    def load(self, weights: Weights) -> None:
        self._value.load(weights)
        self._advantage.load(weights)

    def forward(self, x: Array) -> Array:
        advantage = self._advantage.forward(x)
        mean = np.add.reduce(advantage, axis=1, keepdims=True) * np.float32(1.0 / advantage.shape[1])
        offset = self._value.forward(x)
        offset -= mean
        np.add(advantage, offset, advantage)
        return advantage


class Tanh(Layer):
    """In place: its input is the buffer of the layer before."""

    def forward(self, x: Array) -> Array:
        np.tanh(x, x)
        return x


class Relu(Layer):
    """In place."""

    def forward(self, x: Array) -> Array:
        np.maximum(x, np.float32(0.0), out=x)
        return x


class Scale(Layer):
    """Divide by a constant, in place."""

    def __init__(self, divisor: int) -> None:
        self._divisor = np.float32(divisor)

    def forward(self, x: Array) -> Array:
        np.divide(x, self._divisor, x)
        return x


def make_layers(specs: tuple[LayerSpec, ...], rows: int) -> list[Layer]:
    """The layers of a spec; ValueError for one that needs the torch runtime."""
    layers: list[Layer] = []
    for spec in specs:
        if spec.kind == "linear":
            layers.append(Linear(spec.name, spec.inputs, spec.outputs, rows))
        elif spec.kind == "dueling":
            layers.append(Dueling(spec.name, spec.inputs, spec.outputs, rows))
        elif spec.kind in ("tanh", "relu"):
            layers.append(Tanh() if spec.kind == "tanh" else Relu())
        elif spec.kind == "scale":
            layers.append(Scale(spec.inputs))
        elif spec.kind != "flatten":
            raise ValueError(f"layer {spec.name!r} of kind {spec.kind!r} needs runtime torch")
    return layers


class ObservationInput(NumpyInput):
    """What the network of a spec sees."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        described = spec.input or network_input(spec.observation)
        super().__init__(described, spec.observation, rows, spec.normalise_obs, spec.obs_clip)
