"""Which slots are free, leased or held; rebuilt from the arena's words when a broker begins."""

from __future__ import annotations

from collections import deque

from zmqrl.shared_memory.arena import RELEASE, Arena
from zmqrl.types import SlotRef


class Slots:
    """Free slots are known here alone. Until every worker has reported, unresolved slots stay aside."""

    def __init__(self, arena: Arena, first: bool) -> None:
        """`first`: no worker of a broker before can have a lease."""
        self._arena = arena
        held = sorted(arena.held(), key=lambda ref: arena.meta(ref.slot).id.index)
        self._held: dict[int, int] = dict(held)
        """Slot to generation, the oldest first."""
        others = [slot for slot in range(arena.layout.slots) if slot not in self._held]
        self._free: deque[int] = deque(others if first else ())
        self.unresolved: set[int] = set() if first else set(others)
        """Perhaps leased under a broker before."""

    def free_unresolved(self) -> None:
        """Every worker has reported or is dead: what no process claimed is free."""
        for slot in sorted(self.unresolved):
            self.free(slot)
        self.unresolved = set()

    def claim(self, slot: int) -> None:
        """A worker named it as its lease."""
        self.unresolved.discard(slot)

    def hold(self, ref: SlotRef) -> None:
        """The learner's from now on."""
        self.unresolved.discard(ref.slot)
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

    def count_held(self) -> int:
        """Slots that the learner has not released."""
        return sum(self._arena.word(slot, RELEASE) < generation for slot, generation in self._held.items())

    def lease(self) -> SlotRef | None:
        """The next free slot under a new generation."""
        return self._arena.lease(self._free.popleft()) if self._free else None
