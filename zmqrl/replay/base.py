"""How a learner sees experience: gathered batches, and replay over the slots it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from zmqrl.types import Array, SegmentMeta

__all__ = ["Replay", "ReplaySample", "SegmentBatch", "SegmentMeta"]


@dataclass(frozen=True)
class SegmentBatch:
    """Segments side by side, copied out of the slots into C-contiguous arrays.

    Every column `[T, E, ...]` (`obs [T + 1, E, ...]`) with E = segments * N, in the order
    (t, vector env, env); `metas` in the order of the segments.
    """

    columns: Mapping[str, Array]
    metas: tuple[SegmentMeta, ...]


@dataclass(frozen=True)
class ReplaySample:
    """A minibatch of n-step transitions, B rows.

    `obs [B, ...]`, `action [B, ...]`, `n_step_return [B]` float32 (discounted sum of up to n rewards,
    fewer at an episode's or segment's end), `next_obs [B, ...]`, `discount [B]` float32: gamma^k of the k rewards
    summed, 0 after termination. `weight [B]` float32 importance weights (1 when uniform). `rows [B]` int64 names the
    sampled rows and `generations [B]` their slots' lives, for `set_priorities`.
    """

    obs: Array
    action: Array
    n_step_return: Array
    next_obs: Array
    discount: Array
    weight: Array
    rows: Array
    generations: Array


class Replay(ABC):
    """Rows of the held slots, sampled. Called by the learner's thread only; never blocks."""

    @abstractmethod
    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        """Draw `batch_size` valid rows; `key` (the update's number) fixes the random stream."""

    @abstractmethod
    def set_priorities(self, sample: ReplaySample, priorities: Array) -> None:
        """Set |delta|-like priorities `[B]`; rows whose slot was released since are ignored."""

    def anneal(self, beta: float) -> None:
        """Set the exponent of the importance weights; a replay without weights ignores it."""
        del beta

    @property
    @abstractmethod
    def size(self) -> int:
        """Valid rows held."""
