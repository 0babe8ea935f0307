"""Which layers updates compute in bfloat16, and which devices have instructions for it (`learner.precision`)."""

from __future__ import annotations

from typing import NamedTuple

from zmqrl.learning.package_cache import cpu_flags
from zmqrl.loading import torch
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.networks.spec import LayerSpec, NetworkSpec

REDUCED = frozenset(
    {"concat", "conv", "flatten", "gelu", "layernorm", "linear", "module", "noisy", "relu", "scale", "silu", "tanh"}
)
"""Kinds that are computed in bfloat16. Others, and modules with state, compute with their input's dtype: cosines of
large numbers and sums over many steps need float32."""
INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"})
"""Flags of processors, as Linux names them."""


class Split(NamedTuple):
    """A tower: the layers in bfloat16, then those in float32."""

    reduced: tuple[LayerSpec, ...]
    rest: tuple[LayerSpec, ...]
    """At least the last layer of outputs, which would else have three digits."""
    appended: int
    """Inputs of the network that `reduced` appends."""


def splits_of(spec: NetworkSpec) -> dict[str, Split]:
    """The towers that have layers in bfloat16, by name."""
    found = {}
    for name, layers in spec.towers:
        if count := _reduced(layers):
            first = layers[:count]
            found[name] = Split(first, layers[count:], sum(layer.kind == "concat" for layer in first))
    return found


def _reduced(layers: tuple[LayerSpec, ...]) -> int:
    """Number of layers before the first that is float32."""
    body = layers if layers[-1:] and layers[-1].kind == "module" else layers[:-1]
    others = (n for n, layer in enumerate(body) if not _is_reduced(layer))
    return next(others, len(body))


def _is_reduced(layer: LayerSpec) -> bool:
    return layer.kind in REDUCED and not layer_kind(layer.kind).state_size(layer)


def has_bfloat16(device: str) -> bool:
    """Whether a device of torch has instructions for bfloat16: without them its updates are slower than in float32."""
    if device == "cpu":
        return not INSTRUCTIONS.isdisjoint(cpu_flags().split())
    supported: bool = torch.cuda.is_bf16_supported(including_emulation=False)
    return supported
