"""A linear layer with learned, factorised noise on its weights (Fortunato et al. 2018), for exploration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from zmqrl.loading import Tensor, functional, np
from zmqrl.networks.kinds.base import LayerKind, NoisyLayer
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Array, Weights


class Noisy(LayerKind):
    """Arrays: `weight`, `weight_sigma [outputs, inputs]`, `bias`, `bias_sigma [outputs]`.

    With e of `inputs` and d of `outputs` standard normal numbers, and f(a) = sign(a) sqrt(|a|), the weights of a row
    are weight + weight_sigma * f(d) f(e)^T and its bias is bias + bias_sigma * f(d). Without noise they are the means.
    Option `sigma`: the first values of `*_sigma` are sigma / sqrt(inputs).
    """

    defaults = MappingProxyType({"sigma": 0.5})

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        weight, bias = (spec.outputs, spec.inputs), (spec.outputs,)
        shapes = {"weight": weight, "bias": bias, "weight_sigma": weight, "bias_sigma": bias}
        return {f"{spec.name}.{part}": shape for part, shape in shapes.items()}

    def initial(self, spec: LayerSpec, generator: np.random.Generator) -> dict[str, Array]:
        """Means are uniform in +-1 / sqrt(inputs), as in the paper."""
        bound, sigma = 1.0 / math.sqrt(spec.inputs), self.option(spec, "sigma") / math.sqrt(spec.inputs)
        return {
            name: np.full(shape, sigma, np.float32)
            if name.endswith("_sigma")
            else generator.uniform(-bound, bound, shape).astype(np.float32)
            for name, shape in self.shapes(spec).items()
        }

    def noise_size(self, spec: LayerSpec) -> int:
        return spec.inputs + spec.outputs

    def numpy(self, spec: LayerSpec, rows: int) -> NoisyLayer:
        return NumpyNoisy(spec.name, spec.inputs, spec.outputs, rows)

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        mean = functional.linear(x, tensors[f"{spec.name}.weight"], tensors[f"{spec.name}.bias"])
        noise = tensors.get(f"{spec.name}.noise")
        if noise is None:
            return mean
        scaled = noise.sign() * noise.abs().sqrt()
        by_input, by_output = scaled[:, : spec.inputs], scaled[:, spec.inputs :]
        sigma, bias_sigma = tensors[f"{spec.name}.weight_sigma"], tensors[f"{spec.name}.bias_sigma"]
        spread = functional.linear(x * by_input, sigma, bias_sigma)
        return mean + by_output * spread


class NumpyNoisy(NoisyLayer):
    """Weights are kept transposed and C-contiguous."""

    def __init__(self, name: str, inputs: int, outputs: int, rows: int) -> None:
        self.name, self._inputs = name, inputs
        self._weight, self._weight_sigma = (np.zeros((inputs, outputs), np.float32) for _ in range(2))
        self._bias, self._bias_sigma = (np.zeros(outputs, np.float32) for _ in range(2))
        self._drawn, self._scaled = (np.zeros((rows, inputs + outputs), np.float32) for _ in range(2))
        self._x = np.zeros((rows, inputs), np.float32)
        self._out, self._spread = (np.zeros((rows, outputs), np.float32) for _ in range(2))
        self._is_noisy = False

    def load(self, weights: Weights) -> None:
        np.copyto(self._weight, weights[f"{self.name}.weight"].T)
        np.copyto(self._weight_sigma, weights[f"{self.name}.weight_sigma"].T)
        np.copyto(self._bias, weights[f"{self.name}.bias"])
        np.copyto(self._bias_sigma, weights[f"{self.name}.bias_sigma"])

    def set_noise(self, noise: Array | None) -> None:
        self._is_noisy = noise is not None
        if noise is not None:
            drawn, scaled = self._drawn, self._scaled
            np.copyto(drawn, noise, casting="same_kind")
            np.absolute(drawn, scaled)
            np.sqrt(scaled, scaled)
            np.copysign(scaled, drawn, scaled)

    def forward(self, x: Array) -> Array:
        out, spread = self._out, self._spread
        np.dot(x, self._weight, out)
        np.add(out, self._bias, out)
        if self._is_noisy:
            np.multiply(x, self._scaled[:, : self._inputs], self._x)
            np.dot(self._x, self._weight_sigma, spread)
            np.add(spread, self._bias_sigma, spread)
            np.multiply(spread, self._scaled[:, self._inputs :], spread)
            np.add(out, spread, out)
        return out
