"""What a host has: processors, memory, room on its disks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zmqrl.messages.doctor import Folder, Machine
from zmqrl.orchestrators.handshake import physical_cores
from zmqrl.shared_memory.memory import available_bytes

TRIAL_BYTES = 1 << 20
"""A directory counts as writable when this much could be written into it: permissions do not show quotas."""


def look_at_machine() -> Machine:
    """This host as it is now."""
    cores = physical_cores(Path("/sys/devices/system/cpu"))
    return Machine(cores, os.getloadavg()[0], available_bytes(), Path("/dev/nvidia0").exists())


def look_at_folder(path: str) -> Folder:
    """Free space, and whether a file can be written there; nothing is left behind and no directory is made."""
    whole = Path(path).expanduser().absolute()
    there = whole
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Folder(str(whole), str(there), 0, f"{there} is not a directory")
    try:
        space = os.statvfs(there)
        free = space.f_bavail * space.f_frsize
        return Folder(str(whole), str(there), free, _try_to_write(there))
    except OSError as error:
        return Folder(str(whole), str(there), 0, f"{there}: {error.strerror}")


def _try_to_write(there: Path) -> str | None:
    try:
        with tempfile.NamedTemporaryFile(prefix=".zmqrl-doctor-", dir=there) as file:
            file.write(bytes(TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())  # a full server may say so only now
    except OSError as error:
        return f"{there}: {error.strerror}"
    return None
