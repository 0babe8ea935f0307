"""Numpy layers of a spec, and normalisation of observations, with buffers: no allocation per step."""

from __future__ import annotations

import math

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.kinds.base import NumpyLayer, check_layer, numpy_layer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


def make_layers(specs: tuple[LayerSpec, ...], rows: int) -> list[NumpyLayer]:
    """The layers of a spec; `ConfigError` for one that is unknown or needs the torch runtime."""
    layers: list[NumpyLayer] = []
    for spec in specs:
        check_layer(spec)
        layer = numpy_layer(spec, rows)
        if layer is None:
            raise ConfigError(f"layer {spec.name!r} of kind {spec.kind!r} needs runtime torch")
        layers.append(layer)
    return layers


class ObservationInput:
    """`obs [rows, ...]` of any dtype to float32 `[rows, size]`, in a separate buffer."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        self._size = math.prod(spec.observation.shape)
        self._rows = rows
        self._clip = spec.obs_clip
        self._normalise = spec.normalise_obs
        self._exact = np.zeros((rows, self._size), np.float64)
        self._out = np.zeros((rows, self._size), np.float32)
        self._mean = np.zeros(self._size)
        self._scale = np.ones(self._size)

    def load(self, weights: Weights) -> None:
        """Take `obs_mean` and `obs_scale` when observations are normalised."""
        if self._normalise:
            self._mean = np.array(weights["obs_mean"], np.float64).reshape(-1)
            self._scale = np.array(weights["obs_scale"], np.float64).reshape(-1)

    def take(self, obs: Array) -> Array:
        """The network's input for `obs`; lives until the next call and may be changed in place."""
        flat = obs.reshape(self._rows, self._size)
        if self._normalise:
            exact = self._exact
            np.subtract(flat, self._mean, exact)
            np.multiply(exact, self._scale, exact)
            np.maximum(exact, -self._clip, out=exact)
            np.minimum(exact, self._clip, out=exact)
            flat = exact
        np.copyto(self._out, flat)
        return self._out
