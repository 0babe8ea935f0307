"""One run taken through its faults: inject, watch, measure; in a thread of its own beside the other run's."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqrl.drill.faults import Fault
from zmqrl.drill.inject import inject, relieve
from zmqrl.drill.recovery import Look, Recovery
from zmqrl.drill.subject import Subject
from zmqrl.supervision.process_table import ProcessId

LOOK_EVERY_S = 0.03
START_S = 60.0
RECOVERY_S = 60.0
"""What has not recovered by then has not recovered."""
MOST_ENDS = 3
"""A run that ended by itself so often is left alone."""


@dataclass(frozen=True)
class Outcome:
    """What came of one fault."""

    fault: Fault
    injected_at_s: float
    """Seconds after the drill's first fault could have been."""
    recovered_s: float | None
    """None: it did not."""
    gone_s: float | None = None
    """agent, launcher: until no process of the run was left."""


@dataclass(frozen=True)
class Clock:
    """What both runs of a drill agree on."""

    for_s: float
    """How long faults are injected; those that had to wait for others may come later, up to twice as long."""
    begin: threading.Barrier
    """Both runs have begun to train."""
    stop: threading.Event
    """The drill was interrupted."""


@dataclass
class _Active:
    fault: Fault
    process: ProcessId
    injected_at: float
    relieve_at: float | None
    recovery: Recovery
    gone_s: float | None = None


@dataclass
class Session:
    """Used by its own thread until that has ended, then read."""

    subject: Subject
    faults: Sequence[Fault]
    record: Path
    """Folder of the witness env's files."""
    threshold: float | None = None
    """Go on without faults until the mean return of 100 episodes has reached it, or `budget_env_steps`."""
    budget_env_steps: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What should not have happened: the run ended by itself, or did not start."""
    exit_code: int | None = None
    faults_s: float = 0.0
    """From the first moment that a fault could come to the last recovery."""
    _active: list[_Active] = field(default_factory=list)
    _begun: float = 0.0
    _ends: int = 0

    def run(self, clock: Clock) -> None:
        """Start, drill, finish, stop. Errors of the run are noted, never raised."""
        self.subject.start()
        ready = self._await_progress(clock)
        clock.begin.wait()
        if not ready:
            self.failures.append(f"no version was published within {START_S:g} s: {self.subject.last_words()}")
        else:
            self._drill(clock)
            self._reach_threshold(clock)
        if not clock.stop.is_set():
            self.exit_code = self.subject.stop()

    def _await_progress(self, clock: Clock) -> bool:
        until = time.monotonic() + START_S
        while time.monotonic() < until and not clock.stop.wait(LOOK_EVERY_S):
            version = self.subject.look().version
            if version is not None and version.n > 0:
                return True
            if self.subject.exit_code is not None:
                return False
        return False

    def _drill(self, clock: Clock) -> None:
        pending = deque(self.faults)
        self._begun = time.monotonic()
        until = self._begun + 2 * clock.for_s + RECOVERY_S
        while (pending or self._active) and time.monotonic() < until and not clock.stop.wait(LOOK_EVERY_S):
            look = self.subject.look()
            if self.subject.exit_code is not None:
                self._ended_by_itself()
                if self._ends >= MOST_ENDS:
                    return
                continue
            self._watch(look)
            if pending and self._may_come(pending[0], look) and self._inject(pending[0], look):
                pending.popleft()
        self.faults_s = time.monotonic() - self._begun
        for active in self._active:
            self._note(active, None)
        if pending and not clock.stop.is_set():
            self.failures.append(f"{len(pending)} faults found no moment to come")

    def _may_come(self, fault: Fault, look: Look) -> bool:
        """A role has one fault at a time, and what takes the whole run has it for itself."""
        if time.monotonic() < self._begun + fault.at_s or fault.place not in look.processes:
            return False
        if fault.kind.ends_run:
            return not self._active and look.version is not None
        return all(a.fault.place != fault.place and not a.fault.kind.ends_run for a in self._active)

    def _inject(self, fault: Fault, look: Look) -> bool:
        process = look.processes[fault.place]
        now = time.monotonic()
        if not inject(fault, process, self.subject.checkpoints, self.record):
            return False
        recovery = Recovery(fault, look, now, own_stream=not self.subject.sync)
        active = _Active(fault, process, now, now + fault.hold_s if fault.hold_s else None, recovery)
        self._active.append(active)
        if fault.kind.ends_run:
            active.gone_s = self.subject.await_gone({**look.processes, **self.subject.processes()})
            self.subject.start(resume=True)
        return True

    def _watch(self, look: Look) -> None:
        now = time.monotonic()
        for active in list(self._active):
            if active.relieve_at is not None:
                if now >= active.relieve_at:
                    relieve(active.fault, active.process)
                    active.relieve_at = None
                    active.recovery = Recovery(active.fault, look, now, own_stream=not self.subject.sync)
            elif active.recovery.is_over(look):
                self._note(active, now - active.recovery.began)
            elif now - active.recovery.began > RECOVERY_S:
                self._note(active, None)

    def _note(self, active: _Active, recovered_s: float | None) -> None:
        if active in self._active:
            self._active.remove(active)
        at_s = active.injected_at - self._begun
        self.outcomes.append(Outcome(active.fault, round(at_s, 3), recovered_s, active.gone_s))

    def _ended_by_itself(self) -> None:
        """No fault of ours ends a run but those of launcher and agent: it is noted, and the run resumed."""
        self._ends += 1
        during = ", ".join(f"{a.fault.kind} of {a.fault.place}" for a in self._active) or "none"
        code, words = self.subject.exit_code, self.subject.last_words()
        self.failures.append(f"the run ended by itself with exit code {code}, faults in progress: {during}\n{words}")
        for active in list(self._active):
            self._note(active, None)
        self.subject.await_gone({})
        if self._ends < MOST_ENDS:
            self.subject.start(resume=True)

    def _reach_threshold(self, clock: Clock) -> None:
        """A short drill may end before the run could have learnt: it gets as long again, within its budget."""
        until = time.monotonic() + max(clock.for_s, START_S)
        while self.threshold is not None and time.monotonic() < until and self.subject.exit_code is None:
            status = self._status()
            mean = status.get("metrics", {}).get("train_return_mean_100")
            if (mean is not None and mean >= self.threshold) or status.get("env_steps", 0) >= self.budget_env_steps:
                return
            if clock.stop.wait(0.5):
                return

    def _status(self) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = json.loads((self.subject.run_dir / "status.json").read_text())
            return loaded
        except (OSError, ValueError):
            return {}
