"""Acting for networks with convolutions: torch layers under the same numpy heads. The only acting module with torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.heads import Head, make_head
from zmqrl.acting.layers import ObservationInput
from zmqrl.acting.spec import ActingSpec, LayerSpec
from zmqrl.acting.state import zero_state
from zmqrl.types import Array, Weights


class TorchPolicy(Policy):
    """One thread of torch: a worker has one core, and bits must not depend on the machine's number of them."""

    def __init__(self, spec: ActingSpec) -> None:
        torch.set_num_threads(1)
        self._spec = spec
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

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        return self._prepared(obs).act(self._forward(obs, context.state), t, context)

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        return self._prepared(obs).act_greedily(self._forward(obs, state))

    def zero_state(self, rows: int) -> dict[str, Array]:
        return zero_state(self._spec.state, rows)

    def _prepared(self, obs: Array) -> Head:
        if len(obs) != self._rows:
            self._rows = len(obs)
            self._input = ObservationInput(self._spec, self._rows)
            self._head = make_head(self._spec, self._rows)
            self._load()
        return self._head

    def _load(self) -> None:
        self._input.load(self._weights)
        self._head.load(self._weights, self._schedule)

    def _forward(self, obs: Array, state: State) -> Array:
        with torch.inference_mode():
            x = torch.from_numpy(self._input.take(obs)).reshape(self._rows, *self._spec.observation.shape)
            for layer in self._spec.layers:
                x = _step(layer, x, self._tensors, state) if layer.kind == "gru" else _apply(layer, x, self._tensors)
            return np.ascontiguousarray(x.numpy())


def _step(layer: LayerSpec, x: Tensor, tensors: Mapping[str, Tensor], state: State) -> Tensor:
    """One step of a recurrent layer: its state is the memory of a tensor, and receives the next one."""
    held = torch.from_numpy(state[layer.name])
    parts = (tensors[f"{layer.name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    after = torch.gru_cell(x, held, *parts)
    held.copy_(after)
    return after


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
