"""What policies share: input, head and mask, around layers that numpy or another library computes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.heads import Head
from zmqrl.acting.make_head import make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of, zero_state
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.networks.kinds.base import check_layer
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
