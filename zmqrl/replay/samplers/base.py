"""The sampler seam: which items replay draws, and how they are weighted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zmqrl.replay.held_segments import HeldSegments
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Array, SegmentMeta, Weights


@dataclass(frozen=True)
class AddedSegment:
    """A segment that replay now holds."""

    place: int
    """Place of the segment until it is released. Its items are named `place * held.per_place` and following."""
    items: Array
    """Names int64 of those that may be drawn: valid rows, or sequences with a valid row to learn from; ascending."""
    priorities: Array | None
    """First |delta| of each of `items`, from the column `ReplaySpec.first_priority`."""
    meta: SegmentMeta
    columns: Mapping[str, Array]
    """Views `[T, N, ...]` of the slot until it is released; `obs` is `[T + 1, N, ...]`, or frames `[T + k, N, ...]`."""


class Sampler(ABC):
    """Chooses items (rows or sequences) of the held segments. The learner's main thread only; no method blocks.

    What is drawn must depend on the arguments and on `state` alone: a resume and every mode then draw the same.
    """

    def __init__(self, spec: ReplaySpec, held: HeldSegments) -> None:
        """`held` is shared with replay and is changed by replay alone. It is empty now."""
        self.spec, self.held = spec, held

    @abstractmethod
    def draw(self, generator: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Names `[count]` int64 of held items, and their weights `[count]` float32. `held.size` is at least 1."""

    def added(self, segment: AddedSegment) -> None:
        """A segment is now held. Also after `load_state`, once for each segment that was held, oldest first."""
        del segment

    def released(self, place: int) -> None:
        """The segment in `place` was let go. `held` does not have it any more."""
        del place

    def set_priorities(self, items: Array, priorities: Array) -> None:
        """New |delta| `[B]` of `items [B]`, all of them held; an item that is named twice has its last one."""
        del items, priorities

    def anneal(self, beta: float) -> None:
        """Set the exponent of the importance weights."""
        del beta

    def state(self) -> dict[str, Array]:
        """What a successor needs, as named arrays. Names that begin with `replay.` are those of the package.

        An array with two or more dimensions has a row for each held segment, oldest first: rows of segments that are
        released while a full checkpoint is written are left out of it.
        """
        return {}

    def load_state(self, state: Weights) -> None:
        """Restore what `state` gave, bit for bit. Called before segments are added."""
        del state
