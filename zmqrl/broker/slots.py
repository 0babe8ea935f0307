"""Which slots are free, leased or held. Rebuilt from the arena's words when a broker begins."""

from __future__ import annotations

from collections import deque

from zmqrl.shared_memory.arena import RELEASE, Arena
from zmqrl.types import SlotRef


class Slots:
    """Free slots are known here alone; until every worker has reported, slots in doubt stay aside."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        held = sorted(arena.held(), key=lambda ref: arena.meta(ref.slot).id.index)
        self._held: dict[int, int] = dict(held)
        """Slot to generation, the oldest first."""
        fresh = arena.broker_incarnation == 0
        others = [slot for slot in range(arena.layout.slots) if slot not in self._held]
        self._free: deque[int] = deque(others if fresh else ())
        self.in_doubt: set[int] = set() if fresh else set(others)

    def settle(self) -> None:
        """Every worker has reported or is dead: what no process claimed is free."""
        for slot in sorted(self.in_doubt):
            self.free(slot)
        self.in_doubt = set()

    def claim(self, slot: int) -> None:
        """A worker named it as its lease."""
        self.in_doubt.discard(slot)

    def hold(self, ref: SlotRef) -> None:
        """The learner's from now on."""
        self.in_doubt.discard(ref.slot)
        self._held[ref.slot] = ref.generation

    def free(self, slot: int) -> None:
        """No worker has it."""
        self._free.append(slot)

    def collect(self, thoroughly: bool) -> None:
        """Find what the learner released: the oldest first; all of them when nothing is free and `thoroughly`."""
        held, word = self._held, self._arena.word
        while held:
            slot = next(iter(held))
            if word(slot, RELEASE) < held[slot]:
                break
            del held[slot]
            self._free.append(slot)
        if thoroughly and not self._free and held:
            for slot in self._arena.released():
                if held.pop(slot, None) is not None:
                    self._free.append(slot)

    def lease(self) -> SlotRef | None:
        """The next free slot under a new generation."""
        return self._arena.lease(self._free.popleft()) if self._free else None
