"""Acting without torch: an MLP and a head in numpy, for one vector env's whole batch at a time.

Every array has its own C-contiguous buffer and the batch is never cut or joined: eight rows at once and the same
rows one by one differ in their last bits, so bits would otherwise depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.acting.base import Policy, State
from zmqrl.acting.forward_policy import ForwardPolicy
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.kinds.base import NoisyLayer, NumpyLayer, RecurrentLayer, check_layer, numpy_layer
from zmqrl.networks.spec import LayerSpec
from zmqrl.plugins import load
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


class NumpyPolicy(ForwardPolicy):
    """Layers have buffers for the rows of a batch."""

    def __init__(self, spec: ActingSpec) -> None:
        make_layers(spec.layers, 1)  # a spec that cannot be run is refused here
        super().__init__(spec)
        self._layers: list[NumpyLayer] = []
        self._steps: list[tuple[NumpyLayer, RecurrentLayer | None]] = []
        self._with_noise: list[NoisyLayer] = []

    def load_network(self, weights: Weights) -> None:
        for layer in self._layers:
            layer.load(weights)

    def resize(self, rows: int) -> None:
        self._layers = make_layers(self._spec.layers, rows)
        self._steps = [(layer, layer if isinstance(layer, RecurrentLayer) else None) for layer in self._layers]
        self._with_noise = [layer for layer in self._layers if isinstance(layer, NoisyLayer)]
        self.load_network(self._weights)

    def forward(self, x: Array, state: State, noise: Mapping[str, Array]) -> Array:
        for noisy in self._with_noise:
            noisy.set_noise(noise.get(noisy.name))
        for layer, core in self._steps:
            x = layer.forward(x) if core is None else core.step(x, state[core.name])
        return x


def make_policy(spec: ActingSpec, device: str = "cpu") -> Policy:
    """The policy of `spec.runtime`. `device`: of torch; auto: a GPU where torch can use one."""
    if spec.runtime == "numpy":
        return NumpyPolicy(spec)
    # By name: an import, however late, would tie numpy acting to torch.
    kind = load(f"{spec.runtime}_policy", "zmqrl.acting", Policy)
    policy: Policy = kind(spec, device) if spec.runtime == "torch" else kind(spec)
    return policy
