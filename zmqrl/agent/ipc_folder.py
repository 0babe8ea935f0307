"""The private folder of a run's ipc sockets: 0700, short (a socket path has 107 bytes), gone with the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from zmqrl.config.plan import Endpoints
from zmqrl.errors import ConfigError

SOCKET_PATH_LIMIT = 107


def run_folder_root(runtime_dir: str | None, uid: int) -> Path:
    """Where the folders of this user's runs are: `$XDG_RUNTIME_DIR/zmqrl`, else `/tmp/zmqrl-<uid>`."""
    if runtime_dir and os.access(runtime_dir, os.W_OK):
        return Path(runtime_dir) / "zmqrl"
    return Path("/tmp") / f"zmqrl-{uid}"


class IpcFolder:
    """Makes the folder and names the broker's endpoints in it."""

    def __init__(self, root: Path, run_id: str) -> None:
        root.mkdir(mode=0o700, exist_ok=True)
        if root.stat().st_uid != os.getuid() or root.stat().st_mode & 0o077:
            raise ConfigError(f"{root} is not private to this user: remove it, or mend it with `chmod 700 {root}`")
        self.path = root / run_id
        self.path.mkdir(mode=0o700, exist_ok=True)

    def endpoints(self) -> Endpoints:
        """One ipc socket per channel."""
        if len(os.fsencode(self.path)) + len("/descriptors") > SOCKET_PATH_LIMIT:
            raise ConfigError(f"{self.path} is too long for a socket path: set XDG_RUNTIME_DIR to a shorter one")
        return Endpoints(*(f"ipc://{self.path}/{name}" for name in ("segments", "descriptors", "notices", "control")))

    def close(self) -> None:
        """Remove the folder and what is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


def private_folder(run_id: str) -> Path:
    """Where the folder of a run is on this machine."""
    return run_folder_root(os.environ.get("XDG_RUNTIME_DIR"), os.getuid()) / run_id


def remove_left_folder(run_id: str) -> None:
    """What an agent that was killed could not remove. Every process of the run must have ended."""
    shutil.rmtree(private_folder(run_id), ignore_errors=True)
