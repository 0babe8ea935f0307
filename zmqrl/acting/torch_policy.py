"""Acting with torch layers under the same numpy heads, for kinds without a numpy layer, such as convolutions.

The only acting module with torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from zmqrl.acting.base import NO_STATE, ActingContext, Policy, State
from zmqrl.acting.heads import Head, make_head
from zmqrl.acting.layers import ObservationInput
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import noise_of, zero_state
from zmqrl.errors import ConfigError
from zmqrl.networks.forward import step
from zmqrl.networks.input import network_input
from zmqrl.networks.kinds.base import check_layer
from zmqrl.spaces import view
from zmqrl.types import Array, Weights


class TorchPolicy(Policy):
    """One thread of torch: a worker has one core, and bits must not depend on the machine's number of them."""

    def __init__(self, spec: ActingSpec, device: str = "cpu") -> None:
        """`device`: of torch, or auto: a GPU where torch can use one. Observations and actions stay in numpy.

        Raises:
            ConfigError: torch cannot use the device.
        """
        torch.set_num_threads(1)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(f"worker_device: {device}: torch {torch.__version__} finds no GPU; write cpu or auto")
        self._device = torch.device(device)
        for layer in spec.layers:
            check_layer(layer)
        self._spec = spec
        self._noisy = [noise.name for noise in noise_of(spec.layers)]
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
            key: torch.from_numpy(np.array(array, np.float32)).to(self._device)
            for key, array in weights.items()
            if any(key.startswith(f"{name}.") for name in names)
        }
        if self._rows:
            self._load()

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        noise = {name: context.noise.further[name][t] for name in self._noisy}
        return self._prepared(obs).act(self._forward(obs, context.state, noise), t, context)

    def act_greedily(self, obs: Array, state: State = NO_STATE) -> Array:
        return self._prepared(obs).act_greedily(self._forward(obs, state, {}))

    def zero_state(self, rows: int) -> dict[str, Array]:
        return zero_state(self._spec.state, rows)

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

    def _forward(self, obs: Array, state: State, noise: Mapping[str, Array]) -> Array:
        with torch.inference_mode():
            x = self._tensor(self._input.take(obs)).reshape(self._rows, *self._shape)
            held = {name: self._tensor(array) for name, array in state.items()}
            drawn = {f"{name}.noise": self._tensor(array.astype(np.float32)) for name, array in noise.items()}
            outputs = step(self._spec.layers, {**self._tensors, **drawn}, x, held)
            for name, after in held.items():
                np.copyto(state[name], after.cpu().numpy())
            return np.ascontiguousarray(outputs.cpu().numpy())

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)
