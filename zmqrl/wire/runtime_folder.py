"""The folder of this user's sockets on this machine: 0700, and short (a socket path has 107 bytes)."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zmqrl.config.plan import Endpoints
from zmqrl.errors import ConfigError

SOCKET_PATH_LIMIT = 107
RUNTIME_VARIABLE = "ZMQRL_RUNTIME_DIR"
TEMPORARY = "tmp-"
"""Prefix of temporary folders. The other folders there are those of runs."""
TMP = Path("/tmp")
RELEASE_S = 2.0
"""A process whose first thread has ended counts as ended; its lock is released with its last thread."""


def run_folder_root() -> Path:
    """Where the folders of this user's runs are: `$ZMQRL_RUNTIME_DIR`, else `/tmp/zmqrl-<uid>`.

    Not `$XDG_RUNTIME_DIR`, which is removed with the user's last login session: a run may continue after that.
    Where another user has taken the name in /tmp, `/tmp/zmqrl-<uid>-*` takes its place.
    """
    named = os.environ.get(RUNTIME_VARIABLE)
    if named:
        return Path(named)
    usual = TMP / f"zmqrl-{os.getuid()}"
    if not os.path.lexists(usual) or is_own(usual):
        return usual
    others = sorted(path for path in TMP.glob(f"{usual.name}-*") if is_own(path))
    return others[0] if others else Path(tempfile.mkdtemp(prefix=f"{usual.name}-", dir=TMP))


def make_private(folder: Path) -> None:
    """Make `folder` with mode 0700, if it is not there; the directory that it is in must exist.

    Raises:
        ConfigError: Something is there that another user owns or can enter.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_own(folder) or folder.lstat().st_mode & 0o077:
            what = f"is not private to this user: remove it, or run `chmod 700 {folder}`"
            raise ConfigError.about(folder, what) from None


def is_own(path: Path) -> bool:
    """Whether this user owns a folder, which is not a link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def read_own(path: Path) -> bytes:
    """The content of a file of this user, which is not a link, and which no other user can write to. OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is not waited for
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(f"it is not a file of this user, or others can write to it (chmod 600 {path})")
        return file.read()


class IpcFolder:
    """Makes the folder and names the broker's endpoints in it."""

    def __init__(self, root: Path, run_id: str) -> None:
        """ConfigError when `root` is not private to this user."""
        self.path = root / run_id
        make_private(root)
        make_private(self.path)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def endpoints(self) -> Endpoints:
        """One ipc socket per channel. ConfigError when their paths are too long."""
        check_length(self.path / "descriptors")
        return Endpoints(*(f"ipc://{self.path}/{name}" for name in ("segments", "descriptors", "notices", "control")))

    def close(self) -> None:
        """Remove the folder and what is in it. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def is_held(folder: Path) -> bool:
    """Whether a live agent holds the folder of a run, also one in a container, whose processes are not seen here."""
    try:
        with _locked(folder):
            return False
    except OSError as error:
        return isinstance(error, BlockingIOError)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A private folder for files of this process alone, removed at the end.

    The process holds a lock on it. If it is killed, the next one or `remove_left_folders` removes the folder.

    Raises:
        ConfigError: `run_folder_root` is not private.
        OSError: The folder cannot be made.
    """
    root = run_folder_root()
    make_private(root)
    remove_left_folders()
    made = Path(tempfile.mkdtemp(prefix="new-", dir=root))
    with _locked(made):
        folder = made.rename(root / f"{TEMPORARY}{made.name}")  # nobody looks for it before it is locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_left_folders() -> list[Path]:
    """Remove the temporary folders of processes that have ended, and return them."""
    removed = []
    for folder in run_folder_root().glob(f"{TEMPORARY}*"):
        with suppress(OSError), _locked(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def private_folder(run_id: str) -> Path:
    """Where the folder of a run is on this machine."""
    return run_folder_root() / run_id


def remove_left_folder(run_id: str) -> None:
    """What an agent that was killed could not remove. Every process of the run must have ended."""
    folder, until = private_folder(run_id), time.monotonic() + RELEASE_S
    while (held := is_held(folder)) and time.monotonic() < until:
        time.sleep(RELEASE_S / 20)
    if not held:
        shutil.rmtree(folder, ignore_errors=True)
    remove_left_folders()


def check_length(path: Path) -> None:
    """ConfigError when `path` is too long for a socket."""
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        what = f"is too long for a socket path: set {RUNTIME_VARIABLE} to a shorter path"
        raise ConfigError.about(path.parent, what)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """OSError: another process holds the lock, or `folder` cannot be opened."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
