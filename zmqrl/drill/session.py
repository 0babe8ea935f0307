"""One run taken through its faults: inject, watch, measure; in a separate thread alongside the other run's."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace
from zmqrl.drill.faults import EVERY_PROCESS, FaultAction, PlannedFault
from zmqrl.drill.inject import DEEDS, Scene, end_attempt
from zmqrl.drill.recovery import LASTING, RecentDeaths, Recovery, RunSnapshot
from zmqrl.drill.run_under_test import RunUnderTest

POLL_EVERY_S = 0.03
START_S = 60.0
RECOVERY_S = 60.0
"""What has not recovered by then has not recovered."""
MOST_ENDS = 3
"""A run that ended unexpectedly this often is not resumed."""


@dataclass(frozen=True)
class FaultOutcome:
    """What came of one fault."""

    fault: PlannedFault
    injected_at_s: float
    """Seconds after the drill's first fault could have been."""
    recovered_s: float | None
    """None: it did not."""
    gone_s: float | None = None
    """Faults that end the attempt: until no process of the run was left."""
    spread_s: float = 0.0
    """Seconds from the first process that the fault was done to until the last one."""
    overlapped: bool = False
    """Whether another fault of this run was open in this one's time, or a death shortly before delayed the restart."""
    injected: bool = True
    """False: the process had ended before it could be killed in the end of its run."""


@dataclass(frozen=True)
class DrillClock:
    """What both runs of a drill agree on."""

    for_s: float
    """How long faults are injected; those that had to wait for others may come later, up to twice as long."""
    begin: threading.Barrier
    """Both runs have begun to train."""
    stop: threading.Event
    """The drill was interrupted."""


@dataclass
class _Active:
    fault: PlannedFault
    scene: Scene
    injected_at: float
    recovery: Recovery
    spread_s: float
    end_at: float | None
    """When the second step of its deed is due; infinite while a `kill-start` waits for the successor."""
    overlapped: bool = False
    gone_s: float | None = None
    injected: bool = True


@dataclass
class DrillSession:
    """Used by its own thread until that has ended, then read."""

    under_test: RunUnderTest
    faults: Sequence[PlannedFault]
    record: Path
    """Folder of the witness env's files."""
    threshold: float | None = None
    """Continue without faults until the mean return of 100 episodes has reached it, or `budget_env_steps`."""
    budget_env_steps: int = 0
    outcomes: list[FaultOutcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What should not have happened: the run ended unexpectedly, or did not start."""
    exit_code: int | None = None
    faults_s: float = 0.0
    """Seconds from the first moment that a fault could come to the last recovery."""
    _active: list[_Active] = field(default_factory=list)
    _deaths: RecentDeaths = field(default_factory=lambda: RecentDeaths(0.0))
    _begun: float = 0.0
    _ends: int = 0

    def run(self, clock: DrillClock) -> None:
        """Start, drill, finish, stop. Errors of the run are noted, never raised."""
        self.under_test.start()
        ready = self._await_progress(clock)
        clock.begin.wait()
        if not ready:
            self.failures.append(f"no version was published within {START_S:g} s: {self.under_test.log_tail()}")
        else:
            self._drill(clock)
            self._reach_threshold(clock)
            self._catch_up(clock)
        if not clock.stop.is_set():
            self.exit_code = self.under_test.stop()

    def _await_progress(self, clock: DrillClock) -> bool:
        until = time.monotonic() + START_S
        while time.monotonic() < until and not clock.stop.wait(POLL_EVERY_S):
            version = self.under_test.snapshot().version
            if version is not None and version.n > 0:
                return True
            if self.under_test.exit_code is not None:
                return False
        return False

    def _drill(self, clock: DrillClock) -> None:
        pending = deque(self.faults)
        self._deaths = RecentDeaths(self.under_test.plan.config.restart.window_s)
        self._begun = time.monotonic()
        until = self._begun + 2 * clock.for_s + RECOVERY_S
        while not clock.stop.wait(POLL_EVERY_S) and (now := time.monotonic()) < until:
            if not (pending or self._active) and now >= self._begun + clock.for_s:
                break  # a run without faults trains as long: it is checked too
            snapshot = self.under_test.snapshot()
            if self.under_test.exit_code is not None:
                self._ended_by_itself()
                if self._ends >= MOST_ENDS:
                    return
                continue
            self._watch(snapshot)
            if pending and self._may_come(pending[0], snapshot) and self._inject(pending[0], snapshot):
                pending.popleft()
        self.faults_s = time.monotonic() - self._begun
        self._end_deeds()
        for active in list(self._active):
            self._note(active, None)
        if pending and not clock.stop.is_set():
            self.failures.append(f"{len(pending)} faults were not injected before the end")

    def _may_come(self, fault: PlannedFault, snapshot: RunSnapshot) -> bool:
        """Once it is time, its processes are there, and it may overlap with each fault that is open."""
        if time.monotonic() < self._begun + fault.at_s or not {*fault.slots} <= {*snapshot.processes}:
            return False
        if fault.kind.ends_run and snapshot.version is None:
            return False
        if fault.kind.exclusive and not fault.kind.ends_run and "learner-0" not in snapshot.processes:
            return False
        return all(fault.may_overlap(active.fault) for active in self._active)

    def _inject(self, fault: PlannedFault, snapshot: RunSnapshot) -> bool:
        now = time.monotonic()
        slots = fault.slots or tuple(snapshot.processes)
        victims = [snapshot.processes[slot] for slot in slots]
        scene = Scene(victims, self.under_test.checkpoints, self.record, self.under_test.run_dir, fault.number)
        recovery = Recovery(fault, snapshot, now, own_stream=not self.under_test.sync)
        active = _Active(fault, scene, now, recovery, 0.0, None)
        if fault.kind.ends_run:
            ended = end_attempt(fault, self.under_test)
            active.gone_s, active.injected = ended.gone_s, ended.injected
            self.failures += [ended.failure] if ended.failure else []
        else:
            spread_s = DEEDS[fault.kind.action].begin(scene)
            if spread_s is None:
                return False
            active.spread_s = spread_s
            if DEEDS[fault.kind.action].end is not None:
                active.end_at = math.inf if fault.kind.action is FaultAction.KILL_START else now + fault.hold_s
        active.overlapped = self._deaths.delay(fault, now)
        for other in self._active:
            active.overlapped = other.overlapped = True
        self._active.append(active)
        return True

    def _watch(self, snapshot: RunSnapshot) -> None:
        now = time.monotonic()
        for active in list(self._active):
            if active.end_at is not None and now >= active.end_at:
                self._end_deed(active, snapshot, now)
            elif active.end_at == math.inf:
                self._await_successor(active, snapshot, now)
            elif active.end_at is not None:
                self._hold(active)
            elif active.recovery.is_over(snapshot):
                self._note(active, now - active.recovery.began)
            if active in self._active and now - active.recovery.began > RECOVERY_S:
                self._note(active, None)

    def _hold(self, active: _Active) -> None:
        again = DEEDS[active.fault.kind.action].again
        if again is not None:
            again(active.scene)

    def _end_deed(self, active: _Active, snapshot: RunSnapshot, now: float) -> None:
        end = DEEDS[active.fault.kind.action].end
        assert end is not None
        end(active.scene)
        if active.fault.kind.role == EVERY_PROCESS:
            # Processes that were started meanwhile inherited the limit; once their parents are free no more do.
            for _ in range(2):
                end(replace(active.scene, victims=list(self.under_test.processes().values())))
        active.end_at = None
        active.recovery = Recovery(active.fault, snapshot, now, own_stream=not self.under_test.sync)

    def _await_successor(self, active: _Active, snapshot: RunSnapshot, now: float) -> None:
        processes = [snapshot.processes.get(slot) for slot in active.fault.slots]
        successors = [process for process in processes if process and process not in active.scene.victims]
        if len(successors) == len(active.fault.slots):
            active.scene = replace(active.scene, victims=successors)
            active.end_at = now + active.fault.hold_s

    def _end_deeds(self) -> None:
        """End every fault that lasts, so that nothing stays stopped, limited or renamed."""
        for active in self._active:
            end = DEEDS[active.fault.kind.action].end if active.fault.kind.action in LASTING else None
            if end is not None and active.end_at is not None:
                end(active.scene)

    def _note(self, active: _Active, recovered_s: float | None) -> None:
        if active in self._active:
            self._active.remove(active)
        self._deaths.add(active.fault, time.monotonic())
        at_s = active.injected_at - self._begun
        rest = (active.gone_s, active.spread_s, active.overlapped, active.injected)
        self.outcomes.append(FaultOutcome(active.fault, round(at_s, 3), recovered_s, *rest))

    def _ended_by_itself(self) -> None:
        """An unexpected end of the run: it is noted, and the run resumed."""
        self._ends += 1
        self._end_deeds()
        during = ", ".join(str(a.fault.kind) for a in self._active) or "none"
        code, tail = self.under_test.exit_code, self.under_test.log_tail()
        self.failures.append(f"the run ended unexpectedly with exit code {code}, faults in progress: {during}\n{tail}")
        for active in list(self._active):
            self._note(active, None)
        self.under_test.await_gone({})
        if self._ends < MOST_ENDS:
            self.under_test.start(resume=True)

    def _reach_threshold(self, clock: DrillClock) -> None:
        """A short drill may end before the run could have learnt: it gets as long again, within its budget."""
        until = time.monotonic() + max(clock.for_s, START_S)
        while self.threshold is not None and time.monotonic() < until and self.under_test.exit_code is None:
            status = self._status()
            mean = status.get("metrics", {}).get("train_return_mean_100")
            if (mean is not None and mean >= self.threshold) or status.get("env_steps", 0) >= self.budget_env_steps:
                return
            if clock.stop.wait(0.5):
                return

    def _catch_up(self, clock: DrillClock) -> None:
        """Wait for the rounds that a sync learner repeats after a rollback to a FULL: the check needs all rows."""
        if not (self.under_test.witness and self.under_test.sync):
            return
        until = time.monotonic() + RECOVERY_S
        while self.under_test.exit_code is None and not clock.stop.wait(POLL_EVERY_S):
            version = self.under_test.snapshot().version
            if version is not None and version.n >= self.under_test.furthest_n:
                return
            if time.monotonic() > until:
                furthest_n = self.under_test.furthest_n
                self.failures.append(f"version {version} after {RECOVERY_S:g} s, and n was {furthest_n}")
                return

    def _status(self) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = json.loads((self.under_test.run_dir / "status.json").read_text(encoding="utf-8"))
            return loaded
        except (OSError, ValueError):
            return {}
