"""A process in state D: the parent of a vfork, until its child ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import WAIT_S
from zmqrl.supervision.process_table import ProcessId, held_by_kernel, identify

CODE = """
import ctypes, os, time
parent = os.getpid()
ctypes.CDLL(None).vfork()
while os.getppid() == parent:
    time.sleep(0.05)
os._exit(0)
"""


@contextmanager
def held_process() -> Iterator[ProcessId]:
    """It ends with SIGKILL, as a process that waits for a disk would not."""
    with subprocess.Popen([sys.executable, "-c", CODE], stderr=subprocess.DEVNULL) as process:
        identity = identify(process.pid)
        assert identity is not None
        until = time.monotonic() + WAIT_S
        while not held_by_kernel(identity):
            assert time.monotonic() < until, Path(f"/proc/{process.pid}/status").read_text()
            time.sleep(0.01)
        try:
            yield identity
        finally:
            process.kill()
