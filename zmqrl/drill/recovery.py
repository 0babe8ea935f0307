"""When a fault is over: the clock of one recovery, over snapshots of the run from outside. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from zmqrl.drill.faults import EVERY_PROCESS, FaultAction, PlannedFault
from zmqrl.supervision.process_table import ProcessId
from zmqrl.types import Version

LASTING = frozenset(map(FaultAction, ("pause", "no-space", "disk-full", "store-away", "kill-away")))
"""Faults with an end, from which their recovery is counted."""

SURVIVED = LASTING - {FaultAction.KILL_AWAY}
"""Faults that no process dies of."""


@dataclass(frozen=True)
class RunSnapshot:
    """A run as it was seen at one moment."""

    processes: Mapping[str, ProcessId] = field(default_factory=dict)
    """`role-index` to process."""
    stored: tuple[int, ...] = ()
    """Rows stored of each vector env; empty where that cannot be seen (single mode)."""
    version: Version | None = None
    """The newest version that workers could act with."""


class RecentDeaths:
    """Processes that died of a fault so lately that the restart after their next death is delayed by the backoff."""

    def __init__(self, window_s: float) -> None:
        """`window_s`: `restart.window_s` of the run."""
        self._window_s = window_s
        self._died: dict[str, float] = {}

    def add(self, fault: PlannedFault, now: float) -> None:
        """`fault` is over. With a new attempt the run discards the deaths of the one before."""
        if fault.kind.ends_run:
            self._died.clear()
        if fault.kind.action not in SURVIVED:
            self._died.update(dict.fromkeys(fault.slots, now))

    def delay(self, fault: PlannedFault, now: float) -> bool:
        """Whether one of the processes that `fault` is done to is among them."""
        return any(now - self._died.get(slot, -math.inf) < self._window_s for slot in fault.slots)


class Recovery:
    """Recovery from a fault, until training has made progress that needs each process that it was done to.

    worker, broker: the process is back, and after that rows were stored (of a worker in async: of its vector env; in
    sync, where each vector env is needed, of all). learner: it is back, and announced a version that improves on the
    first one that it announced. evaluator: it is back. A fault of the whole run, or one that ends its attempt: as of
    the learner, after the resume where there was one. A fault that lasts is counted from its end.
    """

    def __init__(self, fault: PlannedFault, before: RunSnapshot, began: float, own_stream: bool) -> None:
        """`before`: the last snapshot before the fault, or at its end where it lasts. `own_stream`: async."""
        self.fault = fault
        self.began = began
        whole = fault.kind.ends_run or fault.kind.role == EVERY_PROCESS
        slots = ("learner-0",) if whole else fault.slots
        self._parts = [_ProcessRecovery(fault, slot, before, own_stream) for slot in slots]

    def is_over(self, snapshot: RunSnapshot) -> bool:
        """Whether, as of `snapshot`, each process has recovered."""
        self._parts = [part for part in self._parts if not part.is_over(snapshot)]
        return not self._parts


class _ProcessRecovery:
    def __init__(self, fault: PlannedFault, slot: str, before: RunSnapshot, own_stream: bool) -> None:
        self._slot, self._role = slot, slot.partition("-")[0]
        self._index, self._own_stream = fault.index, own_stream
        self._before = before
        self._victim = before.processes.get(slot)
        self._back = before if fault.kind.action in LASTING else None
        self._base = before.version
        self._ends_run = fault.kind.ends_run
        self._replaced = False

    def is_over(self, snapshot: RunSnapshot) -> bool:
        process = snapshot.processes.get(self._slot)
        self._replaced = self._replaced or (process is not None and process != self._victim)
        if self._back is None:
            if process is None or process == self._victim:
                return False
            self._back = snapshot
        if self._role == "evaluator":
            return True
        if self._role in ("worker", "broker"):
            return self._has_stored(self._back, snapshot)
        return self._has_improved(snapshot.version)

    def _has_stored(self, back: RunSnapshot, snapshot: RunSnapshot) -> bool:
        grown = [now > then for now, then in zip(snapshot.stored, back.stored, strict=False)]
        if self._role == "broker":
            return any(grown)
        if self._own_stream:
            return self._index < len(grown) and grown[self._index]
        return bool(grown) and all(grown)

    def _has_improved(self, version: Version | None) -> bool:
        """A later n of one learner incarnation: what a restarted learner announces first is what was there before."""
        if version is None:
            return False
        base = self._base
        if base is None or version.incarnation != base.incarnation:
            if base is None or version > base:
                self._base = version
            return False
        died = self._replaced or self._ends_run
        restarted = self._before.version is None or version.incarnation > self._before.version.incarnation
        return version.n > base.n and (restarted or not died)
