"""Faults that end an attempt of a run: kills of its launcher or host agent, while it ends, and as it resumes."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from zmqrl.drill.faults import WHOLE_RUN, Action, Fault
from zmqrl.drill.inject import signalled
from zmqrl.drill.subject import LAUNCHER, Subject
from zmqrl.supervision.process_table import ProcessId

LOOK_EVERY_S = 0.002
APPEAR_S = 30.0
"""How long a process of a resumed run may take to appear."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended; the next one has been started."""

    gone_s: float | None
    """Until no process was left; None for an attempt that ended as requested."""
    injected: bool
    """False: the process had ended before it could be killed."""
    failure: str | None = None


def end_attempt(fault: Fault, subject: Subject) -> Ended:
    """Do it, wait until nothing is left, and resume."""
    if fault.kind.action is Action.KILL_END:
        ended = _kill_in_end(fault, subject)
        subject.start(resume=True)
        return ended
    if fault.kind.action is Action.KILL_RESUME:
        return _kill_in_resume(fault, subject)
    before = subject.look().processes
    injected = signalled([before[p] for p in fault.places if p in before], signal.SIGKILL) is not None
    return Ended(_resume(subject, before), injected)


def _resume(subject: Subject, before: Mapping[str, ProcessId]) -> float:
    gone_s = subject.await_gone(before)
    subject.start(resume=True)
    return gone_s


def _kill_in_resume(fault: Fault, subject: Subject) -> Ended:
    before = subject.look().processes
    signalled([before[LAUNCHER]], signal.SIGKILL)
    gone_s = _resume(subject, before)
    process = _appeared(subject, fault.places[0])
    if process is None:
        return Ended(gone_s, injected=False)
    time.sleep(fault.hold_s)
    before = subject.look().processes
    injected = signalled([process], signal.SIGKILL) is not None
    if fault.kind.role in WHOLE_RUN:
        gone_s = max(gone_s, _resume(subject, before))
    return Ended(gone_s, injected)


def _appeared(subject: Subject, place: str) -> ProcessId | None:
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until and subject.exit_code is None:
        process = subject.look().processes.get(place)
        if process is not None:
            return process
        time.sleep(LOOK_EVERY_S)
    return None


def _kill_in_end(fault: Fault, subject: Subject) -> Ended:
    """The learner while it comes to its last version; another once the first process of the run has ended."""
    before = subject.look().processes
    subject.ask_to_stop()
    if fault.kind.role == "learner":
        time.sleep(fault.hold_s)
    else:
        _await_first_end(subject, before)
    victims = [p for place, p in subject.look().processes.items() if place.startswith(f"{fault.kind.role}-")]
    injected = bool(victims) and signalled(victims[:1], signal.SIGKILL) is not None
    if injected and fault.kind.role in WHOLE_RUN:
        return Ended(subject.await_gone(before), injected)
    code = subject.await_end(before)
    if code == 0:
        return Ended(None, injected)
    return Ended(None, injected, f"exit code {code} of a stop with {fault.kind}, not 0:\n{subject.last_words()}")


def _await_first_end(subject: Subject, before: Mapping[str, ProcessId]) -> None:
    """Training is over, and its processes are being ended."""
    until = time.monotonic() + APPEAR_S
    while time.monotonic() < until and subject.exit_code is None:
        if before.items() - subject.look().processes.items():
            return
        time.sleep(LOOK_EVERY_S)
