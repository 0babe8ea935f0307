"""When a fault is over: the clock of one recovery, over looks at the run from outside. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zmqrl.drill.faults import Action, Fault
from zmqrl.supervision.process_table import ProcessId
from zmqrl.types import Version


@dataclass(frozen=True)
class Look:
    """A run as it was seen at one moment."""

    processes: Mapping[str, ProcessId] = field(default_factory=dict)
    """`role-index` to process."""
    stored: tuple[int, ...] = ()
    """Rows stored of each vector env; empty where that cannot be seen (single mode)."""
    version: Version | None = None
    """The newest version that workers could act with."""


class Recovery:
    """From the moment of a fault until training has made progress that needs the process.

    worker, broker: the process is back, and after that rows were stored (of a worker in async: of its vector env; in
    sync, where each vector env is needed, of all). learner: it is back, and announced a version that improves on the
    first one that it announced. evaluator: it is back. agent, launcher: as a learner, in the resumed run.
    A pause is counted from its end.
    """

    def __init__(self, fault: Fault, before: Look, began: float, own_stream: bool) -> None:
        """`before`: the last look before the fault, or at the end of a pause. `own_stream`: async."""
        self.fault = fault
        self.began = began
        self._before = before
        self._victim = before.processes.get(fault.place)
        stays = fault.kind.action in (Action.PAUSE, Action.NO_SPACE)
        self._back = before if stays else None
        self._base = before.version
        self._own_stream = own_stream
        self.replaced = False
        """Whether another process is in its place."""

    def is_over(self, look: Look) -> bool:
        """Take a look in; True once the role does its work again."""
        process = look.processes.get(self.fault.place)
        self.replaced = self.replaced or (process is not None and process != self._victim)
        if self._back is None:
            if process is None or process == self._victim:
                return False
            self._back = look
        role = self.fault.kind.role
        if role == "evaluator":
            return True
        if role in ("worker", "broker"):
            return self._has_stored(self._back, look)
        return self._has_improved(look.version)

    def _has_stored(self, back: Look, look: Look) -> bool:
        grown = [now > then for now, then in zip(look.stored, back.stored, strict=False)]
        if self.fault.kind.role == "broker":
            return any(grown)
        if self._own_stream:
            return self.fault.index < len(grown) and grown[self.fault.index]
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
        died = self.replaced or self.fault.kind.ends_run
        started_anew = self._before.version is None or version.incarnation > self._before.version.incarnation
        return version.n > base.n and (started_anew or not died)
