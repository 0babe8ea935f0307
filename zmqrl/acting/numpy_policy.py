"""Acting without torch: an MLP and a head in numpy, for one vector env's whole batch at a time.

Every array has its own C-contiguous buffer and the batch is never cut or joined: eight rows at once and the same
rows one by one differ in their last bits, so bits would otherwise depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.acting.base import ActingNoise, Policy
from zmqrl.acting.heads import Head, make_head
from zmqrl.acting.layers import Layer, ObservationInput, make_layers
from zmqrl.acting.spec import ActingSpec
from zmqrl.plugins import load
from zmqrl.spaces import view
from zmqrl.types import Array, Weights


class NumpyPolicy(Policy):
    """Buffers are made for the batch size of the first call, and again when it changes."""

    def __init__(self, spec: ActingSpec) -> None:
        make_layers(spec.layers, 1)  # a spec that cannot be run is refused here
        self._spec = spec
        self._rows = 0
        self._weights: Weights = {}
        self._schedule: Mapping[str, float] = {}
        self._input: ObservationInput
        self._layers: list[Layer] = []
        self._head: Head

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        self._weights, self._schedule = weights, schedule
        if self._rows:
            self._load()

    def act(self, obs: Array, noise: ActingNoise, t: int, extras: Mapping[str, Array]) -> Array:
        if len(obs) != self._rows:
            self._resize(len(obs))
        x = self._input.take(obs)
        for layer in self._layers:
            x = layer.forward(x)
        self._mask(obs)
        return self._head.act(x, noise, t, extras)

    def act_greedily(self, obs: Array) -> Array:
        if len(obs) != self._rows:
            self._resize(len(obs))
        x = self._input.take(obs)
        for layer in self._layers:
            x = layer.forward(x)
        self._mask(obs)
        return self._head.act_greedily(x)

    def _mask(self, obs: Array) -> None:
        part = self._spec.observation.action_mask
        if part is not None:
            self._head.mask(view(obs, self._spec.observation, part))

    def _resize(self, rows: int) -> None:
        self._rows = rows
        self._input = ObservationInput(self._spec, rows)
        self._layers = make_layers(self._spec.layers, rows)
        self._head = make_head(self._spec, rows)
        self._load()

    def _load(self) -> None:
        self._input.load(self._weights)
        for layer in self._layers:
            layer.load(self._weights)
        self._head.load(self._weights, self._schedule)


def make_policy(spec: ActingSpec) -> Policy:
    """The policy of `spec.runtime`."""
    if spec.runtime == "torch":  # by name: an import, however late, would tie numpy acting to torch
        policy: Policy = load("torch_policy", "zmqrl.acting", Policy)(spec)
        return policy
    return NumpyPolicy(spec)
