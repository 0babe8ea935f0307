"""Env-slot records on the wire: where a successor continues a vector env, packed, and sent in parts that are requested.

A record has every action since the reset of each env, so it has no limit of its own. One part travels per request, and
a part that is lost is requested again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgpack
import msgspec
from msgspec import structs

from zmqrl.broker.events import Handover, HandoverRequest, StreamAssignment
from zmqrl.envs.base import EnvSlotState
from zmqrl.errors import WireError
from zmqrl.loading import np
from zmqrl.messages import bus
from zmqrl.types import Array, Finite, Name

PART_BYTES = 1 << 19
"""Most record bytes in one message: small enough that a slow link carries it within seconds."""
PLAIN_DTYPE = re.compile(r"[<>|][biuf]\d{1,2}")
AGAIN_MAX_S = 30.0
MOST_REQUESTED = 1000
"""Records in one request."""
Key: TypeAlias = tuple[int, int]
"""Vector env and incarnation of the successor."""


def pack_record(states: Sequence[EnvSlotState]) -> bytes:
    """`[episode, resetting, elapsed, numbers, actions, state, obs, acting_state]` of each slot; no bytes for none."""
    if not states:
        return b""
    return bytes(msgpack.packb([_row_of(state) for state in states]))


def unpack_record(record: bytes) -> tuple[EnvSlotState, ...]:
    """The reverse. WireError when it is not one."""
    if not record:
        return ()
    try:
        data = msgpack.unpackb(record)
        return tuple(map(_slot_state, data))
    except (TypeError, ValueError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise WireError("record", str(error)) from error


class PartialRecord:
    """Grows part by part, in order; a part that does not continue it is ignored."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._content = bytearray()

    @property
    def offset(self) -> int:
        """Where the next part begins."""
        return len(self._content)

    @property
    def is_whole(self) -> bool:
        """Whether every byte is there."""
        return self.offset == self.nbytes

    def add(self, offset: int, content: bytes) -> bool:
        """Whether the part was the next one."""
        if offset != self.offset or not content or offset + len(content) > self.nbytes:
            return False
        self._content += content
        return True

    def states(self) -> tuple[EnvSlotState, ...]:
        """Env-slot states of a whole record."""
        return unpack_record(bytes(self._content))


class HandoverParts:
    """The broker's side of the learner's answers. Bounded by the requests that are open."""

    def __init__(self) -> None:
        self._partial: dict[HandoverRequest, tuple[int, PartialRecord]] = {}
        """Partial records by request, each with the index of the segment that the successor writes first."""
        self.progressed = False
        """Whether the last part was new."""

    def offset(self, request: HandoverRequest) -> int:
        """Which part is missing."""
        return self._partial[request][1].offset if request in self._partial else 0

    def take(self, part: bus.AnswerPart, requests: Iterable[HandoverRequest]) -> Handover | None:
        """Take in one part of an answer to one of `requests`; the handover once it is whole."""
        vector_env, incarnation, next_index, nbytes, offset, content = part
        by_key = {(r.vector_env, r.incarnation): r for r in requests}
        open_requests = set(by_key.values())
        self._partial = {r: partial for r, partial in self._partial.items() if r in open_requests}
        request = by_key.get((vector_env, incarnation))
        self.progressed = False
        if request is None:
            return None
        known = self._partial.get(request)
        if known is None or (known[0], known[1].nbytes) != (next_index, nbytes):
            known = self._partial[request] = (next_index, PartialRecord(nbytes))
        record = known[1]
        self.progressed = record.add(offset, content) or record.is_whole
        if not record.is_whole:
            return None
        del self._partial[request]
        return Handover(vector_env, incarnation, next_index, record.states())


class RecordFetching:
    """What a worker still lacks of the records of its assignments. Pure.

    One request at a time. It is repeated ever more rarely: its answer may be on its way behind a thin wire.
    """

    def __init__(self, again_s: float, refuse: Callable[[str], None]) -> None:
        """`again_s`: after how long without an answer a request is repeated for the first time.

        `refuse` receives the reason when a record is none; it is requested again from its beginning.
        """
        self._refuse = refuse
        self._first_again_s = self._again_s = again_s
        self._awaited: dict[Key, tuple[StreamAssignment, PartialRecord]] = {}
        self._due_at = 0.0

    def expect(self, assignments: Sequence[tuple[StreamAssignment, int]]) -> None:
        """These assignments, each with the bytes of its record, and no others; what came of them already counts."""
        before, self._awaited = self._awaited, {}
        for assignment, nbytes in assignments:
            key = assignment.vector_env, assignment.incarnation
            known = before.get(key)
            same = known is not None and known[1].nbytes == nbytes
            self._awaited[key] = (assignment, known[1] if known is not None and same else PartialRecord(nbytes))
        self._due_at, self._again_s = 0.0, self._first_again_s

    def due(self, now: float) -> list[bus.RecordAt]:
        """What is to be requested at `now`, in monotonic seconds."""
        if not self._awaited or now < self._due_at:
            return []
        self._due_at, self._again_s = now + self._again_s, min(AGAIN_MAX_S, 2 * self._again_s)
        requested = list(self._awaited.items())[:MOST_REQUESTED]
        return [bus.RecordAt(*key, record.offset) for key, (_, record) in requested]

    def take(self, parts: Sequence[bus.RecordPart]) -> list[StreamAssignment]:
        """Take parts in; assignments whose records are whole now, with their states."""
        new = [part for part in parts if self.take_part(part)]
        if new:
            self._due_at, self._again_s = 0.0, self._first_again_s
        whole = [key for key, (_, record) in self._awaited.items() if record.is_whole]
        return [assignment for key in whole if (assignment := self._begun(key)) is not None]

    def take_part(self, part: bus.RecordPart) -> bool:
        """Whether it was the next part of an awaited record."""
        vector_env, incarnation, offset, content = part
        known = self._awaited.get((vector_env, incarnation))
        return known is not None and known[1].add(offset, content)

    def _begun(self, key: Key) -> StreamAssignment | None:
        assignment, record = self._awaited[key]
        try:
            states = record.states()
        except WireError as error:
            self._awaited[key] = (assignment, PartialRecord(record.nbytes))
            self._refuse(error.reason)
            return None
        del self._awaited[key]
        return structs.replace(assignment, states=states)


class PackedRecords:
    """Records of assignments that their workers have not begun yet, packed once."""

    def __init__(self) -> None:
        self._packed: dict[Key, bytes] = {}

    def of(self, assignment: StreamAssignment) -> bytes:
        """The record of `assignment`, which has states."""
        key = assignment.vector_env, assignment.incarnation
        if key not in self._packed:
            self._packed[key] = pack_record(assignment.states or ())
        return self._packed[key]

    def row_of(self, assignment: StreamAssignment) -> bus.AssignedStream:
        """An assignment as it is sent."""
        nbytes = None if assignment.states is None else len(self.of(assignment))
        return bus.AssignedStream(assignment.vector_env, assignment.incarnation, assignment.next_index, nbytes)

    def keep(self, is_needed: Callable[[Key], bool]) -> None:
        """Forget the rest."""
        self._packed = {key: record for key, record in self._packed.items() if is_needed(key)}


def _row_of(state: EnvSlotState) -> list[Any]:
    arrays = state.actions, state.state, state.obs, state.acting_state
    numbers = [(step, dict(received)) for step, received in state.numbers]
    return [state.episode, state.resetting, state.elapsed, numbers, *map(_array_to_data, arrays)]


def _slot_state(row: Sequence[Any]) -> EnvSlotState:
    episode, resetting, elapsed, numbers, *arrays = row
    actions, state, obs, acting = (None if array is None else _array_from_data(array) for array in arrays)
    if (state is None) != (obs is None) or (state is not None and state.dtype != np.uint8):
        raise ValueError("a state without an observation, or not bytes")
    if acting is not None and (acting.dtype != np.float32 or acting.ndim != 1):
        raise ValueError("a recurrent state that is not one row of float32")
    received = tuple(msgspec.convert(numbers, list[tuple[int, dict[Name, Finite]]]))
    return EnvSlotState(_count(episode), actions, bool(resetting), state, obs, _count(elapsed), acting, received)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"episode {value!r}")
    return value


def _array_to_data(array: Array | None) -> list[Any] | None:
    return None if array is None else [array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _array_from_data(data: Sequence[Any]) -> Array:
    dtype, shape, content = data
    if not PLAIN_DTYPE.fullmatch(dtype):
        raise WireError("dtype", dtype)
    array: Array = np.frombuffer(content, np.dtype(dtype)).reshape([_count(size) for size in shape]).copy()
    return array
