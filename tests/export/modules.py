"""Networks of a user's, for exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zmqrl.networks.kinds.base import LayerKind
from zmqrl.networks.spec import LayerSpec


class Cube(LayerKind):
    """An activation."""

    is_activation = True

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        del spec, tensors
        return x * x * x


class Body(nn.Module):
    """One tensor in, with a buffer and a batch normalisation."""

    def __init__(self, space: Any, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(space.shape[0], width)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("offset", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = torch.relu(self.norm(self.first(x)) + self.offset)
        return features


class Several(nn.Module):
    """A dict in."""

    def __init__(self, space: Any, width: int) -> None:
        super().__init__()
        self.image = nn.Conv2d(space["inner.image"].shape[0], 2, 3)
        self.position = nn.Linear(4, width)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        image = torch.relu(self.image(x["inner.image"])).flatten(1)
        return torch.cat([torch.tanh(self.position(x["position"].flatten(1))), x["goal"], image], 1)


class Leaky(LayerKind):
    """A recurrent layer with noise."""

    def shapes(self, spec: LayerSpec) -> Mapping[str, tuple[int, ...]]:
        return {f"{spec.name}.weight": (spec.outputs, spec.inputs), f"{spec.name}.leak": (spec.outputs,)}

    def state_size(self, spec: LayerSpec) -> int:
        return spec.outputs

    def noise_size(self, spec: LayerSpec) -> int:
        return spec.outputs

    def numpy(self, spec: LayerSpec, rows: int) -> None:
        del spec, rows

    def torch(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.step(spec, tensors, x, x.new_zeros(x.shape[0], spec.outputs))[0]

    def step(self, spec: LayerSpec, tensors: Mapping[str, Tensor], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        after = torch.tanh(x @ tensors[f"{spec.name}.weight"].T + tensors[f"{spec.name}.leak"] * state)
        noise = tensors.get(f"{spec.name}.noise")
        return after if noise is None else after + noise, after


class Table(nn.Module):
    """A large constant that is in no checkpoint."""

    table: Tensor

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.first = nn.Linear(space.shape[0], 2_000)
        self.register_buffer("table", torch.rand(2_000, 600), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.first(x) @ self.table
        return features


class Sized(nn.Module):
    """A module that needs a batch of a constant size once it is exported."""

    def __init__(self, space: Any, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(space.shape[0], width)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.first(x)
        return features * float(features.detach().abs().sum())
