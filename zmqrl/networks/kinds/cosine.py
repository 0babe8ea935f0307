"""Features times an embedding of fractions, for implicit quantiles (Dabney et al. 2018, arXiv 1806.06923, eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from zmqrl.loading import Tensor, functional, np, torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Cosine(LayerKind):
    """x * relu(cos(pi i tau) W^T + b), with i from 0 to `cosines` - 1, for fractions tau.

    Arrays: `weight [inputs, cosines]`, `bias [inputs]`. The noise of training are K fractions of each row: the output
    is then `[B * K, inputs]`, one row after the other. Without them the output is the mean over `fractions` that have
    equal distances. A last linear layer thus gives quantiles in training, and their mean in acting. Options: `cosines`
    (64), `fractions` (32).
    """

    defaults = MappingProxyType({"cosines": 64.0, "fractions": 32.0})
    noise_in_acting = False

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.weight": (spec.inputs, self.fan_in(spec)), f"{spec.name}.bias": (spec.inputs,)}

    def fan_in(self, spec: LayerSpec) -> int:
        return int(self.option(spec, "cosines"))

    def noise_size(self, spec: LayerSpec) -> int:
        return int(self.option(spec, "fractions"))

    def constants(self, spec: LayerSpec) -> Array:
        """Fractions without noise: the middles of equal parts of [0, 1]."""
        count = self.noise_size(spec)
        return (np.arange(count) + 0.5) / count

    def cosines(self, spec: LayerSpec) -> Array:
        """Cosines of the fractions without noise, float32 `[fractions, cosines]`."""
        return np.cos(np.pi * np.outer(self.constants(spec), np.arange(self.fan_in(spec)))).astype(np.float32)

    def numpy(self, spec: LayerSpec, rows: int) -> NumpyLayer:
        return _NumpyCosine(spec, self.cosines(spec))

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        weight, bias = tensors[f"{spec.name}.weight"], tensors[f"{spec.name}.bias"]
        fractions = tensors.get(f"{spec.name}.noise")
        if fractions is None:
            cosines = torch.from_numpy(self.cosines(spec)).to(x)
            return x * functional.linear(cosines, weight, bias).relu().mean(0)
        numbers = torch.pi * torch.arange(weight.shape[1], device=x.device, dtype=x.dtype)
        embedding = functional.linear(torch.cos(fractions.unsqueeze(2) * numbers), weight, bias).relu()
        return (x.unsqueeze(1) * embedding).flatten(0, 1)


class _NumpyCosine(NumpyLayer):
    """The embedding depends on the weights alone: it is computed when they are loaded."""

    def __init__(self, spec: LayerSpec, cosines: Array) -> None:
        self._name, self._cosines = spec.name, cosines
        self._embedding = np.zeros(spec.inputs, np.float32)

    def load(self, weights: Weights) -> None:
        weight, bias = weights[f"{self._name}.weight"], weights[f"{self._name}.bias"]
        np.maximum(self._cosines @ weight.T + bias, 0.0).mean(0, out=self._embedding)

    def forward(self, x: Array) -> Array:
        return np.multiply(x, self._embedding, x)
