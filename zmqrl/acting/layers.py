"""Numpy layers of a spec, and normalisation of observations, with buffers: no allocation per step."""

from __future__ import annotations

from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.networks.kinds.base import NumpyLayer, check_layer, numpy_layer
from zmqrl.networks.spec import LayerSpec


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


class ObservationInput(NumpyInput):
    """What the network of a spec sees."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        described = spec.input or network_input(spec.observation)
        super().__init__(described, spec.observation, rows, spec.normalise_obs, spec.obs_clip)
