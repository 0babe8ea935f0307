"""How a learner sees experience: gathered batches, and replay over the slots it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from zmqrl.loading import np
from zmqrl.types import ACTING_STATE, Array, SegmentMeta, SlotRef

__all__ = ["Replay", "ReplaySample", "SegmentBatch", "SegmentMeta", "SequenceSample"]

NOT_TRAINED = ("rows", "generations", "extras", "state")
"""Fields of a sample that are names, or hold columns by name."""


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
    sampled rows and `generations [B]` their slots' lives, for `set_priorities`. `extras` are the extra columns
    `[B, ...]` of the sampled rows by name, such as the log-probability of the action.
    """

    obs: Array
    action: Array
    n_step_return: Array
    next_obs: Array
    discount: Array
    weight: Array
    rows: Array
    generations: Array
    extras: Mapping[str, Array]

    @property
    def columns(self) -> dict[str, Array]:
        """What is trained on, `[B, ...]` by name: the extra columns, and all else but `rows` and `generations`."""
        return _columns(self)


@dataclass(frozen=True)
class SequenceSample:
    """A minibatch of C sequences inside segments, time first: R = burn_in + length consecutive rows each.

    `obs [R + 1, C, ...]`: of every row, then the next obs of the last one. `action [R, C, ...]`, `reward [R, C]`,
    `terminated [R, C]`, `truncated [R, C]`; row t of a valid row leads to `obs[t + 1]`, also where the episode ends.
    `valid [R, C]` bool: false for NEXT_STEP autoreset rows, whose action and reward mean nothing.
    `reset [R + 1, C]` bool: an episode begins with the obs of this row; a recurrent state is zeroed before it. The
    first row of a segment is never marked: the stored state is that after a reset.
    `mask [R, C]` bool: rows to learn from, which are the valid ones after the burn-in; at least one in each sequence.
    `extras` are the extra columns `[R, C, ...]` by name. `state` are the stored states `[C, size]` with which the first
    row was acted, by name without `state.`. `weight [C]`, `rows [C]` and `generations [C]` as in `ReplaySample`.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    reset: Array
    mask: Array
    extras: Mapping[str, Array]
    state: Mapping[str, Array]
    weight: Array
    rows: Array
    generations: Array

    @property
    def columns(self) -> dict[str, Array]:
        """What is trained on, by name: as that of `ReplaySample`, and `state.<name> [C, size]`.

        Sequences come first, as rows do in a batch of transitions: `obs [C, R + 1, ...]`, `action [C, R, ...]`.
        """
        columns = _columns(self)
        weight = columns.pop("weight")
        sequences = {name: np.ascontiguousarray(column.swapaxes(0, 1)) for name, column in columns.items()}
        return {**sequences, "weight": weight, **{ACTING_STATE + name: state for name, state in self.state.items()}}


AnySample: TypeAlias = ReplaySample | SequenceSample


def _columns(sample: AnySample) -> dict[str, Array]:
    own = {field.name: getattr(sample, field.name) for field in fields(sample) if field.name not in NOT_TRAINED}
    return {**sample.extras, **own}


class Replay(ABC):
    """Rows or sequences of the held slots, sampled. Called by the learner's thread only; never blocks."""

    @abstractmethod
    def sample(self, batch_size: int, n_step: int, gamma: float, key: int) -> ReplaySample:
        """Draw `batch_size` valid rows; `key` (the update's number) fixes the random stream."""

    @abstractmethod
    def sample_sequences(self, count: int, key: int) -> SequenceSample:
        """Draw `count` sequences; `key` (the update's number) fixes the random stream."""

    @abstractmethod
    def set_priorities(self, sample: AnySample, priorities: Array) -> None:
        """Set |delta|-like priorities, one per row or sequence of `sample`; those of released slots are ignored.

        `zmqrl.ops.returns.sequence_priorities` makes those of sequences.
        """

    def anneal(self, beta: float) -> None:
        """Set the exponent of the importance weights; a replay without weights ignores it."""
        del beta

    @property
    @abstractmethod
    def size(self) -> int:
        """Rows, or sequences, that may be drawn."""

    @property
    @abstractmethod
    def segments(self) -> int:
        """Segments held."""

    @abstractmethod
    def batches(self, segments: int) -> Iterator[SegmentBatch]:
        """Every held segment once, from the oldest on, as copies of `segments` at a time; the last may have fewer."""


class Observations:
    """The column `obs` of slots, `[slots, T + 1, N, ...]`, or `[slots, T + k, N, ...]` with stacks of k frames.

    Each frame of a stack is stored once; stacks are made where they are read. Row t of a stacked column is
    `obs[:, t : t + k]`: k - 1 frames of history are in front. Frames from before the episode's first row are replaced
    by its first frame. An episode begins after an autoreset row; what lies in front of the segment was stored with this
    rule applied.
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._obs, self._valid = columns["obs"], columns["valid"]
        self.depth = stack_depth(columns)

    def read(self, slot: Array, t: Array, env: Array) -> Array:
        """Observations `[..., *shape]` of rows t, 0 <= t <= T; the three indices are broadcast."""
        if self.depth == 1:
            obs: Array = self._obs[slot, t, env]
            return obs
        slot, t, env = (index[..., None] for index in np.broadcast_arrays(slot, t, env))
        frames: Array = self._obs[slot, np.maximum(t + np.arange(self.depth), self._first_frames(slot, t, env)), env]
        return frames

    def _first_frames(self, slot: Array, t: Array, env: Array) -> Array:
        """The frame `[..., 1]` of the first row of row t's episode; 0 where its stack is within the episode."""
        before = t - np.arange(1, self.depth)
        is_reset = ~self._valid[slot, np.maximum(before, 0), env] & (before >= 0)
        back = is_reset.argmax(-1, keepdims=True)  # the latest autoreset row is t - 1 - back
        first: Array = np.where(is_reset.any(-1, keepdims=True), t - back + self.depth - 1, 0)
        return first

    def segments(self, slots: Array) -> Array:
        """All observations `[T + 1, len(slots) * N, ...]` of slots side by side, C-contiguous."""
        _, steps, envs = self._valid.shape
        t = np.arange(steps + 1)[:, None]
        return self.read(np.repeat(slots, envs), t, np.tile(np.arange(envs), len(slots)))


def stack_depth(columns: Mapping[str, Array]) -> int:
    """K of the columns of slots; 1 without stacks."""
    if "obs" not in columns or "valid" not in columns:
        return 1
    return max(1, columns["obs"].shape[1] - columns["valid"].shape[1])


def last_observation(columns: Mapping[str, Array], slot: int) -> Array:
    """The observation `[N, ...]` after the last row of a slot."""
    _, steps, envs = columns["valid"].shape
    return Observations(columns).read(np.array(slot), np.array(steps), np.arange(envs))


def gather(columns: Mapping[str, Array], refs: Sequence[SlotRef], metas: Sequence[SegmentMeta]) -> SegmentBatch:
    """Copy held slots out of the arena's views `[slots, T, N, ...]` into C-contiguous `[T, E, ...]`.

    E = segments * N. Observations are `[T + 1, E, ...]`, also where slots hold the frames of stacks. The segments are
    put into the order of vector envs (then incarnation, index), whatever the order of `refs`, so that a batch does not
    depend on which worker was faster.
    """
    if len(refs) != len(metas) or not refs:
        raise ValueError(f"need as many metas as refs and at least one, got {len(metas)} and {len(refs)}")
    order = sorted(range(len(refs)), key=lambda i: metas[i].id)
    slots = [refs[i].slot for i in order]
    copied = {k: _side_by_side(v, slots) for k, v in columns.items() if k != "obs" or stack_depth(columns) == 1}
    if "obs" not in copied and "obs" in columns:
        copied = {"obs": Observations(columns).segments(np.array(slots))} | copied
    return SegmentBatch(copied, tuple(metas[i] for i in order))


def _side_by_side(column: Array, slots: Sequence[int]) -> Array:
    _, steps, envs, *rest = column.shape
    out = np.empty((steps, len(slots) * envs, *rest), dtype=column.dtype)
    for place, slot in enumerate(slots):
        out[:, place * envs : (place + 1) * envs] = column[slot]
    return out
