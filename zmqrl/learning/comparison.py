"""How far a recorded update is from the same update run eagerly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from zmqrl.loading import Tensor, torch

if TYPE_CHECKING:
    from zmqrl.learning.executor import Batch, Update
    from zmqrl.learning.net import Net

TOLERANCE = 1e-5
"""Tolerance for tensors and gradient norms of the net, relative to their largest entry, or to 1 if that is more."""
RESULT_TOLERANCE = 1e-3
"""Likewise, of what the update returns, often means over the batch. Compiled code adds numbers of float32 one after
another, eager torch in pairs. n additions have a relative error of up to n 2^-24, with one sign where the numbers are
nearly equal, as the entropies of a fresh policy are: n is 16,000 here. A mean of 65,536 entropies differed by 3e-5.
What a frozen number changes in the training is in the tensors."""
NOISE = 1e-4
"""Share of the largest gradient of a group: entries with less are not compared."""


class Difference(NamedTuple):
    """Difference of one result, gradient norm or tensor of the net."""

    name: str
    largest: float
    """Largest difference of an entry."""
    tolerances: float
    """The same, as a multiple of what is tolerated."""


class EagerUpdate(NamedTuple):
    """What an update makes of copies of the net's tensors."""

    results: dict[str, Tensor]
    tensors: dict[str, Tensor]
    """Tensors of the net, and gradient norms."""

    @classmethod
    def of(
        cls, net: Net, update: Update, batch: Batch, rates: Mapping[str, Tensor], variant: Mapping[str, bool]
    ) -> EagerUpdate:
        """The net stays as it is."""
        copies = {name: tensor.clone() for name, tensor in net.tensors.items()}
        with torch.enable_grad(), net.running(rates, copies) as norms:
            results = update(batch, **variant)
            return cls(_detached(results), _detached({**norms, **copies}))

    def differences(self, found: Mapping[str, Tensor]) -> Iterator[Difference]:
        """`found`: the results, gradient norms and tensors of the net after the recorded update."""
        for part, tolerance in ((self.results, RESULT_TOLERANCE), (self.tensors, TOLERANCE)):
            for name, expected in part.items():
                difference, scale = _distances(found[name], expected), expected.abs()
                group, _, kind = name.rpartition(".")
                if kind.startswith(("parameters", "target")) and f"{group}.square" in part:
                    # Adam and its kind make whole steps of gradients that are rounding errors.
                    square = part[f"{group}.square"]
                    difference = difference[square >= NOISE**2 * square.max()]
                largest = float(difference.max()) if difference.numel() else 0.0
                most = float(scale.max()) if scale.numel() else 0.0
                yield Difference(name, largest, largest / (tolerance * max(1.0, most)))


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """Absolute differences; 0 where both are NaN, or the same infinity, as after training that diverged."""
    same = (one == other) | (one.isnan() & other.isnan())
    return (one - other).abs().masked_fill(same, 0.0)


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}
