"""The operations on files that durability rests on; `DirectoryStore` and the run directory write by these alone.

What survives a power cut: the content of a file up to its last `sync`, and the names in a directory up to its last
`sync_directory`. Everything else may be there, be lost, or hold zeros. Tests replace these functions by recording ones.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from zmqrl.capacity import disk_error
from zmqrl.errors import ConfigError, key_of

Buffer = bytes | bytearray | memoryview
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP})


def open_to_write(path: str) -> int:
    """A descriptor; the file is created where it does not exist, else it keeps its content."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def write(fd: int, content: Buffer, offset: int) -> None:
    """All of `content`, from byte `offset` on."""
    rest = memoryview(content).cast("B")
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def truncate(fd: int, nbytes: int) -> None:
    """The file ends at `nbytes`."""
    os.ftruncate(fd, nbytes)


def sync(fd: int) -> None:
    """The file's content and size survive a power cut from now on."""
    os.fsync(fd)


def rename(path: str, to: str) -> None:
    """Replaces `to`."""
    os.rename(path, to)


def unlink(path: str) -> None:
    """Remove the name."""
    os.unlink(path)


def mkdir(path: str) -> None:
    """One directory, whose parent exists."""
    os.mkdir(path)


def sync_directory(path: str) -> None:
    """The directory's names survive a power cut from now on. A file system without this operation is accepted."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """`sync` of a file that was written and closed before, by whomever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """Make it and its missing parents, each durable in the directory above it."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        try:
            sync_directory(os.path.dirname(directory))
        except OSError:  # the next one would succeed, and a directory that is there is not synced again
            with contextlib.suppress(OSError):
                os.rmdir(directory)
            raise


def replace(path: str, pieces: Iterable[tuple[int, Buffer]], temporary: str, durable: bool) -> int:
    """Write (offset, bytes) `pieces` to `temporary`, rename it to `path`; returns the size in bytes.

    With `durable` content and name survive a power cut once this returns. A reader finds the old file or the new one.
    """
    fd, nbytes = open_to_write(temporary), 0
    try:
        if os.fstat(fd).st_nlink > 1:  # a hard link of a backup (`cp -al`): its content stays as it is
            os.close(fd)
            unlink(temporary)
            fd = open_to_write(temporary)
        for offset, piece in pieces:
            write(fd, piece, offset)
            nbytes = max(nbytes, offset + memoryview(piece).nbytes)
        truncate(fd, nbytes)
        keep_owner(temporary, path)
        if durable:
            sync(fd)
    finally:
        os.close(fd)  # NFS reports deferred write errors here
    rename(temporary, path)
    if durable:
        sync_directory(os.path.dirname(path))
    return nbytes


def keep_owner(path: str, of: str) -> None:
    """Give `path` the owner of `of`, as root: the commands of a user refuse a run with files of another user."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # `of` does not exist, or a server refuses it
            found = os.stat(of)
            os.chown(path, found.st_uid, found.st_gid, follow_symlinks=False)


def check_file(key: str, path: Path) -> None:
    """Raise `ConfigError` naming `key`, if any, when no file can be written at `path`. Nothing is left there."""
    folder = path.absolute().parent
    if not folder.is_dir():
        why = "is not a directory" if folder.exists() else "does not exist"
        raise _unwritable(key, path, f"{folder} {why}")
    try:
        if path.exists():
            path.open("ab").close()
        else:
            os.rmdir(tempfile.mkdtemp(prefix=".zmqrl-", dir=folder))
    except OSError as error:
        raise _unwritable(key, path, disk_error(error, path)) from error


def _unwritable(key: str, path: Path, why: str) -> ConfigError:
    what = f"cannot be written: {why}"
    return ConfigError(what, key=(key,), value=str(path)) if key else ConfigError(what, source=str(path))


def check_writable(key: str, path: Path) -> None:
    """Raise `ConfigError` naming `key` when `path` is not, and cannot become, a directory that can be written."""
    there = path
    try:
        while not _exists(there) and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise ConfigError(
                f"cannot be created: {there} is not a directory",
                key=key_of(key),
                value=repr(str(path)),
                is_subject=True,
            )
        # Asking for permission is not enough: root may write anywhere, but not into /proc or a read-only mount.
        os.rmdir(tempfile.mkdtemp(prefix=".zmqrl-", dir=there))
    except OSError as error:
        why = f"creating a file in {there} failed: {disk_error(error, there)}"
        raise ConfigError(
            f"cannot be written: {why}", key=key_of(key), value=repr(str(path)), is_subject=True
        ) from error


def _exists(path: Path) -> bool:
    """Whether the path exists, as `os.path.lexists`. OSError: the file system does not answer."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
