"""What a host has: processors, memory, room on its disks, runs that use it, and the store that others see too."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from zmqrl.acting.digest import acting_digests
from zmqrl.capacity import available_bytes, disk_error, free_inodes, usable_cores
from zmqrl.messages.doctor import Folder, Lock, Machine, Seen, Watching, Written
from zmqrl.messages.doctor_requests import Forget, Watch, Write
from zmqrl.supervision.gpus import VISIBLE, query, visible_gpus
from zmqrl.supervision.host_lock import HostLock

TRIAL_BYTES = 1 << 20
"""A directory counts as writable when this much could be written into it: permissions do not show quotas."""
PAUSE_S = 0.005


def examine_machine() -> Machine:
    """This host as it is now."""
    gpus = visible_gpus(query(), os.environ.get(VISIBLE)) or ()
    nvidia = bool(gpus) or Path("/dev/nvidia0").exists()
    return Machine(usable_cores(), os.getloadavg()[0], available_bytes(), nvidia, acting_digests(), tuple(gpus))


def examine_folder(path: str) -> Folder:
    """Free space, and whether a file can be written there; nothing is left behind and no directory is made."""
    whole = Path(path).expanduser().absolute()
    there = whole
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Folder(str(whole), str(there), 0, None, f"{there} is not a directory")
    try:
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        return Folder(str(whole), str(there), free, free_inodes(there), _try_to_write(there))
    except OSError as error:
        return Folder(str(whole), str(there), 0, None, f"{there}: {error.strerror}")


def _try_to_write(there: Path) -> str | None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".zmqrl-doctor-", dir=there) as file:
            file.write(bytes(TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())  # a full server may say so only now
    except OSError as error:
        return f"{there}: {disk_error(error, there)}"
    return None


def held_locks(register: HostLock) -> tuple[Lock, ...]:
    """The live ones, oldest first."""
    live = [entry for entry in register.entries() if entry.is_live]
    return tuple(
        Lock(
            entry.run_id,
            entry.user,
            entry.uid == os.getuid(),
            entry.pid,
            time.time() - entry.since,
            entry.workers,
            entry.launcher,
        )
        for entry in sorted(live, key=lambda entry: entry.since)
    )


def prepare(request: Watch) -> Watching:
    """Whether there is a directory to look into."""
    try:
        os.listdir(_watched(request))
    except OSError as error:
        return Watching(f"{_watched(request)}: {error.strerror}")
    return Watching(None)


def watch(request: Watch) -> Seen:
    """List until it is there. A name is never polled: NFS remembers for 30 s that it was absent."""
    until = time.monotonic() + request.limit_s
    folder = _watched(request)
    while True:
        try:
            if (
                request.name in os.listdir(folder)
                and (folder / request.name).read_text(encoding="utf-8") == request.token
            ):
                return Seen(request.name, time.time())
        except OSError:
            pass  # replaced or stale in this moment: the next listing shows it
        if time.monotonic() >= until:
            return Seen(request.name, None)
        time.sleep(PAUSE_S)


def write(request: Write) -> Written:
    """Write a file as the store writes: a temporary file, then its name."""
    folder = Path(request.path)
    temporary = folder / f"{request.name}.tmp"
    try:
        temporary.write_text(request.token, encoding="utf-8")
        temporary.rename(folder / request.name)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        return Written(request.name, time.time(), f"{folder}: {error.strerror}")
    return Written(request.name, time.time(), None)


def forget(request: Forget) -> None:
    """Safe when it is not there."""
    try:
        Path(request.path, request.name).unlink(missing_ok=True)
    except OSError:
        return


def _watched(request: Watch) -> Path:
    whole = Path(request.path).expanduser().absolute()
    return whole if request.up == 0 else whole.parents[request.up - 1]
