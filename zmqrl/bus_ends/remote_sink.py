"""The sink of a worker on another host: it keeps its segments until they are accepted, and sends them whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from zmqrl.bus_ends.worker_end import SegmentWriter
from zmqrl.bus_ends.zmq_sink import ZmqSink
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.errors import TransportError
from zmqrl.logs.events import EventPipe
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.memory_backends.make import BUS, make_backend
from zmqrl.memory_backends.seal import Sealing
from zmqrl.memory_backends.zmq import ZmqBackend
from zmqrl.messages.bus import OpenRows, Segment, SegmentHeader
from zmqrl.messages.frames import may_be_packed, pack, pack_column
from zmqrl.messages.process import ProblemReport
from zmqrl.shared_memory.arena import layout_of
from zmqrl.types import Array, ColumnSpec, SegmentMeta, SlotRef
from zmqrl.wire.sockets import connect

if TYPE_CHECKING:
    from typing_extensions import Buffer


MOST_RESEND_S = 120.0
"""Longest interval between two copies of a whole segment, which may take long behind a thin wire."""
CLOSE_HEARTBEATS = 4
UNPACKED_SEGMENTS = 15
"""For so many segments a column that LZ4 does not halve is sent as it is; then it is tried again."""


class SealedSender:
    """Seals each message. While the carrier is away nothing is sent, and the launcher is notified once."""

    def __init__(self, boot: Boot, carrier: MemoryBackend) -> None:
        self._carrier, self._events = carrier, EventPipe(boot.fds.get("events"))
        self._sealing = Sealing(boot.plan.run_id, boot.keys)
        self._is_away = False

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send as `MemoryBackend.send` does; False while the carrier is away."""
        try:
            taken = self._carrier.send(self._sealing.seal(frames))
        except TransportError as error:
            self._set_away(True, str(error))
            return False
        if taken:
            self._set_away(False, "the memory backend accepts segments again")
        return taken

    def close(self) -> None:
        """Release the carrier's connection."""
        self._carrier.close()

    def _set_away(self, is_away: bool, cause: str) -> None:
        if is_away != self._is_away:
            done = "segments are kept and sent again" if is_away else "segments that were kept are sent"
            self._events.send(ProblemReport(cause, done, "warning" if is_away else "note"))
        self._is_away = is_away


def make_sender(boot: Boot, context: zmq.Context[Any]) -> MemoryBackend | SealedSender:
    """What a worker without an arena sends its segments to."""
    if boot.plan.config.memory_backend.kind != BUS:
        return SealedSender(boot, make_backend(boot.plan))
    backend = ZmqBackend(NO_KEYS, boot.plan)
    backend.use(connect(context, zmq.PUSH, boot.endpoints.segments, boot.keys))
    return backend


class ColumnPacker:
    """Columns of images as LZ4 frames where these are half as long or shorter: less to encrypt and to send."""

    def __init__(self) -> None:
        self._unpacked: dict[str, int] = {}
        """Segments until a column is tried again."""

    def frame(self, spec: ColumnSpec, values: Array) -> Any:
        """What is sent of a column."""
        if not may_be_packed(spec):
            return values
        if self._unpacked.get(spec.name, 0):
            self._unpacked[spec.name] -= 1
            return values
        packed = pack_column(values)
        if 2 * len(packed) <= spec.nbytes:
            return packed
        self._unpacked[spec.name] = UNPACKED_SEGMENTS
        return values


class RemoteWriter(SegmentWriter):
    """A lease is a credit for one segment; the broker writes it into the slot."""

    keeps_segments = True

    def __init__(self, plan: RunPlan) -> None:
        self._specs = plan.columns
        self._layout = layout_of(plan).digest
        self._columns: dict[SlotRef, Mapping[str, Array]] = {}
        self._metas: dict[SlotRef, SegmentMeta] = {}
        self._open: dict[int, tuple[int, int]] = {}
        self._packer = ColumnPacker()

    def columns(self, ref: SlotRef) -> Mapping[str, Array]:
        # zeros: a buffer may not be reused while a frame of it is still on its way
        self._columns[ref] = {c.name: np.zeros(c.shape, c.dtype) for c in self._specs}
        return self._columns[ref]

    def open_rows(self, vector_env: int, index: int, rows: int) -> None:
        self._open[vector_env] = (index, rows)

    def open_now(self) -> list[OpenRows]:
        """Rows of each segment that is stepped and not accepted: lost if the host is."""
        sealed = [OpenRows(meta.id.vector_env, meta.id.index, meta.rows) for meta in self._metas.values()]
        return sealed + [OpenRows(vector_env, index, rows) for vector_env, (index, rows) in self._open.items() if rows]

    def seal(self, ref: SlotRef, meta: SegmentMeta) -> None:
        self._metas[ref] = meta
        self._open[meta.id.vector_env] = (meta.id.index + 1, 0)

    def start_stream(self, vector_env: int) -> None:
        self._open.pop(vector_env, None)

    def move(self, ref: SlotRef, to: SlotRef) -> None:
        self._columns[to], self._metas[to] = self._columns.pop(ref), self._metas.pop(ref)

    def forget(self, ref: SlotRef) -> None:
        self._columns.pop(ref, None)
        self._metas.pop(ref, None)

    def frames(self, index: int, spawn: int, ref: SlotRef) -> list[Buffer]:
        """The message of a sealed segment: its header and its columns."""
        header = pack(Segment(self._layout, index, spawn, ref, SegmentHeader.of(self._metas[ref])))
        return [header, *(self._packer.frame(c, self._columns[ref][c.name]) for c in self._specs)]


class RemoteSink(ZmqSink):
    """Sink of a worker without the arena: it sends whole segments."""

    is_remote = True

    def __init__(self, boot: Boot) -> None:
        self._remote = RemoteWriter(boot.plan)
        context: zmq.Context[Any] = zmq.Context()
        self._sender = make_sender(boot, context)
        super().__init__(boot, context, self._remote, MOST_RESEND_S)

    def _push(self, refs: Sequence[SlotRef]) -> None:
        # None after one that was not taken: a carrier that is away may report it seconds later.
        messages = (self._remote.frames(self._index, self._spawn, ref) for ref in refs)
        taken, now = all(map(self._sender.send, messages)), time.monotonic()
        if taken:
            self._resending.sent((self._sealed[ref] for ref in refs), now)
        else:
            self._resending.not_taken(now)

    def _follows(self, broker: int, now: float) -> bool:
        if broker != self._broker:
            self._broker, self._serial = broker, -1
            self._resending.restart(now)
        return True

    def _open_now(self) -> list[OpenRows]:
        return self._remote.open_now()

    def _finish(self) -> None:
        """What is sealed here ends with this process; and the broker should know what was stepped beyond it."""
        until = time.monotonic() + CLOSE_HEARTBEATS * self._heartbeat_s
        while self._sealed and (left_s := until - time.monotonic()) > 0:
            self.poll(left_s)
        self._report(time.monotonic())
        self._sender.close()
