"""A mount whose file server has died, as a killed sshfs, s3fs or gcsfuse: every access is ENOTCONN. Needs root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MNT_DETACH = 2


@contextmanager
def dead_mount(folder: Path) -> Iterator[None]:
    """`folder` is such a mount inside. OSError: this machine has no FUSE, or this user may not mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"dead", bytes(folder), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(server)
    try:
        yield
    finally:
        libc.umount2(bytes(folder), MNT_DETACH)
