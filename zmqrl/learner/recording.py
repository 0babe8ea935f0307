"""The stream of a run as a file on the learner's host (`run.record`), and the data set that is made of it at the end.

See decision 0045: docs/decisions/0045-a-recording-is-a-stream-until-the-end-of-the-run.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.capacity import disk_error
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.data_sets.episodes import episodes_of, frame_dtype
from zmqrl.data_sets.minari_files import DATA, h5py_of, write_data_set
from zmqrl.data_stores import files
from zmqrl.errors import ConfigError, StoreError
from zmqrl.learner.counters import Counters
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.types import FIXED_COLUMNS, Array

SEGMENTS, LAYOUT = "segments.bin", "segments.json"
KEY = "run", "record"


class Recording:
    """Appends each segment once, before its slot is released. The learner's main thread only.

    `counters.recorded` is the size of the file, so that a full checkpoint has it. In single and sync the file is
    truncated to that of the full checkpoint; async, which is not rolled back, keeps what is there.
    """

    def __init__(self, plan: RunPlan, spawn: int, counters: Counters, writer: RetryingWriter) -> None:
        """Open `run.record`, or continue it. ConfigError: it is of another run, or lacks what was recorded."""
        h5py_of("run.record")  # now, and not at the end of the run
        mode, self._plan, self._writer, self._counters = plan.config.mode, plan, writer, counters
        self._is_exact = plan.config.continues_episodes
        self.folder = folder_of(plan)
        self._dtype = frame_dtype(plan.columns)
        try:
            files.make_directory(str(self.folder))
            self._fd = files.open_to_write(str(self.folder / SEGMENTS))
            found = os.fstat(self._fd).st_size // self._dtype.itemsize * self._dtype.itemsize
            self._check(spawn, found)
            keeps_all = spawn > 0 and not mode.deterministic
            counters.recorded = found if keeps_all else counters.recorded
            files.truncate(self._fd, counters.recorded)
        except OSError as error:
            what = f"cannot be written: {disk_error(error, self.folder)}"
            raise ConfigError(what, key=KEY, value=repr(str(self.folder))) from error
        ids = self._frames()["id"]
        _, newest = np.unique(ids[::-1, 0], return_index=True)
        self._last = {v: (incarnation, index) for v, incarnation, index in ids[::-1][newest].tolist()}

    def _check(self, spawn: int, found: int) -> None:
        plan, layout = self._plan, self.folder / LAYOUT
        own = {"lineage": plan.lineage.id, "frame": [list(map(str, field)) for field in self._dtype.descr]}
        value = repr(str(self.folder))
        if found and (not layout.exists() or json.loads(layout.read_text(encoding="utf-8")) != own):
            what = "has the recording of another run, or of other segments"
            raise ConfigError(what, key=KEY, value=value, is_subject=True, fix="set another folder")
        if found and spawn == 0 and (not plan.resume or plan.from_scratch):
            what = "has the recording of earlier attempts, and the run starts at env step 0"
            raise ConfigError(what, key=KEY, value=value, is_subject=True, fix="move it, or set another folder")
        if found < self._counters.recorded:
            what = f"{SEGMENTS} has {found:,} bytes of the {self._counters.recorded:,} that the run has recorded"
            fix = "restore it, or set run.record: null to continue without a recording"
            raise ConfigError(what, key=KEY, value=value, fix=fix)
        files.replace(str(layout), [(0, json.dumps(own).encode())], str(self.folder / f".{LAYOUT}"), durable=True)

    def record(self, segments: Sequence[TakenSegment], columns: Mapping[str, Array]) -> None:
        """Append those of `segments` that are not in the file, in the order of vector envs.

        StoreError after `store.wait_s` of failures.
        """
        new = sorted((s for s in segments if s.meta.id[1:] > self._last_of(s)), key=lambda s: s.meta.id)
        if not new:
            return
        frames: Array = np.zeros(len(new), self._dtype)
        for number, segment in enumerate(new):
            incarnation, index = self._last_of(segment)
            vector_env, *now = segment.meta.id
            frames["id"][number], frames["rows"][number] = segment.meta.id, segment.meta.rows
            frames["continues"][number] = now[1] == index + 1 and (self._is_exact or now[0] == incarnation)
            for name in FIXED_COLUMNS:
                frames[name][number] = columns[name][segment.ref.slot]
            self._last[vector_env] = now[0], now[1]
        self._write(frames)

    def _last_of(self, segment: TakenSegment) -> tuple[int, int]:
        return self._last.get(segment.meta.id.vector_env, (-1, -2))

    def _write(self, frames: Array) -> None:
        content, at = frames.tobytes(), self._counters.recorded

        def write() -> None:
            try:
                files.write(self._fd, content, at)
            except OSError as error:
                raise StoreError("cannot be written", place=str(self.folder), cause=str(error)) from error

        self._writer.retry_until("the recording", write, "the run waits, retrying")
        self._counters.recorded = at + len(content)

    def sync(self) -> None:
        """What was recorded survives a power failure: before a full checkpoint that does. StoreError."""
        try:
            files.sync(self._fd)
        except OSError as error:
            raise StoreError("cannot be written", place=str(self.folder), cause=str(error)) from error

    def finish(self) -> None:
        """Write the data set of all that was recorded. A failure is reported: the stream has all of it."""
        plan = self._plan
        try:
            with self._writer.reporting():
                write_data_set(self.folder, plan.env, str(plan.config.algorithm["kind"]), episodes_of(self._frames()))
        except OSError as error:
            cause = f"{self.folder / DATA} cannot be written: {disk_error(error, self.folder)}"
            self._writer.report_problem(cause, "the recording has no data set; `zmqrl train --resume` writes it")

    def _frames(self) -> Array:
        path, count = self.folder / SEGMENTS, self._counters.recorded // self._dtype.itemsize
        empty: Array = np.zeros(0, self._dtype)
        return np.memmap(path, self._dtype, "r", shape=(count,)) if count else empty


def folder_of(plan: RunPlan) -> Path:
    """`run.record` on the learner's host; a relative path is one in the run directory."""
    return Path(plan.run_dir, expanded(plan.config.run.record or "", "run.record"))
