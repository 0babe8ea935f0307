"""Modules of a user's, for the tests: imported by their dotted path."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn


class Residual(nn.Module):
    """LayerNorm, a residual block, and a batch normalisation."""

    def __init__(self, observation_space: spaces.Box, width: int = 16, batch_norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(observation_space.shape[0], width)
        self.norm = nn.LayerNorm(width)
        self.block = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width, bias=False))
        self.batch_norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()

    def forward(self, obs: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(obs)))
        features: Tensor = self.batch_norm(x + self.block(x))
        return features


class Convolution(nn.Sequential):
    """Features of an image `[channels, height, width]`."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(nn.Conv2d(observation_space.shape[0], 8, 3, 2), nn.ReLU(), nn.Flatten())


class Remembers(nn.Module):
    """A cell between two layers; the features depend on the state before too."""

    state_size = 6

    def __init__(self, observation_space: spaces.Box, returns: str = "pair") -> None:
        super().__init__()
        self.first = nn.Linear(observation_space.shape[0], 4)
        self.cell = nn.GRUCell(4, 6)
        self.last = nn.Linear(6 + 4, 5)
        self.returns = returns
        if returns == "float size":
            self.state_size = 6.0  # type: ignore[assignment]

    def forward(self, obs: Tensor, state: Tensor) -> object:
        x = torch.tanh(self.first(obs))
        after = self.cell(x, state)
        features = self.last(torch.cat((after, x), 1))
        others = {"features": features, "wide state": (features, torch.cat((after, after), 1)), "dict": {}}
        return others.get(self.returns, (features, after))


class ImageAndVector(nn.Module):
    """Convolutions over the part `image` beside the part `vector` of a Dict, LayerNorm, a residual block, BatchNorm."""

    def __init__(self, observation_space: spaces.Dict, channels: int = 4) -> None:
        super().__init__()
        image, vector = observation_space["image"], observation_space["vector"]
        assert image.shape is not None and vector.shape is not None
        self.convolutions = nn.Sequential(nn.Conv2d(image.shape[0], channels, 3, 2), nn.ReLU(), nn.Flatten())
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, *image.shape)).shape[1]
        self.norm = nn.LayerNorm(size + vector.shape[0])
        self.first = nn.Linear(size + vector.shape[0], 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16, bias=False))
        self.last = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        x = self.first(self.norm(torch.cat((self.convolutions(obs["image"]), obs["vector"]), 1)))
        features: Tensor = self.last(x + self.block(x))
        return features


class Constant(nn.Module):
    """A counter, an index and a table that no checkpoint needs."""

    table: Tensor
    order: Tensor

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        assert observation_space.shape is not None
        self.linear = nn.Linear(observation_space.shape[0], 4)
        self.register_buffer("order", torch.tensor([3, 2, 1, 0]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.rand(4), persistent=False)
        self.calls: Tensor

    def forward(self, obs: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        features: Tensor = (self.linear(obs) * self.table)[:, self.order]
        return features


class Drops(nn.Module):
    """Random numbers in training."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        self.dropout = nn.Dropout()

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.dropout(obs)
        return features


class Flat(nn.Module):
    """Features of the wrong shape."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> Tensor:
        return obs.sum(1)


class Fails(nn.Module):
    """Not for what it is given."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> Tensor:
        return obs @ torch.zeros(3, 3)


class Backbone(nn.Module):
    """Features of a network with a last layer that nothing uses. `buffers`: the tensors of this layer are buffers."""

    def __init__(self, observation_space: spaces.Box, buffers: bool = False) -> None:
        super().__init__()
        self.features = nn.Linear(observation_space.shape[0], 4)
        self.classifier = nn.Linear(4, 10)
        for name, parameter in list(self.classifier.named_parameters()) if buffers else ():
            delattr(self.classifier, name)
            self.classifier.register_buffer(name, parameter.detach())

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.features(obs)
        return features


class Frozen(Backbone):
    """Features without a gradient."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs).detach()


class NoBackward(nn.Module):
    """Changes in place what its backward pass needs."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        self.linear = nn.Linear(observation_space.shape[0], 4)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.linear(obs).exp()
        return features.add_(1.0)


class OfSomeRows(nn.Module):
    """Observations that are zero take another path, a parameter has two names, and another one is used twice."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        size = observation_space.shape[0]
        self.linear, self.other = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.other.weight = self.linear.weight
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, obs: Tensor) -> Tensor:
        if not obs.any():
            return obs
        features: Tensor = self.gain * self.linear(self.other(self.gain * obs))
        return features


class Unchanged(nn.Module):
    """No parameters."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> Tensor:
        return obs


class Double(nn.Module):
    """Parameters that are float64."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4, dtype=torch.float64)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.linear(obs.double()).float()
        return features


class NoModule:
    """A class of another kind."""
