"""Acting for networks with convolutions: torch layers under the same numpy heads. The only acting module with torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zmqrl.acting.base import ActingNoise, Policy
from zmqrl.acting.heads import Head, make_head
from zmqrl.acting.layers import ObservationInput
from zmqrl.acting.spec import ActingSpec, LayerSpec
from zmqrl.networks.input import network_input
from zmqrl.spaces import view
from zmqrl.types import Array, Weights


class TorchPolicy(Policy):
    """One thread of torch: a worker has one core, and bits must not depend on the machine's number of them."""

    def __init__(self, spec: ActingSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
        self._shape = (spec.input or network_input(spec.observation)).shape
        self._rows = 0
        self._tensors: dict[str, Tensor] = {}
        self._weights: Weights = {}
        self._schedule: Mapping[str, float] = {}
        self._input: ObservationInput
        self._head: Head

    def load(self, weights: Weights, schedule: Mapping[str, float]) -> None:
        self._weights, self._schedule = weights, schedule
        names = {layer.name for layer in self._spec.layers if layer.name}
        self._tensors = {
            key: torch.from_numpy(np.array(array, np.float32))
            for key, array in weights.items()
            if any(key.startswith(f"{name}.") for name in names)
        }
        if self._rows:
            self._load()

    def act(self, obs: Array, noise: ActingNoise, t: int, extras: Mapping[str, Array]) -> Array:
        return self._prepared(obs).act(self._forward(obs), noise, t, extras)

    def act_greedily(self, obs: Array) -> Array:
        return self._prepared(obs).act_greedily(self._forward(obs))

    def _prepared(self, obs: Array) -> Head:
        if len(obs) != self._rows:
            self._rows = len(obs)
            self._input = ObservationInput(self._spec, self._rows)
            self._head = make_head(self._spec, self._rows)
            self._load()
        part = self._spec.observation.action_mask
        if part is not None:
            self._head.mask(view(obs, self._spec.observation, part))
        return self._head

    def _load(self) -> None:
        self._input.load(self._weights)
        self._head.load(self._weights, self._schedule)

    def _forward(self, obs: Array) -> Array:
        with torch.inference_mode():
            x = torch.from_numpy(self._input.take(obs)).reshape(self._rows, *self._shape)
            for layer in self._spec.layers:
                x = _apply(layer, x, self._tensors)
            return np.ascontiguousarray(x.numpy())


def _apply(layer: LayerSpec, x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    if layer.kind == "linear":
        return functional.linear(x, tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"])
    if layer.kind == "conv":
        return functional.conv2d(x, tensors[f"{layer.name}.weight"], tensors[f"{layer.name}.bias"], layer.stride)
    if layer.kind == "dueling":
        value, advantage = (
            functional.linear(x, tensors[f"{layer.name}.{part}.weight"], tensors[f"{layer.name}.{part}.bias"])
            for part in ("value", "advantage")
        )
        return value + advantage - advantage.mean(dim=1, keepdim=True)
    if layer.kind == "flatten":
        return x.flatten(1)
    if layer.kind == "scale":
        return x / layer.inputs
    return torch.tanh(x) if layer.kind == "tanh" else torch.relu(x)
