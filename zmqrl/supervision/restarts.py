"""Supervision: what is done about a process that died. Pure: events in, actions out, no clock, no process."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct

from zmqrl.config.codec import replace
from zmqrl.config.sections import RestartSection
from zmqrl.types import Role

BAD_CONFIGURATION = 2
"""The exit code that no restart can fix."""
AT_START = "before its first step"
NO_SEGMENT = "before its first segment"
BY_EXIT = "in the same way"
MOST_DOUBLINGS = 64
"""Most doublings of the backoff: with thousands of restarts in the window its value would not be a float."""


class ProcessSlot(Struct, frozen=True, order=True):
    """A process index: what is started again when a process of it dies."""

    role: Role
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


class Died(Struct, frozen=True):
    """A process ended unexpectedly."""

    slot: ProcessSlot
    code: int
    """Exit code; negative: the signal."""
    cause: str
    point: str | None = None
    """Where it raised `cause`, if a process that is started again gets there again: `in update 7`, `AT_START`, of a
    worker that has stepped `NO_SEGMENT`, or `BY_EXIT` where user code ended the process."""


class Tick(Struct, frozen=True):
    """Time passed."""


Event = Died | Tick


class Start(Struct, frozen=True):
    """Start the process now; `spawn` counts how often it was started before."""

    slot: ProcessSlot
    spawn: int


class RestartAfter(Struct, frozen=True):
    """Action: the process will be started again after `delay_s` (a `Start` follows)."""

    slot: ProcessSlot
    delay_s: float


class StopRestarting(Struct, frozen=True):
    """Action: the process will not be started again."""

    slot: ProcessSlot
    cause: str


class FailRun(Struct, frozen=True):
    """The run cannot continue."""

    cause: str


Action = Start | RestartAfter | StopRestarting | FailRun


def without_numbers(cause: str) -> str:
    """What an exception is recognised by: the same fault may name another seed, address or vector env."""
    return re.sub(r"-?\d+", "#", cause)


class Supervision:
    """Restarts a process at once, then with backoff while it dies again within the window.

    The restart limit is reached on the death after `restart.max` restarts within the window, or on a second death by
    the same exception at the same point: before the first step, or in one update of the learner, which continues from
    a checkpoint and so raises it again. Where a worker raises it in its first segment, the limit is reached once every
    worker does: until then others train, and it may pass.

    Without a remaining worker the run fails. Where other hosts may have workers, the launcher decides that.
    """

    def __init__(self, restart: RestartSection, workers: Iterable[int], alone: bool) -> None:
        """`workers`: indexes of this host's workers; `alone`: no other host can have any."""
        self._restart = restart
        self._alone = alone
        self._workers = _slots(workers)
        self._deaths: dict[ProcessSlot, list[float]] = defaultdict(list)
        self._raised: dict[ProcessSlot, tuple[str, str]] = {}
        self._spawns: dict[ProcessSlot, int] = defaultdict(int)
        self._due: dict[ProcessSlot, float] = {}
        self._fruitless: dict[ProcessSlot, str] = {}
        self.failed: set[ProcessSlot] = set()

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about `event` at monotonic time `now`, in seconds."""
        if isinstance(event, Died):
            return self._died(event, now)
        return [self._start(slot) for slot, due in sorted(self._due.items()) if due <= now]

    def set_workers(self, workers: Iterable[int]) -> None:
        """The workers of this host from now on: one that was removed is not restarted, and has not failed."""
        before, self._workers = self._workers, _slots(workers)
        for slot in before - self._workers:
            self._due.pop(slot, None)
            self._fruitless.pop(slot, None)
            self.failed.discard(slot)

    def delivered(self, slot: ProcessSlot) -> None:
        """The worker that runs now has delivered segments."""
        self._fruitless.pop(slot, None)
        self._raised.pop(slot, None)

    def next_due(self) -> float | None:
        """When the next `Tick` will start something."""
        return min(self._due.values(), default=None)

    def _start(self, slot: ProcessSlot) -> Start:
        del self._due[slot]
        self._spawns[slot] += 1
        return Start(slot, self._spawns[slot])

    def _died(self, event: Died, now: float) -> list[Action]:
        deaths = self._deaths[event.slot]
        deaths[:] = [t for t in deaths if now - t < self._restart.window_s] + [now]
        self._fruitless.pop(event.slot, None)
        if self._is_repeated(event, recently=len(deaths) > 1):
            if event.point == NO_SEGMENT:
                self._fruitless[event.slot] = event.cause
            if event.point != NO_SEGMENT or self._no_worker_gets_further(event.cause):
                return self._give_up(event)
        if event.code == BAD_CONFIGURATION or len(deaths) > self._restart.max:
            return self._stop_restarting(event)
        doublings = min(len(deaths) - 2, MOST_DOUBLINGS)
        backoff_s = min(self._restart.backoff_s * 2**doublings, self._restart.backoff_max_s)
        delay_s = backoff_s if len(deaths) > 1 else 0.0
        self._due[event.slot] = now + delay_s
        return [RestartAfter(event.slot, delay_s)]

    def _is_repeated(self, event: Died, recently: bool) -> bool:
        """Whether it is the same exception at the same point as last time; some points count within the window only."""
        if event.point is None:
            return False
        before, raised = self._raised.get(event.slot), (event.point, without_numbers(event.cause))
        self._raised[event.slot] = raised
        return raised == before and (recently or event.point not in (AT_START, NO_SEGMENT, BY_EXIT))

    def _no_worker_gets_further(self, cause: str) -> bool:
        """Whether all workers of the run that have not failed raise it before their first segment."""
        same = {slot for slot, raised in self._fruitless.items() if without_numbers(raised) == without_numbers(cause)}
        return self._alone and self._workers <= same | self.failed

    def _give_up(self, event: Died) -> list[Action]:
        """Restart no more after a repeated exception. If no worker remains, pending restarts are cancelled as well."""
        slots = {event.slot: event.cause} if event.point != NO_SEGMENT else self._fruitless
        actions: list[Action] = []
        for slot, cause in sorted(slots.items(), key=lambda item: item[0] == event.slot):
            if slot not in self.failed:
                self._due.pop(slot, None)
                actions += self._stop_restarting(replace(event, slot=slot, cause=f"{cause} (twice {event.point})"))
        return actions

    def _stop_restarting(self, event: Died) -> list[Action]:
        self.failed.add(event.slot)
        actions: list[Action] = [StopRestarting(event.slot, event.cause)]
        if event.slot.role in ("learner", "broker"):
            actions.append(FailRun(f"{event.slot} is not restarted: {event.cause}"))
        elif event.slot.role == "worker" and self._alone and self._workers <= self.failed:
            actions.append(FailRun(f"all rollout workers failed, the last was {event.slot}: {event.cause}"))
        return actions


def _slots(workers: Iterable[int]) -> frozenset[ProcessSlot]:
    return frozenset(ProcessSlot("worker", index) for index in workers)
