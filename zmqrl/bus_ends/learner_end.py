"""The learner's end over an arena: a source that reads slots in place, and what outlives the learner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zmqrl.broker.events import RESUMED_SHIFT, Handover, HandoverRequest
from zmqrl.errors import ArenaError
from zmqrl.shared_memory.arena import Arena, LearnerRecord
from zmqrl.types import Array, Notice, SegmentId, SegmentMeta, SlotRef, Version


class TakenSegment(NamedTuple):
    """A segment that the stream table has accepted as stored and that is now held by the learner."""

    ref: SlotRef
    meta: SegmentMeta


class StreamPosition(NamedTuple):
    """A vector env in the stream records: segments before (incarnation, next index) are stored, `rows` in all."""

    incarnation: int
    next_index: int
    rows: int


class Reattached(NamedTuple):
    """The state that a learner finds in the arena of a dead predecessor."""

    replay: list[TakenSegment]
    """Held again, in the order requested."""
    oldest_incarnation: int
    """Segments of earlier incarnations of a vector env no longer count: release them. 0: all count."""
    rolled_back: bool
    """Whether positions were reopened: the learner calls `LearnerChannel.roll_back` before its first `announce`."""


class SegmentSource(ABC):
    """The learner's end of the stream. Only the learner's main thread calls it.

    Descriptors are hints: a slot is taken when its words say that it is held, and once.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._taken_generation = [0] * arena.layout.slots
        self._expected: dict[int, tuple[int, int]] = {}
        self._new: deque[TakenSegment] = deque()

    @property
    def columns(self) -> Mapping[str, Array]:
        """Views of all slots, `[slots, T, N, ...]` (`obs` T + 1); only held slots may be read."""
        return self._arena.columns

    @abstractmethod
    def take(self, timeout_s: float) -> list[TakenSegment]:
        """Segments accepted since the last call, in stream order per vector env, each once.

        Blocks until there is one, a handover request, or `timeout_s` is over; then the list may be empty.
        Held slots stay readable until released. On the first call and whenever the broker's incarnation changes
        it scans the arena, so what was accepted and not released is found even when every message was lost.
        """

    def stored(self) -> int:
        """Valid rows accepted as stored, all streams, this arena."""
        return self._arena.streams.stored()

    def is_held(self, ref: SlotRef) -> bool:
        """Whether a slot is still the learner's in this life. From any thread."""
        return self._arena.is_held(ref)

    def restore(self, metas: Sequence[SegmentMeta], columns: Mapping[str, Array]) -> list[TakenSegment]:
        """On a resume, before the first `announce`: hold again what replay held, `columns [k, T, N, ...]`.

        They are in no stream record of this attempt. ArenaError when a slot was leased before.
        """
        restored = []
        for slot, meta in enumerate(metas):
            for name in columns.keys() & self._arena.columns.keys():  # `env_state` goes with exact recovery
                self._arena.columns[name][slot] = columns[name][slot]
            ref = self._arena.restore(slot, meta)
            self._taken_generation[slot] = ref.generation
            restored.append(TakenSegment(ref, meta))
        return restored

    def stream_positions(self) -> list[StreamPosition]:
        """The current stream record of each vector env."""
        records = (self._arena.streams.read(v) for v in range(self._arena.layout.streams))
        return [StreamPosition(r.incarnation, r.next_index, r.stored) for r in records]

    def reattach(self, at: Version, metas: Sequence[SegmentMeta], columns: Mapping[str, Array]) -> Reattached:
        """sync, on a restart, before the first `announce`: hold what replay held at version `at`, and only that.

        `columns [k, T, N, ...]` are its segments. Where the predecessor got further than `at`, positions from there
        on are reopened (`Reattached.rolled_back`). ArenaError when fewer slots are held than segments are given.
        """
        back = self._has_gone_past(at.n)
        indexed = [(self._arena.meta(ref.slot).id.index, ref) for ref in self._arena.held()]
        # First those that are past anyway: a death in the middle of this changes nothing of what comes out.
        past = [ref for index, ref in indexed if index < at.n]
        past += [ref for index, ref in indexed if index >= at.n and back]
        if len(past) < len(metas):
            raise ArenaError(
                f"{len(past)} slots are held for the {len(metas)} segments of the full checkpoint: resume the run"
            )
        for place, (ref, meta) in enumerate(zip(past, metas, strict=False)):
            for name in columns.keys() & self._arena.columns.keys():
                self._arena.columns[name][ref.slot] = columns[name][place]
            self._arena.write_meta(ref.slot, meta)
            self._taken_generation[ref.slot] = ref.generation
        self.release(past[len(metas) :])
        replay = [TakenSegment(ref, meta) for ref, meta in zip(past, metas, strict=False)]
        record = self._arena.read_learner()
        oldest = 0 if record is None else record.oldest_incarnation
        return Reattached(replay, at.incarnation << RESUMED_SHIFT if back else oldest, back)

    def _has_gone_past(self, n: int) -> bool:
        """Whether version n + 1 may have been seen, or a segment from round n on is missing.

        Or the predecessor rolled back and died before every vector env followed; or it used an older FULL.
        """
        record = self._arena.read_learner()
        if record is not None and record.version.n > n:
            return True
        held = {self._arena.meta(ref.slot).id for ref in self._arena.held()}
        oldest = 0 if record is None else record.oldest_incarnation
        for vector_env, (incarnation, next_index, _) in enumerate(self.stream_positions()):
            if 0 <= incarnation < oldest:
                return True
            here = all(SegmentId(vector_env, incarnation, index) in held for index in range(n, next_index))
            if incarnation >= 0 and (next_index < n or not here):
                return True
        return False

    def release(self, refs: Sequence[SlotRef]) -> None:
        """Give slots back; they may be overwritten at once. Never blocks.

        Workers that wait for a slot are notified of it with the learner's next message, at the latest in `take`.
        """
        for ref in refs:
            if self._arena.is_held(ref):
                self._arena.release(ref)
        self._released()

    @abstractmethod
    def close(self) -> None:
        """Close sockets and views; safe to call twice."""

    @abstractmethod
    def _released(self) -> None:
        """Slots became free: the process that waits for one should know."""

    def _offer(self, refs: Sequence[SlotRef]) -> None:
        """Take them in; when one is not the next of its stream, a descriptor before it was lost."""
        for ref in refs:
            if self._is_new(ref):
                meta = self._arena.meta(ref.slot)
                if self._expected.get(meta.id.vector_env, (0, 0)) != meta.id[1:]:
                    self._scan()
                if self._is_new(ref):
                    self._take(ref, meta)

    def _is_new(self, ref: SlotRef) -> bool:
        taken = self._taken_generation
        return 0 <= ref.slot < len(taken) and taken[ref.slot] < ref.generation and self._arena.is_held(ref)

    def _take(self, ref: SlotRef, meta: SegmentMeta) -> None:
        self._taken_generation[ref.slot] = ref.generation
        self._expected[meta.id.vector_env] = (meta.id.incarnation, meta.id.index + 1)
        self._new.append(TakenSegment(ref, meta))

    def _scan(self) -> None:
        """Everything accepted and not released, whatever became of the messages.

        Twice, because the broker accepts while we look: what is before a segment seen at first is seen at last.
        """
        newest = {id.vector_env: id for id in (self._arena.meta(ref.slot).id for ref in self._arena.held())}
        for ref in self._arena.held():
            meta = self._arena.meta(ref.slot)
            if meta.id <= newest.get(meta.id.vector_env, (-1,)) and self._is_new(ref):
                self._take(ref, meta)

    def _pop_new(self) -> list[TakenSegment]:
        taken = list(self._new)
        self._new.clear()
        return taken


class LearnerChannel(ABC):
    """The learner's messages to the broker and its answers. Only the learner's main thread calls it.

    Nothing here blocks. `SegmentSource.take` receives what the broker sends, and repeats what it has not confirmed.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._notice: Notice | None = None
        self._back: list[int] | None = None
        """Rows of each vector env at a rollback: sent with one version, until the next is announced."""

    @abstractmethod
    def announce(self, notice: Notice) -> None:
        """Make `notice` the current version for all workers; repeated until it is known."""

    @abstractmethod
    def report(self, env_steps: int, updates: int) -> None:
        """Report the learner's progress to the rate limiter; absolute, so a lost report is harmless."""

    @abstractmethod
    def handover_requests(self) -> list[HandoverRequest]:
        """Handover requests seen by `take` and not answered yet (repeated until answered)."""

    @abstractmethod
    def answer(self, handover: Handover) -> None:
        """Send the successor its start state."""

    def roll_back(self, stored: Sequence[int]) -> None:
        """Reopen the positions after these rows of each vector env, with the version that is announced next."""
        self._back = list(stored)

    def record_progress(self, record: LearnerRecord) -> None:
        """Store the learner's record for a successor, where the stream outlives the learner. Cheap; called often."""
        self._arena.write_learner(record)

    def last_record(self) -> LearnerRecord | None:
        """The record of the last learner of this stream; None for the first."""
        return self._arena.read_learner()

    def base_env_steps(self) -> int | None:
        """Env steps of the run before this stream, from the broker; None while unknown."""
        return self._arena.base_env_steps()

    @abstractmethod
    def close(self) -> None:
        """Close sockets; safe to call twice."""

    def _note(self, notice: Notice) -> None:
        """`notice` is announced now."""
        if self._notice is not None and self._notice.version != notice.version:
            self._back = None
        self._notice = notice


class LearnerEnds(NamedTuple):
    """What the learner is given of a stream."""

    source: SegmentSource
    channel: LearnerChannel

    def close(self) -> None:
        """Both; safe to call twice."""
        self.source.close()
        self.channel.close()
