"""Faults done to real processes: what is done at its moment, what `hold_s` later, and those that end an attempt."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zmqrl.drill import witness
from zmqrl.drill.faults import WHOLE_RUN, FaultAction, PlannedFault
from zmqrl.drill.run_under_test import LAUNCHER, RunUnderTest
from zmqrl.drill.small_disk import fill, release
from zmqrl.supervision.process_table import ProcessId, is_alive

POLL_EVERY_S = 0.002
APPEAR_S = 30.0
"""How long a process of a resumed run may take to appear."""
CUT, OVERWRITE = "cut", "overwrite"


@dataclass(frozen=True)
class AttemptEnded:
    """How an attempt ended; the next one has been started."""

    gone_s: float | None
    """Until no process was left; None for an attempt that ended as requested."""
    injected: bool
    """False: the process had ended before it could be killed."""
    failure: str | None = None


def end_attempt(fault: PlannedFault, run: RunUnderTest) -> AttemptEnded:
    """Do it, wait until nothing is left, and resume."""
    if fault.kind.action is FaultAction.KILL_END:
        ended = _kill_in_end(fault, run)
        run.start(resume=True)
        return ended
    if fault.kind.action is FaultAction.KILL_RESUME:
        return _kill_in_resume(fault, run)
    before = run.snapshot().processes
    injected = signalled([before[p] for p in fault.slots if p in before], signal.SIGKILL) is not None
    return AttemptEnded(_resume(run, before), injected)


def _resume(run: RunUnderTest, before: Mapping[str, ProcessId]) -> float:
    gone_s = run.await_gone(before)
    run.start(resume=True)
    return gone_s


def _kill_in_resume(fault: PlannedFault, run: RunUnderTest) -> AttemptEnded:
    before = run.snapshot().processes
    signalled([before[LAUNCHER]], signal.SIGKILL)
    gone_s = _resume(run, before)
    process = _appeared(run, fault.slots[0])
    if process is None:
        return AttemptEnded(gone_s, injected=False)
    time.sleep(fault.hold_s)
    before = run.snapshot().processes
    injected = signalled([process], signal.SIGKILL) is not None
    if fault.kind.role in WHOLE_RUN:
        gone_s = max(gone_s, _resume(run, before))
    return AttemptEnded(gone_s, injected)


def _appeared(run: RunUnderTest, slot: str) -> ProcessId | None:
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until and run.exit_code is None:
        process = run.snapshot().processes.get(slot)
        if process is not None:
            return process
        time.sleep(POLL_EVERY_S)
    return None


def _kill_in_end(fault: PlannedFault, run: RunUnderTest) -> AttemptEnded:
    """The learner while it comes to its last version; another once the first process of the run has ended."""
    before = run.snapshot().processes
    run.request_stop()
    if fault.kind.role == "learner":
        time.sleep(fault.hold_s)
    else:
        _await_first_end(run, before)
    victims = [p for slot, p in run.snapshot().processes.items() if slot.startswith(f"{fault.kind.role}-")]
    injected = bool(victims) and signalled(victims[:1], signal.SIGKILL) is not None
    if injected and fault.kind.role in WHOLE_RUN:
        return AttemptEnded(run.await_gone(before), injected)
    code = run.await_end(before, broker_killed=injected and fault.kind.role == "broker")
    if code == 0:
        return AttemptEnded(None, injected)
    return AttemptEnded(None, injected, f"exit code {code} of a stop with {fault.kind}, not 0:\n{run.log_tail()}")


def _await_first_end(run: RunUnderTest, before: Mapping[str, ProcessId]) -> None:
    """Training is over, and its processes are being ended."""
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until and run.exit_code is None:
        if before.items() - run.snapshot().processes.items():
            return
        time.sleep(POLL_EVERY_S)


@dataclass(frozen=True)
class Scene:
    """What a fault may touch."""

    victims: Sequence[ProcessId]
    store: Path
    """Directory of the run's checkpoints."""
    record: Path
    """Folder of the witness env's files."""
    run_dir: Path = Path()
    """Directory of the run."""
    number: int = 0
    """Number of the fault; seeds what is left to chance."""


class Deed(NamedTuple):
    """Two steps. `begin` returns how many seconds lay between the first and the last process that it was done to.

    None when it cannot be done now: a process is gone, its env has not stepped yet, the store is not there.
    """

    begin: Callable[[Scene], float | None]
    end: Callable[[Scene], object] | None = None
    """`hold_s` later."""
    again: Callable[[Scene], object] | None = None
    """At every snapshot until then."""


def signalled(victims: Iterable[ProcessId], number: signal.Signals) -> float | None:
    """Signal all of them in one loop, each known by its pidfd before; None when one is gone, and none was signalled.

    Returns the seconds from the first signal to the last.
    """
    with contextlib.ExitStack() as stack:
        pidfds = []
        for process in victims:
            try:
                pidfds.append(os.pidfd_open(process.pid))
            except ProcessLookupError:
                return None
            stack.callback(os.close, pidfds[-1])
            if not is_alive(process):
                return None
        begun = time.perf_counter()
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):  # it died in this very moment, of another's death
                signal.pidfd_send_signal(pidfd, number)
        return time.perf_counter() - begun


def _signal(number: signal.Signals) -> Callable[[Scene], float | None]:
    return lambda scene: signalled(scene.victims, number)


def _continue(scene: Scene) -> None:
    """Each that is still there: one of them may have been replaced meanwhile."""
    for process in scene.victims:
        signalled([process], signal.SIGCONT)


def _stall(scene: Scene) -> float | None:
    return 0.0 if all(witness.stall(scene.record, process.pid) for process in scene.victims) else None


def _limit_files(scene: Scene) -> float:
    begun = time.perf_counter()
    for process in scene.victims:
        _limit(process, 0)
    return time.perf_counter() - begun


def _lift_limits(scene: Scene) -> None:
    for process in scene.victims:
        _limit(process, resource.RLIM_INFINITY)


def _limit(process: ProcessId, nbytes: int) -> None:
    """The soft limit alone, so that it can be lifted again by anyone."""
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        soft = hard if nbytes == resource.RLIM_INFINITY else nbytes
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))


def _fill(scene: Scene) -> float | None:
    return fill(scene.run_dir)


def _away(store: Path) -> Path:
    return store.with_name(f"{store.name}.away")


def _take_store_away(scene: Scene) -> float | None:
    try:
        scene.store.rename(_away(scene.store))
        return 0.0
    except FileNotFoundError:
        return None


def _take_store_away_and_kill(scene: Scene) -> float | None:
    if _take_store_away(scene) is None:
        return None
    spread_s = signalled(scene.victims, signal.SIGKILL)
    if spread_s is None:
        bring_store_back(scene)
    return spread_s


def bring_store_back(scene: Scene) -> None:
    """What was written in its place meanwhile is put aside, as below a mount point."""
    away = _away(scene.store)
    if away.exists():
        if scene.store.exists():
            scene.store.rename(scene.store.with_name(f"{scene.store.name}.meanwhile-{scene.number}"))
        away.rename(scene.store)


def _damage_and_kill(scene: Scene) -> float | None:
    # Stopped first: a learner that continues would write a newer one.
    if signalled(scene.victims, signal.SIGSTOP) is None:
        return None
    _damage(scene)
    return signalled(scene.victims, signal.SIGKILL)


def _damage(scene: Scene) -> None:
    """Cut the newest FULL in the middle, or overwrite a part of it. Nothing when there is none: it is a kill then."""
    newest = max(scene.store.glob("full-*.safetensors"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return
    dice = random.Random(scene.number)
    size = newest.stat().st_size
    if dice.choice((CUT, OVERWRITE)) == CUT:
        os.truncate(newest, dice.randrange(size))
        return
    with newest.open("r+b") as file:
        file.seek(dice.randrange(size))
        file.write(dice.randbytes(64))


_kill = _signal(signal.SIGKILL)
DEEDS: Mapping[FaultAction, Deed] = {
    FaultAction.KILL: Deed(_kill),
    FaultAction.KILL_START: Deed(_kill, _kill),
    FaultAction.PAUSE: Deed(_signal(signal.SIGSTOP), _continue),
    FaultAction.HANG: Deed(_signal(signal.SIGSTOP)),
    FaultAction.STALL: Deed(_stall),
    FaultAction.DAMAGE: Deed(_damage_and_kill),
    FaultAction.NO_SPACE: Deed(_limit_files, _lift_limits),
    FaultAction.DISK_FULL: Deed(_fill, lambda scene: release(scene.run_dir), _fill),
    FaultAction.STORE_AWAY: Deed(_take_store_away, bring_store_back),
    FaultAction.KILL_AWAY: Deed(_take_store_away_and_kill, bring_store_back),
}
"""Deeds of the actions that leave the attempt alive; `end_attempt` does the others."""
