"""Policies share input, head and mask around layers; here the layers are numpy's, without torch.

All work on one vector env's whole batch at a time. Every array has its own C-contiguous buffer and the batch is never
cut or joined: eight rows at once and the same rows one by one differ in their last bits, so bits would otherwise depend
on how many workers there are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.heads import Head
from zmqrl.acting.make_head import make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of, zero_state
from zmqrl.errors import ConfigError
from zmqrl.loading import np
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.networks.kinds.base import NoisyLayer, NumpyLayer, RecurrentLayer, check_layer, numpy_layer
from zmqrl.networks.spec import LayerSpec
from zmqrl.plugins import load
from zmqrl.spaces import view
from zmqrl.types import Array, Weights

NO_NOISE: Mapping[str, Array] = {}


class ObservationInput(NumpyInput):
    """What the network of a spec sees."""

    def __init__(self, spec: ActingSpec, rows: int) -> None:
        described = spec.input or network_input(spec.observation)
        super().__init__(described, spec.observation, rows, spec.normalise_obs, spec.obs_clip)


class ForwardPolicy(Policy):
    """Input and head are made for the batch size of the first call, and again when it changes."""

    def __init__(self, spec: ActingSpec) -> None:
        for layer in spec.layers:
            check_layer(layer)
        self._spec, self._mask = spec, spec.observation.action_mask
        self._noisy = [noise.name for noise in noise_of(spec.layers)]
        self._rows = 0
        self._weights: Weights = {}
        self._schedule: Mapping[str, float] = {}
        self._input: ObservationInput
        self._head: Head
        self._completes = False

    @abstractmethod
    def load_network(self, weights: Weights) -> None:
        """Take the arrays of the layers, among others."""

    def resize(self, rows: int) -> None:
        """Make what depends on the rows of a batch, and load it."""

    @abstractmethod
    def forward(self, x: Array, state: State, noise: Mapping[str, Array]) -> Array:
        """What the head receives for `x [rows, size]`; writes the next state into `state`.

        `noise`: standard normal numbers `[rows, size]` float64 of each noisy layer, or none at all.
        """

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        self._weights, self._schedule = weights, schedule
        self.load_network(weights)
        if self._rows:
            self._load_parts()

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        head = self._prepared(obs)
        noise = {name: context.noise.further[name][t] for name in self._noisy} if self._noisy else NO_NOISE
        outputs = self.forward(self._input.take(obs), context.state, noise)
        if self._completes:
            context.outputs.append(outputs.copy())
        return head.act(outputs, t, context)

    def complete(self, obs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:
        head = self._prepared(obs)
        state = {name: array.copy() for name, array in context.state.items()}
        last = self.forward(self._input.take(obs), state, {})
        head.complete(np.stack((*context.outputs, last)), columns, context)

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        head = self._prepared(obs)
        return head.act_greedily(self.forward(self._input.take(obs), state, {}))

    def zero_state(self, rows: int) -> dict[str, Array]:
        return zero_state(self._spec.state, rows)

    def _prepared(self, obs: Array) -> Head:
        if len(obs) != self._rows:
            self._rows = len(obs)
            self._input = ObservationInput(self._spec, self._rows)
            self._head = make_head(self._spec, self._rows)
            self._completes = self._head.completes
            self.resize(self._rows)
            self._load_parts()
        if self._mask is not None:
            self._head.mask(view(obs, self._spec.observation, self._mask))
        return self._head

    def _load_parts(self) -> None:
        self._input.load(self._weights)
        self._head.load(self._weights, self._schedule)


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
