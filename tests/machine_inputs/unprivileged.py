"""`unprivileged.py ARGV`: ARGV without what makes root pass the modes of files.

Another user, as by setuid, may not be able to read this checkout.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CAPABILITY_VERSION, PR_SET_SECUREBITS, SECBIT_NOROOT = 0x20080522, 28, 1


def drop_privileges() -> None:
    """Every capability of this process and of what it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0)  # without it what root starts has them again
    if libc.capset(struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    drop_privileges()
    os.execvp(sys.argv[1], sys.argv[1:])
