"""What a worker still lacks of the env-slot records of its assignments. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from zmqrl.broker.env_records import Key, PartialRecord
from zmqrl.broker.events import StreamAssignment
from zmqrl.errors import WireError
from zmqrl.messages.bus import RecordAt, RecordPart

AGAIN_MAX_S = 30.0
MOST_REQUESTED = 1000
"""Records in one request."""


class RecordFetching:
    """One request at a time. It is repeated ever more rarely: its answer may be on its way behind a thin wire."""

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

    def due(self, now: float) -> list[RecordAt]:
        """What is to be requested at `now`, in monotonic seconds."""
        if not self._awaited or now < self._due_at:
            return []
        self._due_at, self._again_s = now + self._again_s, min(AGAIN_MAX_S, 2 * self._again_s)
        requested = list(self._awaited.items())[:MOST_REQUESTED]
        return [RecordAt(*key, record.offset) for key, (_, record) in requested]

    def take(self, parts: Sequence[RecordPart]) -> list[StreamAssignment]:
        """Take parts in; assignments whose records are whole now, with their states."""
        new = [part for part in parts if self.take_part(part)]
        if new:
            self._due_at, self._again_s = 0.0, self._first_again_s
        whole = [key for key, (_, record) in self._awaited.items() if record.is_whole]
        return [assignment for key in whole if (assignment := self._begun(key)) is not None]

    def take_part(self, part: RecordPart) -> bool:
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
