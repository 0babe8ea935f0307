"""Acting without torch: an MLP and a head in numpy, for one vector env's whole batch at a time.

Every array has its own C-contiguous buffer and the batch is never cut or joined: eight rows at once and the same
rows one by one differ in their last bits, so bits would otherwise depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.heads import Head
from zmqrl.acting.make_head import make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import copy_of, zero_state
from zmqrl.errors import ConfigError
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.networks.kinds.base import NoisyLayer, NumpyLayer, RecurrentLayer, check_layer, numpy_layer
from zmqrl.networks.spec import LayerSpec
from zmqrl.plugins import load
from zmqrl.spaces import view
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


class ObservationInput(NumpyInput):
    """What the network of a spec sees."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        described = spec.input or network_input(spec.observation)
        super().__init__(described, spec.observation, rows, spec.normalise_obs, spec.obs_clip)


class NumpyPolicy(Policy):
    """Buffers are made for the batch size of the first call, and again when it changes."""

    def __init__(self, spec: ActingSpec) -> None:
        make_layers(spec.layers, 1)  # a spec that cannot be run is refused here
        self._spec = spec
        self._rows = 0
        self._weights: Weights = {}
        self._schedule: Mapping[str, float] = {}
        self._input: ObservationInput
        self._layers: list[NumpyLayer] = []
        self._steps: list[tuple[NumpyLayer, RecurrentLayer | None]] = []
        self._noisy: list[NoisyLayer] = []
        self._head: Head
        self._completes = False

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        self._weights, self._schedule = weights, schedule
        if self._rows:
            self._load()

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        if len(obs) != self._rows:
            self._resize(len(obs))
        for layer in self._noisy:
            layer.set_noise(context.noise.further[layer.name][t])
        outputs = self._outputs(obs, context.state)
        if self._completes:
            context.outputs.append(outputs.copy())
        return self._head.act(outputs, t, context)

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        if len(obs) != self._rows:
            self._resize(len(obs))
        return self._head.act_greedily(self._outputs_without_noise(obs, state))

    def complete(self, obs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:
        last = self._outputs_without_noise(obs, copy_of(context.state))
        self._head.complete(np.stack((*context.outputs, last)), columns, context)

    def zero_state(self, rows: int) -> dict[str, Array]:
        return zero_state(self._spec.state, rows)

    def _outputs_without_noise(self, obs: Array, state: State) -> Array:
        for layer in self._noisy:
            layer.set_noise(None)
        return self._outputs(obs, state)

    def _outputs(self, obs: Array, state: State) -> Array:
        """What the head is given, which has the mask of `obs` now."""
        x = self._input.take(obs)
        for layer, core in self._steps:
            x = layer.forward(x) if core is None else core.step(x, state[core.name])
        self._mask(obs)
        return x

    def _mask(self, obs: Array) -> None:
        part = self._spec.observation.action_mask
        if part is not None:
            self._head.mask(view(obs, self._spec.observation, part))

    def _resize(self, rows: int) -> None:
        self._rows = rows
        self._input = ObservationInput(self._spec, rows)
        self._layers = make_layers(self._spec.layers, rows)
        self._steps = [(layer, layer if isinstance(layer, RecurrentLayer) else None) for layer in self._layers]
        self._noisy = [layer for layer in self._layers if isinstance(layer, NoisyLayer)]
        self._head = make_head(self._spec, rows)
        self._completes = self._head.completes
        self._load()

    def _load(self) -> None:
        self._input.load(self._weights)
        for layer in self._layers:
            layer.load(self._weights)
        self._head.load(self._weights, self._schedule)


def make_policy(spec: ActingSpec, device: str = "cpu") -> Policy:
    """The policy of `spec.runtime`. `device`: of torch; auto: a GPU where torch can use one."""
    if spec.runtime == "numpy":
        return NumpyPolicy(spec)
    # By name: an import, however late, would tie numpy acting to torch.
    kind = load(f"{spec.runtime}_policy", "zmqrl.acting", Policy)
    policy: Policy = kind(spec, device) if spec.runtime == "torch" else kind(spec)
    return policy
