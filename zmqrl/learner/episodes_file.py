"""`episodes.csv` (`run.episodes_csv`): a row for each training episode."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Iterable
from pathlib import Path

from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError, StoreError
from zmqrl.learner.counters import Counters
from zmqrl.learner.episodes import EndedEpisode
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.metrics.groups import EPISODES_CSV

COLUMNS = "attempt", "wall_s", "env_steps", "vector_env", "env", "return", "length", "incarnation", "segment"
"""`incarnation` and `segment` name the segment in which it ended."""


class EpisodesFile:
    """Appends the episodes of a batch when it is counted. The learner's main thread only.

    `counters.episodes_nbytes` is the size of the file, so that a full checkpoint has it: the file is truncated to it
    where the run is rolled back. A learner in async that follows one that died keeps what is there.
    """

    def __init__(self, plan: RunPlan, spawn: int, counters: Counters, writer: RetryingWriter) -> None:
        """Begin the file, or continue it. ConfigError: it cannot be written."""
        self._path, self._counters, self._writer = Path(plan.run_dir, EPISODES_CSV), counters, writer
        self._attempt, self._began = plan.lineage.attempt, plan.began
        self._last: dict[int, tuple[int, int]] = {}
        keeps_all = spawn > 0 and not plan.config.mode.deterministic
        try:
            content = self._path.read_bytes() if keeps_all else b""
            self._fd = files.open_to_write(str(self._path))
            found = content.rfind(b"\n") + 1 if keeps_all else min(counters.episodes_nbytes, os.fstat(self._fd).st_size)
            files.truncate(self._fd, found)
        except OSError as error:
            what = f"{self._path} cannot be written: {error.strerror}"
            raise ConfigError(what, key=("run", "episodes_csv"), value="true") from error
        counters.episodes_nbytes = found
        for row in csv.DictReader(content[:found].decode().splitlines()):
            self._last[int(row["vector_env"])] = int(row["incarnation"]), int(row["segment"])
        if not found:
            self._append(f"{','.join(COLUMNS)}\n")

    def record(self, episodes: Iterable[EndedEpisode]) -> None:
        """Append those whose segment is not in the file. StoreError after `store.wait_s` of failures."""
        wall_s, env_steps = round(time.monotonic() - self._began, 3), self._counters.env_steps
        lines = []
        for (vector_env, *segment), env, return_, length in episodes:
            if tuple(segment) > self._last.get(vector_env, (-1, -1)):
                values = self._attempt, wall_s, env_steps, vector_env, env, return_, length, *segment
                lines.append(f"{','.join(map(str, values))}\n")
        if lines:
            self._append("".join(lines))

    def sync(self) -> None:
        """The rows survive a power cut: before a full checkpoint that does. StoreError."""
        try:
            files.sync(self._fd)
        except OSError as error:
            raise StoreError("cannot be written", place=str(self._path), cause=str(error)) from error

    def _append(self, lines: str) -> None:
        content, at = lines.encode(), self._counters.episodes_nbytes

        def write() -> None:
            try:
                files.write(self._fd, content, at)
            except OSError as error:
                raise StoreError("cannot be written", place=str(self._path), cause=str(error)) from error

        self._writer.retry_until(EPISODES_CSV, write, "the run waits, retrying")
        self._counters.episodes_nbytes = at + len(content)
