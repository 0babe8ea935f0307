"""What both kinds share: the ends that read and write slots of an arena in place."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence

from zmqrl.broker.events import Standing
from zmqrl.memory_backends.base import OpenSegment, Orders, SegmentSink, SegmentSource, TakenSegment
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import Array, SegmentId, SegmentMeta, SlotRef, Version


class ArenaSource(SegmentSource):
    """Descriptors are hints: a slot is taken when its words say that it is held, and once."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._taken_generation = [0] * arena.layout.slots
        self._fresh: deque[TakenSegment] = deque()

    @property
    def columns(self) -> Mapping[str, Array]:
        return self._arena.columns

    def stored(self) -> int:
        return self._arena.streams.stored()

    def release(self, refs: Sequence[SlotRef]) -> None:
        for ref in refs:
            if self._arena.is_held(ref):
                self._arena.release(ref)
        self._released()

    @abstractmethod
    def _released(self) -> None:
        """Slots became free: whoever waits for one should know."""

    def _offer(self, refs: Sequence[SlotRef]) -> None:
        for ref in refs:
            if 0 <= ref.slot < len(self._taken_generation) and self._taken_generation[ref.slot] < ref.generation:
                if self._arena.is_held(ref):
                    self._taken_generation[ref.slot] = ref.generation
                    self._fresh.append(TakenSegment(ref, self._arena.meta(ref.slot)))

    def _scan(self) -> None:
        """Everything booked and not released, whatever became of the messages.

        The broker books while we look, slot by slot: what is newer than the books of the beginning would come out of
        order, and comes with its descriptor or the next scan.
        """
        arena = self._arena
        ends = [(r.incarnation, r.next_index) for r in map(arena.streams.read, range(arena.streams.streams))]
        ids = [(ref, arena.meta(ref.slot).id) for ref in arena.held()]
        self._offer([ref for ref, id in ids if (id.incarnation, id.index) < ends[id.vector_env]])

    def _all_fresh(self) -> list[TakenSegment]:
        taken = list(self._fresh)
        self._fresh.clear()
        return taken


class ArenaSink(SegmentSink):
    """Leases in, seals out; `_push` says by which way a descriptor goes."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._standing = Standing(0, (), {}, ())
        self._stop = False
        self._free: list[SlotRef] = []
        self._open: set[SlotRef] = set()
        self._sealed: dict[SlotRef, SegmentId] = {}
        self._next: dict[int, int] = {}
        self._producers: dict[int, ProducerRecord] = {}

    @abstractmethod
    def _push(self, refs: Sequence[SlotRef]) -> None:
        """Tell the broker that these are sealed; never blocks."""

    def open(self, vector_env: int) -> OpenSegment | None:
        if not self._free:
            return None
        ref = self._free.pop()
        self._open.add(ref)
        return OpenSegment(ref, {name: column[ref.slot] for name, column in self._arena.columns.items()})

    def progress(self, vector_env: int, rows: int) -> None:
        self._arena.streams.write_open(vector_env, self._next[vector_env], rows)

    def seal(self, segment: OpenSegment, id: SegmentId, version: Version, rows: int) -> None:
        ref = segment.ref
        self._open.discard(ref)
        self._arena.write_meta(ref.slot, SegmentMeta(id, version, rows))
        self._arena.seal(ref)
        before = self._producers.get(id.vector_env) or self._arena.streams.read_producer(id.vector_env)
        after = ProducerRecord(id.incarnation, id.index, before.produced + rows)
        self._producers[id.vector_env] = after
        self._arena.streams.write_producer(id.vector_env, after)
        self._arena.streams.write_open(id.vector_env, id.index + 1, 0)
        self._next[id.vector_env] = id.index + 1
        self._sealed[ref] = id
        self._push((ref,))

    def abandon(self, segment: OpenSegment) -> None:
        self._open.discard(segment.ref)
        self._free.append(segment.ref)

    def unacknowledged(self) -> int:
        return len(self._sealed)

    def _stand(self, standing: Standing) -> None:
        """Take in the newest word of the broker; only the newest counts."""
        known = {order.vector_env: order.incarnation for order in self._standing.orders}
        self._standing = standing
        for order in standing.orders:
            if known.get(order.vector_env) != order.incarnation:
                self._next[order.vector_env] = order.next_index
                self._producers.pop(order.vector_env, None)
        leases = set(standing.leases)
        self._sealed = {r: i for r, i in self._sealed.items() if r in leases and not self._is_booked(i)}
        self._free = [r for r in standing.leases if r not in self._sealed and r not in self._open]

    def _is_booked(self, id: SegmentId) -> bool:
        incarnation, next_index = self._standing.acked.get(id.vector_env, (-1, 0))
        return (id.incarnation, id.index) < (incarnation, next_index)

    def _orders(self) -> Orders:
        return Orders(tuple(self._standing.orders), self._stop)
