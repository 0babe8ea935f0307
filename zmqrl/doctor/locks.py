"""Who uses this host, from the register of host agents; whom to believe is decided there."""

from __future__ import annotations

import os
import time

from zmqrl.agent.host_lock import HostLock
from zmqrl.messages.doctor import Lock


def held_locks(register: HostLock) -> tuple[Lock, ...]:
    """The live ones, oldest first."""
    live = [entry for entry in register.entries() if entry.is_live]
    return tuple(
        Lock(entry.run_id, entry.user, entry.uid == os.getuid(), entry.pid, time.time() - entry.since, entry.workers)
        for entry in sorted(live, key=lambda entry: entry.since)
    )
