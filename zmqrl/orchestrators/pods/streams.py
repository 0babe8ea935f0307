"""Files to and from pods through the stdin and stdout of kubectl."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from zmqrl.errors import HostFailed
from zmqrl.orchestrators.pods.kubectl import failure

STALLED_S = 60.0
"""A copy of which no byte moves for so long has failed; the whole may take any time."""
CHECK_EVERY_S = 0.2


def stream(host: str, argv: Sequence[str], stdin: IO[bytes], stdout: IO[bytes]) -> list[str]:
    """Run a command of kubectl from a file to a file; the lines of its stderr. HostFailed, also for one that stalls.

    The command has the files themselves: nothing is held in memory, and the positions in them are its progress.
    """
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
        except OSError as error:
            raise HostFailed(host, f"kubectl cannot be started: {error.strerror}", "install kubectl here") from error
        with process:
            try:
                _await(host, process, (stdin.fileno(), stdout.fileno()))
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        stderr.seek(0)
        lines = stderr.read().decode(errors="replace").splitlines()
    if process.returncode:
        raise failure(host, argv, process.returncode, "\n".join(lines[-1:]))
    return lines


def _await(host: str, process: subprocess.Popen[bytes], files: Sequence[int]) -> None:
    before, moved_at = [0, 0], time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CHECK_EVERY_S)
            return
        positions = [os.lseek(file, 0, os.SEEK_CUR) for file in files]
        if positions != before:
            before, moved_at = positions, time.monotonic()
        elif time.monotonic() - moved_at > STALLED_S:
            cause = f"a copy stalled after {max(positions)} bytes: nothing was transferred for {STALLED_S:g} s"
            raise HostFailed(host, cause, "copy it again; check the connection to the API server")
