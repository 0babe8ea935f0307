"""A worker's end of the experience stream; `learner_end.py` has the learner's.

Tests in `tests/contracts/test_bus_ends.py` run over both kinds: between processes (`zmq_sink.py`,
`zmq_learner.py`) and within one (`inproc.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from msgspec import Struct

from zmqrl.broker.events import Assignments
from zmqrl.types import Array, SegmentId, SlotRef, Version


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
