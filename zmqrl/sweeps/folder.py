"""The folder of a sweep: `sweep.json`, its records, and a run directory for each trial and seed.

Records are created by a link, as those of a queue are, and are read once. `records/trial-<n>` has the
parameters of a trial, `records/value-<trial>-<seed>-<stage>` the value of a version of its run. The folder may be
another user's: its content is data alone, and no pipe is waited for.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from zmqrl.config.codec import object_of, replace, to_json
from zmqrl.config.paths import content_of, regular
from zmqrl.data_stores.checkpoints import checkpoint_names, names_in
from zmqrl.errors import ConfigError, StoreError, WireError
from zmqrl.messages.files import decode
from zmqrl.queue.folder import OF_A_FILE
from zmqrl.queue.records import Job, Records
from zmqrl.run_files.run_list import HEAD_BYTES
from zmqrl.run_files.stored_config import read_config, stored_place
from zmqrl.supervision import owner_record
from zmqrl.sweeps.sweep_file import Sweep, faults
from zmqrl.sweeps.trials import LAST, Trial
from zmqrl.types import Finite

SWEEP, STOPPED, RECORDS = "sweep.json", "stopped", "records"
_COUNT = re.compile(rb'"(env_steps|updates)":"(\d{1,18})"')
_VALUE = re.compile(r"value-(\d{1,6})-(\d{1,6})-(\d{1,6})")


class ValueRecord(Struct, frozen=True):
    """`value-<trial>-<seed>-<stage>`. None: the evaluation failed."""

    value: Finite | None


class SweepFolder:
    """Reads and writes the records. OSError: the file system is away or full."""

    def __init__(self, path: Path) -> None:
        """ConfigError: `path` is not the folder of a sweep."""
        self.path = Path(os.path.realpath(path))  # the jobs of a sweep are known by their run directories
        self._known: dict[str, Any] = {}
        self._done: dict[str, int] = {}
        """Env steps, or updates of mode offline, by path of a checkpoint."""
        try:
            self.sweep = decode(Sweep, _content(path / SWEEP))
            for key, what, _ in faults(self.sweep.keys):
                raise WireError(".".join(key), what)
        except (WireError, ValueError) as error:
            what, fix = f"is not the folder of a sweep: {error}", "zmqrl sweep FILE makes one"
            raise ConfigError.about(path, what, fix) from error

    @classmethod
    def create(cls, path: Path, sweep: Sweep) -> SweepFolder:
        """The folder of `sweep`, which may be there. ConfigError: it is that of another one."""
        (path / RECORDS).mkdir(parents=True, exist_ok=True)
        content = _encoded(sweep)
        owner_record.create(path / SWEEP, content)
        found = cls(path)
        if replace(found.sweep, jobs_before=sweep.jobs_before) != decode(Sweep, content):
            fix = f"use another --dir, or zmqrl sweep resume {path}"
            raise ConfigError.about(path, "is the folder of a sweep with other keys", fix)
        return found

    @property
    def is_stopped(self) -> bool:
        """Whether `zmqrl sweep stop` was executed, and no `resume` since."""
        return STOPPED in os.listdir(self.path)

    @property
    def has_driver(self) -> bool:
        """Whether a driver is active, as far as it is known here."""
        return owner_record.is_owned(self.path)

    def set_stopped(self, is_stopped: bool) -> None:
        """Request the driver to end, or let the next one continue."""
        if is_stopped:
            owner_record.create(self.path / STOPPED, b"")
        else:
            (self.path / STOPPED).unlink(missing_ok=True)

    def run_dir(self, trial: int, seed: int) -> Path:
        """Run directory of a seed, numbered from 0."""
        return self.path / f"trial-{trial}" / f"seed-{self.sweep.first_seed + seed}"

    def parameters(self, trial: int) -> Mapping[str, Any]:
        """Parameters of a trial that has a record."""
        found: Mapping[str, Any] = self._record(f"trial-{trial}", object_of)
        return found

    def create_record(self, name: str, content: Any) -> None:
        """Create a record, unless it is there."""
        owner_record.create(self.path / RECORDS / name, _encoded(content))

    def trials(self, queue: Records) -> list[Trial]:
        """All trials, with their jobs among those of the queue. One of a removed sweep counts until it has ended."""
        names, owner = {*os.listdir(self.path / RECORDS)}, self.path.stat().st_uid
        values: dict[int, dict[tuple[int, int], float | None]] = defaultdict(dict)
        for match in filter(None, map(_VALUE.fullmatch, names)):
            trial, seed, stage = map(int, match.groups())
            values[trial][seed, stage] = self._record(match[0], _value)
        jobs: dict[str, list[Job]] = defaultdict(list)
        for job in queue.jobs.values():
            if job.record.uid == owner and (job.number > self.sweep.jobs_before or job.end is None):
                jobs[job.record.run_dir].append(job)
        numbers = itertools.takewhile(lambda number: f"trial-{number}" in names, itertools.count())
        return [self._trial(number, jobs, values[number]) for number in numbers]

    def _trial(self, number: int, jobs: Mapping[str, list[Job]], values: dict[tuple[int, int], float | None]) -> Trial:
        stages, own, reached = range(len(self.sweep.keys.rungs) + 1), dict[int, list[Job]](), dict[int, Sequence[str]]()
        for seed in range(self.sweep.keys.seeds):
            run_dir = self.run_dir(number, seed)
            if found := jobs.get(str(run_dir)):
                own[seed], end = found, found[0].end
                is_used = found[0].number > self.sweep.jobs_before and (end is None or end.status != "stopped")
                if is_used and any((seed, stage) not in values for stage in stages):
                    reached[seed] = self._reached(run_dir, end is not None and end.status == "done")
        return Trial(self.parameters(number), own, reached, values)

    def _reached(self, run_dir: Path, is_done: bool) -> list[str]:
        """The first version at or after each rung that the run has reached, and its last one once it has ended."""
        rungs, found = self.sweep.keys.rungs, list[str]()
        kept = sorted(self._kept(run_dir)) if rungs else []
        for rung in rungs:
            version = next((name for done, name in kept if done >= rung), LAST if is_done else None)
            if version is None:
                return found
            found.append(version)
        return [*found, LAST] if is_done else found

    def _kept(self, run_dir: Path) -> list[tuple[int, str]]:
        """Versions that the run has kept (`store.keep_every`)."""
        found = []
        try:
            place = stored_place(run_dir, read_config(run_dir))
            for name, version in checkpoint_names(names_in(Path(place)), "kept-").items():
                if (path := f"{place}/{name}") not in self._done:
                    with open(path, "rb", opener=regular) as file:
                        counts = {key: int(count) for key, count in _COUNT.findall(file.read(HEAD_BYTES))}
                    self._done[path] = counts.get(b"env_steps") or counts.get(b"updates", 0)
                found.append((self._done[path], str(version)))
        except (ConfigError, StoreError, FileNotFoundError):
            pass  # the run has not begun, or is on its way from another host
        return found

    def _record(self, name: str, read: Callable[[bytes], Any]) -> Any:
        if name not in self._known:
            path = self.path / RECORDS / name
            try:
                self._known[name] = read(_content(path))
            except (WireError, ValueError) as error:
                raise ConfigError.about(path, f"is damaged: {error}", "remove it") from error
        return self._known[name]


def _encoded(content: Any) -> bytes:
    return json.dumps(to_json(content)).encode()  # also of a path that is not UTF-8


def _value(content: bytes) -> float | None:
    return decode(ValueRecord, content).value


def _content(path: Path) -> bytes:
    """The content of a file. WireError: it is none, or not for this user. OSError: the folder is away."""
    try:
        return content_of(path)
    except OSError as error:
        if error.errno not in OF_A_FILE:
            raise
        raise WireError("no file", str(error.strerror)) from error
