"""A disk that can be filled: a small tmpfs below a run's directory, in a mount namespace of the drill's own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from zmqrl.errors import ConfigError

DISK_MB = 64
FILLER = "filler"
CLONE_NEWNS = 0x00020000
_CHUNKS = (1 << 20, 4096, 1)


def mount(folder: Path, size_mb: int = DISK_MB) -> None:
    """`folder`, which is empty, becomes a tmpfs. Only this process and its children see it; it goes with the last.

    Raises:
        ConfigError: It cannot be mounted, for example without root.
    """
    _leave_namespace()
    _command("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "zmqrl-drill", str(folder))


def unmount(folder: Path) -> None:
    """`folder` is what it was before; the files of the tmpfs are gone."""
    _command("umount", "--lazy", str(folder))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """`folder` lies on a tmpfs until the end of `with`; then its files are copied to where it was.

    Raises:
        ConfigError: It cannot be mounted, for example without root.
    """
    folder.mkdir(parents=True)
    mount(folder)
    try:
        yield
    finally:
        release(folder)
        kept = folder.with_name(f".{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True)
        unmount(folder)
        folder.rmdir()
        kept.rename(folder)


def fill(folder: Path) -> float | None:
    """Take what is free, to the last byte: every later write fails with ENOSPC. None where `folder` is not a mount."""
    if not os.path.ismount(folder):
        return None
    with (folder / FILLER).open("ab", buffering=0) as file:
        for nbytes in _CHUNKS:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(nbytes))
    return 0.0


def release(folder: Path) -> None:
    """Give it back; safe to call again."""
    (folder / FILLER).unlink(missing_ok=True)


def _leave_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        what = f"cannot create a mount namespace: {os.strerror(ctypes.get_errno())}"
        raise ConfigError(what, key=("--small-disk",), fix="run as root")
    _command("mount", "--make-rprivate", "/")


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(words)}: {done.stderr.strip()}", key=("--small-disk",), fix="run as root")
