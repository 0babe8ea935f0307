"""What the GPUs of a host are used for, for `zmqrl status`: nvidia-smi is started, and read once it has ended."""

from __future__ import annotations

import contextlib
import subprocess

from zmqrl.supervision.gpus import GPU_COMMAND, PROCESS_COMMAND, QUERY_S, has_nvidia_smi, owner_of, parse
from zmqrl.types import Gpu

EVERY_S = 30.0
KILL_S = 0.1


class GpuMeter:
    """Called every few seconds by the agent's loop, which never waits for it."""

    def __init__(self) -> None:
        self._is_there = has_nvidia_smi()
        self._queries: list[subprocess.Popen[bytes]] = []
        """Of the GPUs, and of the processes on them. What they print fits into a pipe."""
        self._begun_at: float | None = None

    def sample(self, now: float) -> list[Gpu] | None:
        """The GPUs, when a query has ended since the last call. `now` in monotonic seconds."""
        if self._queries:
            return self._read(now)
        if self._is_there and (self._begun_at is None or now - self._begun_at >= EVERY_S):
            self._begun_at = now
            try:
                self._queries = [_started(GPU_COMMAND), _started(PROCESS_COMMAND)]
            except OSError:
                self._is_there = False
        return None

    def close(self) -> None:
        """End what still runs; a process that the driver holds is not waited for."""
        for query in self._queries:
            if query.poll() is None:
                query.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    query.wait(KILL_S)
            if query.stdout is not None:
                query.stdout.close()
        self._queries = []

    def _read(self, now: float) -> list[Gpu] | None:
        found = None
        if all(query.poll() is not None for query in self._queries):
            gpus, processes = map(_output, self._queries)
            found = parse(gpus, processes, owner_of)
        elif self._begun_at is not None and now - self._begun_at < QUERY_S:
            return None
        self.close()
        return found or None


def _started(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _output(query: subprocess.Popen[bytes]) -> str:
    """Empty when it has failed."""
    if query.returncode or query.stdout is None:
        return ""
    return query.stdout.read().decode(errors="replace")
