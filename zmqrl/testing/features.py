"""A network of the user's own, as `network.kind` names one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Features(nn.Module):
    """A few features of a vector. Workers act with torch then."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], 8), nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layers(obs)
        return features
