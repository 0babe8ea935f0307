"""The layer of implicit quantile networks (Dabney et al. 2018, arXiv 1806.06923, equation 4)."""

from types import MappingProxyType

import numpy as np

from zmqrl.loading import torch
from zmqrl.networks.kinds.base import LayerKind, NumpyLayer

ARRAYS = ("embed.weight", "embed.bias", "out.weight", "out.bias")


class Quantiles(LayerKind):
    """The values of all actions at K fractions: `[B, K * n]`. Workers use the K mid-points, the learner draws K."""

    defaults = MappingProxyType({"quantiles": 8.0, "cosines": 64.0})
    noise_in_acting = False

    def shapes(self, spec):
        cosines, actions = int(self.option(spec, "cosines")), spec.outputs // self.noise_size(spec)
        sizes = {"embed": (spec.inputs, cosines), "out": (actions, spec.inputs)}
        shapes = {f"{spec.name}.{name}.weight": size for name, size in sizes.items()}
        return {**shapes, **{f"{spec.name}.{name}.bias": size[:1] for name, size in sizes.items()}}

    def noise_size(self, spec):
        return int(self.option(spec, "quantiles"))

    def numpy(self, spec, rows):
        return NumpyQuantiles(spec, rows, self.noise_size(spec), int(self.option(spec, "cosines")))

    def torch(self, spec, tensors, x):
        embed, embed_bias, out, bias = (tensors[f"{spec.name}.{name}"] for name in ARRAYS)
        fixed = torch.from_numpy(midpoints(self.noise_size(spec))).to(x.device)
        tau = tensors.get(f"{spec.name}.noise", fixed)
        cosines = torch.cos(tau.unsqueeze(-1) * torch.pi * torch.arange(embed.shape[1], device=x.device))
        joined = x.unsqueeze(1) * torch.relu(cosines @ embed.T + embed_bias)
        return (joined @ out.T + bias).flatten(1)


class NumpyQuantiles(NumpyLayer):
    def __init__(self, spec, rows, quantiles, cosines):
        self.spec = spec
        self.joined = np.empty((rows, quantiles, spec.inputs), np.float32)
        self.values = np.empty((rows, quantiles, spec.outputs // quantiles), np.float32)
        self.cosines = np.cos(midpoints(quantiles)[:, None] * np.float32(np.pi) * np.arange(cosines, dtype=np.float32))

    def load(self, weights):
        embed, embed_bias, out, self.bias = (weights[f"{self.spec.name}.{name}"].copy() for name in ARRAYS)
        self.embedded, self.out = np.maximum(self.cosines @ embed.T + embed_bias, 0), out.T

    def forward(self, x):
        joined, values = self.joined[: len(x)], self.values[: len(x)]
        np.multiply(x[:, None], self.embedded, out=joined)
        np.add(np.matmul(joined, self.out, out=values), self.bias, out=values)
        return values.reshape(len(x), -1)


def midpoints(count):
    return ((np.arange(count) + 0.5) / count).astype(np.float32)
