"""Output of native libraries, which write to the descriptor of standard output and pass by `sys.stdout`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

STDOUT = 1


@contextlib.contextmanager
def native_output_hidden() -> Iterator[None]:
    """Inside, nothing that is written to descriptor 1 is shown: banners of ALE and MuJoCo would stand before JSON.

    In the main thread only: the output of other threads would be hidden too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        kept = os.dup(STDOUT)
    except OSError:  # it is closed
        yield
        return
    _to_null()
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C has buffered would be written later
        os.dup2(kept, STDOUT)
        os.close(kept)


def _to_null() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, STDOUT)
    os.close(null)
