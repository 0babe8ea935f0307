"""What the GPUs of a host are used for, for `zmqrl status`: nvidia-smi is started, and read once it has ended."""

from __future__ import annotations

import subprocess

from zmqrl.supervision.gpus import (
    GPU_COMMAND,
    PROCESS_COMMAND,
    QUERY_S,
    end_query,
    has_nvidia_smi,
    owner_of,
    parse,
    start_query,
)
from zmqrl.types import Gpu

EVERY_S = 30.0


class GpuMeter:
    """Called every few seconds by the agent's loop, which never waits for it."""

    def __init__(self) -> None:
        self._is_there = has_nvidia_smi()
        self._queries: list[subprocess.Popen[bytes]] = []
        """Queries of the GPUs, and of the processes on them. What they print fits into a pipe."""
        self._begun_at = -float("inf")

    def sample(self, now: float) -> list[Gpu] | None:
        """The GPUs, when a query has ended since the last call. `now` in monotonic seconds."""
        if self._queries:
            return self._read(now)
        if self._is_there and now - self._begun_at >= EVERY_S:
            self._begun_at = now
            try:
                for command in (GPU_COMMAND, PROCESS_COMMAND):
                    self._queries.append(start_query(command))
            except OSError:  # no process or descriptor is left at the moment
                self.close()
        return None

    def close(self) -> None:
        """End what still runs; a process that the driver holds is not waited for."""
        for query in self._queries:
            end_query(query)
        self._queries = []

    def _read(self, now: float) -> list[Gpu] | None:
        """A query that the driver holds outlives its kill: no other is started until it is reaped."""
        if any(query.poll() is None for query in self._queries):
            if now - self._begun_at >= QUERY_S:
                for query in self._queries:
                    query.kill()
            return None
        was_killed = any(query.returncode < 0 for query in self._queries)
        gpus, processes = map(_output, self._queries)
        self.close()
        return None if was_killed else parse(gpus, processes, owner_of) or None


def _output(query: subprocess.Popen[bytes]) -> str:
    """Empty when it has failed."""
    if query.returncode or query.stdout is None:
        return ""
    return query.stdout.read().decode(errors="replace")
