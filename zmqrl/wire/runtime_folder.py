"""The folder of this user's sockets on this machine: 0700, and short (a socket path has 107 bytes)."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from zmqrl.errors import ConfigError

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


def make_private(folder: Path) -> None:
    """Make `folder` with mode 0700, if it is not there; the directory that it is in must exist.

    Raises:
        ConfigError: Something is there that another user owns or can enter.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ConfigError(f"{folder} is not private to this user: remove it, or run `chmod 700 {folder}`") from None


def check_length(path: Path) -> None:
    """ConfigError when `path` is too long for a socket."""
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise ConfigError(f"{path.parent} is too long for a socket path: set {RUNTIME_VARIABLE} to a shorter path")


def _is_own(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
