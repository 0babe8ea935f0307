"""The arena: slots for segments, one writer per word, and the stream table (docs/protocol.md has the map).

Per slot four aligned int64 words, each with a single writer; a slot's state is derived by comparing them:

    lease_gen    broker    grows by 1 when the slot is leased, or taken back
    seal_gen     worker    := the lease's generation, after the payload
    accept_gen   broker    := the same, after the stream table has accepted the segment
    release_gen  learner   := the same, when it needs the slot no longer

    open      lease > seal
    sealed    lease == seal > accept
    held      lease == seal == accept > release
    free      all equal; or taken back: lease > seal, and no worker has it (the broker knows)

An aligned 8-byte store is one store, and x86-64 keeps stores in order; a processor with a weaker order would need a
barrier between payload and seal, and is refused for modes with workers (`orchestrators.handshake`).
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import Struct

from zmqrl.config.plan import RunPlan
from zmqrl.errors import ArenaError
from zmqrl.loading import np
from zmqrl.shared_memory import memory
from zmqrl.shared_memory.stream_table import LINE, StreamTable, stream_words
from zmqrl.types import DROP_REASONS, ArenaUsage, Array, ColumnSpec, Ledger, SegmentId, SegmentMeta, SlotRef, Version

MAGIC = 0x5A4D51524C01
REVISION = 2
"""Version of the meaning of the words."""
HEADER_BYTES = 4096
MAGIC_AT, DIGEST_AT, BROKER_AT, BASE_AT = 0, 1, 8, 9
LEARNER_AT = 2 * LINE
"""The learner's record, two copies; sequence, incarnation, n, updates, updates lost, oldest incarnation."""
SLOT_WORDS = 4 * LINE
LEASE, SEAL, ACCEPT, RELEASE = 0, LINE, 2 * LINE, 3 * LINE
META = SEAL + 1
META_WORDS = 6
ALIGN = 64
SETTING = "replay.capacity, env.num_envs or env.segment_steps"


class Layout:
    """Where everything is: the same in every process that has the plan."""

    def __init__(self, columns: tuple[ColumnSpec, ...], slots: int, streams: int, open_words: int) -> None:
        self.columns, self.slots, self.streams, self.open_words = columns, slots, streams, open_words
        self.offsets: dict[str, int] = {}
        stride = 0
        for column in columns:
            self.offsets[column.name] = stride
            stride += -(-column.nbytes // ALIGN) * ALIGN
        self.stride = stride
        self.streams_at = HEADER_BYTES // 8
        self.slots_at = self.streams_at + streams * stream_words(open_words)
        words = self.slots_at + slots * SLOT_WORDS
        self.payload_at = -(-8 * words // mmap.PAGESIZE) * mmap.PAGESIZE
        self.nbytes = self.payload_at + slots * stride

    @property
    def digest(self) -> int:
        """Identifies the layout: 60 bits."""
        text = repr((REVISION, self.columns, self.slots, self.streams, self.open_words))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


class LearnerRecord(Struct, frozen=True):
    """What a learner records for its successor."""

    version: Version
    """The last that it announced, or was about to."""
    updates: int
    updates_lost: int
    """Updates that were lost by the learners before it."""
    oldest_incarnation: int = 0
    """Oldest incarnation after a rollback: vector envs of earlier ones are taken back to where the learner began."""


def layout_of(plan: RunPlan) -> Layout:
    """The arena of a run."""
    unaccepted = plan.config.limits.leases_per_worker + 1
    return Layout(plan.columns, plan.slots, plan.streams, -(-unaccepted // LINE) * LINE)


def check_fits(plan: RunPlan) -> None:
    """Raise `ArenaTooLarge`, which states the need, what there is and what to change, before anything is started."""
    _check(plan, layout_of(plan))


def _check(plan: RunPlan, layout: Layout) -> None:
    """The arena, and where FULL holds replay the one copy of it: made when it is read, in async also to write it."""
    config, copy = plan.config, 0
    if config.mode.deterministic or config.store.async_replay:
        copy = plan.held_segments * layout.stride
    memory.check_fits(layout.nbytes, SETTING, copy)


class Arena:
    """A mapped arena. Every method that writes names its only writer."""

    def __init__(self, layout: Layout, mapped: mmap.mmap, fd: int | None) -> None:
        self.layout, self.fd = layout, fd
        self._memory = memoryview(mapped)
        self.words = self._memory[: layout.payload_at].cast("q")
        self.streams = StreamTable(self.words, layout.streams_at, layout.streams, layout.open_words)

    @cached_property
    def columns(self) -> Mapping[str, Array]:
        """Columns of all slots. Made at the first use: agent and broker do without, and without numpy."""
        return {column.name: self._column(column) for column in self.layout.columns}

    @cached_property
    def _table(self) -> Array:
        """For what is looked for often, among many slots."""
        found: Array = np.ndarray((self.layout.slots, SLOT_WORDS), np.int64, self._memory, 8 * self.layout.slots_at)
        return found

    @classmethod
    def create(cls, plan: RunPlan) -> Arena:
        """Host agent: a reserved memfd, to be inherited. `ArenaTooLarge` when it does not fit."""
        layout = layout_of(plan)
        _check(plan, layout)
        fd = memory.create("zmqrl-arena", layout.nbytes)
        return cls(layout, memory.attach(fd, layout.nbytes), fd)._begin()

    @classmethod
    def attach(cls, plan: RunPlan, fd: int) -> Arena:
        """An inherited arena; `ArenaError` when it was made for another plan."""
        layout = layout_of(plan)
        size = os.fstat(fd).st_size
        if size != layout.nbytes:
            raise ArenaError(f"the arena has {size} bytes, this plan's has {layout.nbytes}")
        arena = cls(layout, memory.attach(fd, layout.nbytes), fd)
        if arena.words[MAGIC_AT] != MAGIC or arena.words[DIGEST_AT] != layout.digest:
            raise ArenaError("the arena was made for another layout or by another version of zmqrl")
        return arena

    @classmethod
    def private(cls, plan: RunPlan) -> Arena:
        """The same layout in memory of this process alone (single mode, tests)."""
        layout = layout_of(plan)
        _check(plan, layout)
        return cls(layout, memory.private(layout.nbytes), None)._begin()

    def _begin(self) -> Arena:
        self.words[DIGEST_AT] = self.layout.digest
        self.words[MAGIC_AT] = MAGIC
        return self

    def _column(self, spec: ColumnSpec) -> Array:
        dtype = np.dtype(spec.dtype)
        inner = [dtype.itemsize * math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))]
        offset = self.layout.payload_at + self.layout.offsets[spec.name]
        shape, strides = (self.layout.slots, *spec.shape), (self.layout.stride, *inner)
        view: Array = np.ndarray(shape, dtype, buffer=self._memory, offset=offset, strides=strides)
        return view

    def word(self, slot: int, which: int) -> int:
        """One of the slot's four words."""
        return self.words[self.layout.slots_at + slot * SLOT_WORDS + which]

    def lease(self, slot: int) -> SlotRef:
        """Broker: the next generation of the slot; also revokes a lease."""
        at = self.layout.slots_at + slot * SLOT_WORDS + LEASE
        generation = self.words[at] + 1
        self.words[at] = generation
        return SlotRef(slot, generation)

    def write_meta(self, slot: int, meta: SegmentMeta) -> None:
        """Worker: what the segment is; before the seal."""
        at = self.layout.slots_at + slot * SLOT_WORDS + META
        w, m = self.words, meta
        w[at], w[at + 1], w[at + 2] = m.id
        w[at + 3], w[at + 4] = m.version
        w[at + 5] = m.rows

    def seal(self, ref: SlotRef) -> None:
        """Worker: the payload is whole. The last store of a segment."""
        self.words[self.layout.slots_at + ref.slot * SLOT_WORDS + SEAL] = ref.generation

    def accept(self, ref: SlotRef) -> None:
        """Broker: the stream table has accepted the segment."""
        self.words[self.layout.slots_at + ref.slot * SLOT_WORDS + ACCEPT] = ref.generation

    def release(self, ref: SlotRef) -> None:
        """Learner: the slot may be overwritten."""
        self.words[self.layout.slots_at + ref.slot * SLOT_WORDS + RELEASE] = ref.generation

    def write_learner(self, record: LearnerRecord) -> None:
        """Learner: before it announces a version, and as it makes progress."""
        first = self.words[LEARNER_AT]
        second = self.words[LEARNER_AT + LINE]
        older, sequence = (LEARNER_AT + LINE, first + 1) if first >= second else (LEARNER_AT, second + 1)
        w = self.words
        w[older + 1], w[older + 2] = record.version
        w[older + 3], w[older + 4], w[older + 5] = record.updates, record.updates_lost, record.oldest_incarnation
        w[older] = sequence

    def read_learner(self) -> LearnerRecord | None:
        """The last learner's record; None before the first. For its successor: no process writes meanwhile."""
        at = LEARNER_AT if self.words[LEARNER_AT] >= self.words[LEARNER_AT + LINE] else LEARNER_AT + LINE
        if not self.words[at]:
            return None
        incarnation, n, *rest = self.words[at + 1 : at + 6].tolist()
        return LearnerRecord(Version(incarnation, n), *rest)

    def restore(self, slot: int, meta: SegmentMeta) -> SlotRef:
        """Learner of a resumed run, before its first notice: until then no broker leases, and every word is its own.

        The payload must be there. `ArenaError` when the slot was leased before.
        """
        at = self.layout.slots_at + slot * SLOT_WORDS
        if self.words[at + LEASE] > 1:
            raise ArenaError(f"slot {slot} was leased before the resumed replay was restored")
        self.write_meta(slot, meta)
        for word in (LEASE, SEAL, ACCEPT):
            self.words[at + word] = 1
        return SlotRef(slot, 1)

    def meta(self, slot: int) -> SegmentMeta:
        """The content of the slot's header."""
        at = self.layout.slots_at + slot * SLOT_WORDS + META
        vector_env, incarnation, index, inc, n, rows = self.words[at : at + META_WORDS].tolist()
        return SegmentMeta(SegmentId(vector_env, incarnation, index), Version(inc, n), rows)

    def is_held(self, ref: SlotRef) -> bool:
        """Accepted and not released, in this generation."""
        at, g = self.layout.slots_at + ref.slot * SLOT_WORDS, ref.generation
        w = self.words
        return w[at + ACCEPT] == g == w[at + SEAL] == w[at + LEASE] and w[at + RELEASE] < g

    def held(self) -> list[SlotRef]:
        """Every held slot, in stream order per vector env."""
        words = zip(self._all(LEASE), self._all(SEAL), self._all(ACCEPT), self._all(RELEASE), strict=True)
        return self._refs(
            slot for slot, (lease, seal, accept, release) in enumerate(words) if release < lease == seal == accept
        )

    def released(self) -> list[int]:
        """Every slot whose last segment was accepted and released; also slots never used."""
        t = self._table
        found: list[int] = np.flatnonzero((t[:, LEASE] == t[:, RELEASE]) & (t[:, LEASE] == t[:, ACCEPT])).tolist()
        return found

    def _all(self, which: int) -> list[int]:
        """That word of every slot."""
        begin = self.layout.slots_at
        return self.words[begin + which : begin + self.layout.slots * SLOT_WORDS : SLOT_WORDS].tolist()

    def _refs(self, chosen: Iterable[int]) -> list[SlotRef]:
        """The chosen slots in their present generation, in stream order per vector env."""
        refs = [SlotRef(slot, self.word(slot, LEASE)) for slot in chosen]
        return sorted(refs, key=lambda r: self.meta(r.slot).id)

    def sealed(self) -> list[SlotRef]:
        """Every slot that is sealed and not accepted, in stream order per vector env."""
        words = zip(self._all(LEASE), self._all(SEAL), self._all(ACCEPT), strict=True)
        return self._refs(slot for slot, (lease, seal, accept) in enumerate(words) if accept < lease == seal)

    @property
    def broker_incarnation(self) -> int:
        """How often a broker took this arena up."""
        return self.words[BROKER_AT]

    def begin_broker(self) -> int:
        """Broker: its own incarnation, from 1."""
        self.words[BROKER_AT] += 1
        return self.words[BROKER_AT]

    def open_slots(self) -> int:
        """Leases in use: slots being written."""
        return sum(lease > seal for lease, seal in zip(self._all(LEASE), self._all(SEAL), strict=True))

    def base_env_steps(self) -> int | None:
        """Env steps of the run before this arena; None while no broker knew."""
        return self.words[BASE_AT] - 1 if self.words[BASE_AT] else None

    def set_base_env_steps(self, env_steps: int) -> None:
        """Broker: once."""
        self.words[BASE_AT] = env_steps + 1

    def usage(self) -> ArenaUsage:
        """What the slots are used for now, and what the stream records count."""
        return self.streams.usage(self.open_slots())

    def ledger(self) -> Ledger:
        """The current ledger: `produced` is from the workers, the rest from the broker. Exact when both have ended."""
        table = self.streams
        records = [table.read(v) for v in range(table.streams)]
        produced = [table.produced(v) for v in range(table.streams)]
        accounted = [r.stored + sum(r.dropped) for r in records]
        return Ledger(
            produced=sum(produced),
            stored=sum(r.stored for r in records),
            in_flight=sum(self.meta(ref.slot).rows for ref in self.sealed()),
            dropped={reason: sum(r.dropped[i] for r in records) for i, reason in enumerate(DROP_REASONS)},
            duplicates_refused=sum(r.duplicates_refused for r in records),
            overbooked=sum(max(0, a - p) for a, p in zip(accounted, produced, strict=True)),
        )

    def close(self) -> None:
        """Drop our views and the descriptor; what others still view stays mapped until they drop it."""
        self.columns = {}
        self.__dict__.pop("_table", None)
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
