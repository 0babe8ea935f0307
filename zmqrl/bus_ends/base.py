"""The ends of the experience stream: a worker's sink, and the learner's source and channel.

Tests in `tests/contracts/test_bus_ends.py` run over both kinds: between processes (`zmq_sink.py`,
`zmq_learner.py`) and within one (`inproc.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from zmqrl.broker.events import Assignments, Handover, HandoverRequest
from zmqrl.shared_memory.arena import LearnerRecord
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
    """The learner's end of the stream. Only the learner's main thread calls it."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Array]:
        """Views of all slots, `[slots, T, N, ...]` (`obs` T + 1); only held slots may be read."""

    @abstractmethod
    def take(self, timeout_s: float) -> list[TakenSegment]:
        """Segments accepted since the last call, in stream order per vector env, each once.

        Blocks until there is one, a handover request, or `timeout_s` is over; then the list may be empty.
        Held slots stay readable until released. On the first call and whenever the broker's incarnation changes
        it scans the arena, so what was accepted and not released is found even when every message was lost.
        """

    @abstractmethod
    def release(self, refs: Sequence[SlotRef]) -> None:
        """Give slots back; they may be overwritten at once. Never blocks.

        Workers that wait for a slot are notified of it with the learner's next message, at the latest in `take`.
        """

    def is_held(self, ref: SlotRef) -> bool:
        """Whether a slot is still the learner's in this life. From any thread."""
        del ref
        return False

    @abstractmethod
    def restore(self, metas: Sequence[SegmentMeta], columns: Mapping[str, Array]) -> list[TakenSegment]:
        """On a resume, before the first `announce`: hold again what replay held, `columns [k, T, N, ...]`.

        They are in no stream record of this attempt. ArenaError when a slot was leased before.
        """

    def stream_positions(self) -> list[StreamPosition]:
        """The current stream record of each vector env."""
        return []

    def reattach(self, at: Version, metas: Sequence[SegmentMeta], columns: Mapping[str, Array]) -> Reattached:
        """sync, on a restart, before the first `announce`: hold what replay held at version `at`, and only that.

        `columns [k, T, N, ...]` are its segments. Where the predecessor got further than `at`, positions from there
        on are reopened (`Reattached.rolled_back`). ArenaError when fewer slots are held than segments are given.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support a restart of the learner")

    @abstractmethod
    def stored(self) -> int:
        """Valid rows accepted as stored, all streams, this arena."""

    @abstractmethod
    def close(self) -> None:
        """Close sockets and views; safe to call twice."""


class LearnerChannel(ABC):
    """The learner's messages to the broker and its answers. Only the learner's main thread calls it.

    Nothing here blocks. `SegmentSource.take` receives what the broker sends, and repeats what it has not confirmed.
    """

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
        raise NotImplementedError(f"{type(self).__name__} does not support a restart of the learner")

    def record_progress(self, record: LearnerRecord) -> None:
        """Store the learner's record for a successor, where the stream outlives the learner. Cheap; called often."""
        del record

    def last_record(self) -> LearnerRecord | None:
        """The record of the last learner of this stream; None for the first."""
        return None

    def base_env_steps(self) -> int | None:
        """Env steps of the run before this stream, from the broker; None while unknown."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close sockets; safe to call twice."""


class LearnerEnds(NamedTuple):
    """What the learner is given of a stream."""

    source: SegmentSource
    channel: LearnerChannel

    def close(self) -> None:
        """Both; safe to call twice."""
        self.source.close()
        self.channel.close()


class OpenSegment(Struct, frozen=True):
    """A lease being filled."""

    ref: SlotRef
    columns: Mapping[str, Array]
    """Writable views `[T, N, ...]` (`obs` T + 1)."""


class SegmentSink(ABC):
    """A worker's end. Only the worker's main thread calls it."""

    @abstractmethod
    def poll(self, timeout_s: float) -> Assignments:
        """Handle what has arrived and return the newest assignments.

        Waits up to `timeout_s` for a change (assignments, a lease, a byte on the wake pipe); resends what
        stayed unacknowledged for two heartbeats.
        """

    @abstractmethod
    def open(self, vector_env: int) -> OpenSegment | None:
        """A lease to write the next segment of `vector_env` into, or None when there is none now."""

    @abstractmethod
    def progress(self, vector_env: int, rows: int) -> None:
        """Valid rows stepped and not yet sealed: what would be lost if the worker died now. Cheap."""

    def busy(self) -> None:
        """Progress without new rows, as when the worker repeats actions: it is not stalled. Cheap."""
        return

    @abstractmethod
    def seal(self, segment: OpenSegment, id: SegmentId, version: Version, rows: int) -> None:
        """Finish a segment and hand it to the stream. Never blocks."""

    @abstractmethod
    def abandon(self, segment: OpenSegment) -> None:
        """Keep the lease, discard the rows; set `progress` to 0 rows, else they count as dropped.unsealed."""

    @abstractmethod
    def close(self) -> None:
        """Close sockets and views; safe to call twice."""
