"""Doing a fault to a real process."""

from __future__ import annotations

import os
import random
import resource
import signal
from pathlib import Path

from zmqrl.drill import witness
from zmqrl.drill.faults import Action, Fault
from zmqrl.supervision.process_table import ProcessId, is_alive

CUT, OVERWRITE = "cut", "overwrite"


def inject(fault: Fault, process: ProcessId, store: Path, record: Path) -> bool:
    """Do it. False when it cannot be done now (the process is gone, there is no checkpoint yet).

    `store`: the run's checkpoints; `record`: folder of the witness env's files.
    """
    if not is_alive(process):
        return False
    action = fault.kind.action
    if action is Action.STALL:
        return witness.stall(record, process.pid)
    if action is Action.NO_SPACE:
        return _limit_files(process, 0)
    if action in (Action.PAUSE, Action.HANG):
        return _signal(process, signal.SIGSTOP)
    if action is Action.DAMAGE:
        # Stopped first: a learner that goes on would write a newer one.
        return _signal(process, signal.SIGSTOP) and _damage(fault, store) and _signal(process, signal.SIGKILL)
    return _signal(process, signal.SIGKILL)


def relieve(fault: Fault, process: ProcessId) -> None:
    """The end of a pause or of a full disk; nothing to do when the process has been replaced meanwhile."""
    if fault.kind.action is Action.PAUSE:
        _signal(process, signal.SIGCONT)
    elif fault.kind.action is Action.NO_SPACE:
        _limit_files(process, resource.RLIM_INFINITY)


def _signal(process: ProcessId, number: signal.Signals) -> bool:
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _limit_files(process: ProcessId, nbytes: int) -> bool:
    """The soft limit alone, so that it can be lifted again by anyone."""
    try:
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        soft = hard if nbytes == resource.RLIM_INFINITY else nbytes
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
        return True
    except ProcessLookupError:
        return False


def _damage(fault: Fault, store: Path) -> bool:
    """Cut the newest FULL in the middle, or overwrite a part of it. True also when there is none: it is a kill then."""
    newest = max(store.glob("full-*.safetensors"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return True
    dice = random.Random(fault.number)
    size = newest.stat().st_size
    if dice.choice((CUT, OVERWRITE)) == CUT:
        os.truncate(newest, dice.randrange(size))
        return True
    with newest.open("r+b") as file:
        file.seek(dice.randrange(size))
        file.write(dice.randbytes(64))
    return True
