"""Acting with torch layers under the same numpy heads, for kinds without a numpy layer, such as convolutions.

The only acting module with torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from zmqrl.acting.base import State
from zmqrl.acting.numpy_policy import ForwardPolicy
from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.networks.forward import step
from zmqrl.networks.input import network_input
from zmqrl.types import Array, Weights

FIX = "install the build of torch for the driver of this host, or write cpu"


class TorchPolicy(ForwardPolicy):
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
            what = f"torch {torch.__version__} finds no GPU"
            raise ConfigError(what, key=("worker_device",), value=device, fix=FIX)
        super().__init__(spec)
        self._device = torch.device(device)
        self._shape = (spec.input or network_input(spec.observation)).shape
        self._tensors: dict[str, Tensor] = {}

    def load_network(self, weights: Weights) -> None:
        names = {layer.name for layer in self._spec.layers if layer.name}
        self._tensors = {
            key: torch.from_numpy(np.array(array, np.float32)).to(self._device)
            for key, array in weights.items()
            if any(key.startswith(f"{name}.") for name in names)
        }

    def forward(self, x: Array, state: State, noise: Mapping[str, Array]) -> Array:
        with torch.inference_mode():
            rows = self._tensor(x).reshape(len(x), *self._shape)
            held = {name: self._tensor(array) for name, array in state.items()}
            drawn = {f"{name}.noise": self._tensor(array.astype(np.float32)) for name, array in noise.items()}
            outputs = step(self._spec.layers, {**self._tensors, **drawn}, rows, held)
            for name, after in held.items():
                np.copyto(state[name], after.cpu().numpy())
            return np.ascontiguousarray(outputs.cpu().numpy())

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)
