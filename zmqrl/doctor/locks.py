"""Who uses this host: the lock files of host agents, believed only as far as the kernel confirms them."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

from zmqrl.doctor.messages import Lock
from zmqrl.supervision.process_table import ProcessId, is_alive

FOLDER = Path("/tmp/zmqrl-agents")


def held_locks(folder: Path = FOLDER) -> tuple[Lock, ...]:
    """The live ones, oldest first. A file whose process is gone, or that says nothing sensible, is none."""
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return ()
    found = [lock for lock in map(_lock, paths) if lock is not None]
    return tuple(sorted(found, key=lambda lock: -(lock.age_s or 0.0)))


def _lock(path: Path) -> Lock | None:
    try:
        data = json.loads(path.read_text())
        process = ProcessId(int(data["pid"]), int(data["start_time"]))
        if not is_alive(process):
            return None
        # Anybody may write into that folder: whose process it is, the kernel says.
        uid = os.stat(f"/proc/{process.pid}").st_uid
        return Lock(str(data["run_id"]), _name_of(uid), uid == os.getuid(), process.pid, _age(data), _workers(data))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _age(data: dict[str, Any]) -> float | None:
    since = data.get("since")
    return time.time() - since if isinstance(since, (int, float)) else None


def _workers(data: dict[str, Any]) -> int | None:
    workers = data.get("workers")
    return len(workers) if isinstance(workers, list) else workers if isinstance(workers, int) else None
