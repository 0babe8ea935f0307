"""Checkpoints of a learner on another host: there before it resumes, and back here when the run is over."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from zmqrl.errors import HostFailed
from zmqrl.orchestrators.ssh_commands import far
from zmqrl.orchestrators.ssh_connection import Connection

LIST_S = 15.0
FULLS = 2
_NAME = re.compile(r"(v|full-|best-)(\d+)-(\d+)\.safetensors")


def send(connection: Connection, checkpoints: Path, folder: str) -> None:
    """The newest FULL checkpoints of the run directory into the far `folder`. HostFailed when they cannot be sent."""
    names = [path.name for path in checkpoints.glob("full-*.safetensors")]
    for name in _newest(names, "full-", FULLS):
        connection.put(checkpoints / name, f"{folder}/{name}")


def collect(connection: Connection, folder: str, checkpoints: Path) -> None:
    """The final version, the best one and the last FULL. HostFailed when they cannot be had."""
    listed = connection.run(f"ls {far(folder)}", LIST_S)
    if listed.code != 0:
        raise HostFailed(
            connection.target.host, f"its checkpoints in {folder} cannot be listed", "look there for what is left"
        )
    names = listed.stdout.decode(errors="replace").split()
    checkpoints.mkdir(parents=True, exist_ok=True)
    wanted = (*_newest(names, "v", 1), *_newest(names, "best-", 1), *_newest(names, "full-", FULLS))
    for name in wanted:
        connection.get(f"{folder}/{name}", checkpoints / name)


def remove(connection: Connection, folder: str) -> None:
    """The far run folder of one host, and the run's when nothing else is in it."""
    connection.remove_tree(folder)
    connection.run(f"rmdir {far(posixpath.dirname(folder))}", LIST_S)


def _newest(names: Iterable[str], kind: str, most: int) -> list[str]:
    found = [(int(m[2]), int(m[3]), m[0]) for name in names if (m := _NAME.fullmatch(name)) and m[1] == kind]
    return [name for _, _, name in sorted(found)[-most:]]
