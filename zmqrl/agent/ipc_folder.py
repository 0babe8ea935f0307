"""The private folder of a run's ipc sockets: 0700, short (a socket path has 107 bytes), gone with the run."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from zmqrl.config.plan import Endpoints
from zmqrl.errors import ConfigError
from zmqrl.wire.sockets import make_private

SOCKET_PATH_LIMIT = 107
RUNTIME_VARIABLE = "ZMQRL_RUNTIME_DIR"
TMP = Path("/tmp")


def run_folder_root() -> Path:
    """Where the folders of this user's runs are: `$ZMQRL_RUNTIME_DIR`, else `/tmp/zmqrl-<uid>`.

    Not `$XDG_RUNTIME_DIR`, which is removed with the user's last login session: a run may continue after that.
    Where another user has taken the name in /tmp, `/tmp/zmqrl-<uid>-*` takes its place.
    """
    named = os.environ.get(RUNTIME_VARIABLE)
    if named:
        return Path(named)
    usual = TMP / f"zmqrl-{os.getuid()}"
    if not os.path.lexists(usual) or _is_own(usual):
        return usual
    others = sorted(path for path in TMP.glob(f"{usual.name}-*") if _is_own(path))
    return others[0] if others else Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=TMP))


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


class IpcFolder:
    """Makes the folder and names the broker's endpoints in it."""

    def __init__(self, root: Path, run_id: str) -> None:
        """ConfigError when `root` is not private to this user."""
        self.path = root / run_id
        make_private(root)
        make_private(self.path)

    def endpoints(self) -> Endpoints:
        """One ipc socket per channel."""
        if len(os.fsencode(self.path)) + len("/descriptors") > SOCKET_PATH_LIMIT:
            raise ConfigError(f"{self.path} is too long for a socket path: set {RUNTIME_VARIABLE} to a shorter path")
        return Endpoints(*(f"ipc://{self.path}/{name}" for name in ("segments", "descriptors", "notices", "control")))

    def close(self) -> None:
        """Remove the folder and what is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


def private_folder(run_id: str) -> Path:
    """Where the folder of a run is on this machine."""
    return run_folder_root() / run_id


def remove_left_folder(run_id: str) -> None:
    """What an agent that was killed could not remove. Every process of the run must have ended."""
    shutil.rmtree(private_folder(run_id), ignore_errors=True)
