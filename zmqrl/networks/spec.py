"""A network as plain data: layers by kind, in named towers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModulePart:
    """A part of what a module receives."""

    name: str
    """Key in the Dict; empty: the module receives this tensor instead of a dict."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModuleSpec:
    """A `torch.nn.Module` of the user's, as plain data (`zmqrl.networks.kinds.module`)."""

    path: str
    """Dotted path `a.b:Net` of the class."""
    kwargs: str
    """Arguments of the constructor, as JSON."""
    parts: tuple[ModulePart, ...]
    """Parts of the network's input, in its order."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer. `zmqrl.networks.kinds` has one file per kind, which states its arrays and what the fields mean."""

    kind: str
    """Name of a kind, or a dotted path `a.b:Kind` of a torch-free module."""
    name: str = ""
    """Prefix of the names of the layer's arrays (`actor.0.weight`); empty for a layer without arrays."""
    inputs: int = 0
    outputs: int = 0
    kernel: int = 0
    stride: int = 1
    gain: float = 1.0
    """Orthogonal initialisation's gain; 0 means PyTorch's default uniform(+-1/sqrt(fan in))."""
    options: tuple[tuple[str, float], ...] = ()
    """Further numbers of the kind, sorted by name; those left out have the kind's defaults."""

    module: ModuleSpec | None = None
    """Kind `module` alone."""

    def __post_init__(self) -> None:
        """Two layers with the same options are equal."""
        object.__setattr__(self, "options", tuple(sorted(self.options)))


@dataclass(frozen=True)
class NetworkSpec:
    """A network as named towers of layers, and free parameters (name, shape, first value)."""

    towers: tuple[tuple[str, tuple[LayerSpec, ...]], ...]
    parameters: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    learner_only: tuple[str, ...] = ()
    """Towers and free parameters that full checkpoints hold and that are never published, such as critics."""

    def is_learner_only(self, tensor: str) -> bool:
        """Whether a tensor of this name is not published."""
        return any(is_part(tensor, name) for name in self.learner_only)

    def tower(self, name: str) -> tuple[LayerSpec, ...]:
        """The layers of one tower; KeyError names it when there is none."""
        return dict(self.towers)[name]


def is_part(tensor: str, name: str) -> bool:
    """Whether a tensor belongs to the tower or the free parameter `name`."""
    return tensor == name or tensor.startswith(f"{name}.")
