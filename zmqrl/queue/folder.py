"""The folder of a queue, also on NFS: listed and opened each time, and written by exclusive creation.

A record that never changes is read once. Files of other users are read as data alone: no link is followed, no pipe is
waited for, and what other users can write to does not count.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from zmqrl.config.codec import replace, to_json
from zmqrl.config.paths import no_link
from zmqrl.data_stores.files import sync_directory
from zmqrl.errors import ConfigError, WireError
from zmqrl.messages.files import decode
from zmqrl.queue.records import AttemptEnd, AttemptRecord, Job, JobAttempt, JobEnd, JobRecord, Records, RunnerRecord
from zmqrl.supervision import owner_record

Kind = TypeVar("Kind", bound=msgspec.Struct)
MOST_BYTES = 1 << 20
OF_A_FILE = (errno.ENOENT, errno.EACCES, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)
"""Errors of a file that is absent, of another kind, or not for this user; after others it is read again."""
STOP, HOLD, OUTPUT = "stop", "hold", "output"
LOST, FAILED = AttemptEnd("lost"), JobEnd("failed")
"""What an end without its content means: a power cut took it."""
MOST_GAP = 1_000_000
"""Numbers that are further from the one before do not count: no user can use up the numbers with one file."""
_ENTRY = re.compile(r"(job|attempt|runner)-(\d{1,18})")
_REQUEST = re.compile(r"(preempt|ended)-(\d{1,18})")


class QueueFolder:
    """Reads and writes the records. OSError: the file system is away or full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs: dict[int, Job] = {}
        """Jobs as last read; one with an end is not read again."""
        self._attempts: dict[int, AttemptRecord] = {}

    def read(self) -> Records:
        """All records that count. Attempts are listed first: an end that is read with them is not older."""
        names = self._numbers()
        for number in names["attempt"] - self._attempts.keys():
            if (attempt := _read(self.path / f"attempt-{number}", AttemptRecord)) is not None:
                self._attempts[number] = attempt
        by_job: dict[int, list[int]] = defaultdict(list)
        for number in sorted(names["attempt"] & self._attempts.keys()):
            by_job[self._attempts[number].job].append(number)
        for number in self._jobs.keys() - names["job"]:
            del self._jobs[number]
        for number in sorted(names["job"]):
            if (known := self._jobs.get(number)) is None or known.end is None:
                self._read_job(number, by_job[number])
        return Records(dict(self._jobs), max(names["attempt"], default=0))

    def runners(self) -> Iterator[tuple[int, RunnerRecord, bytes]]:
        """Users with a runner: its record, and its heartbeat, which changes while it is active."""
        for uid in self._numbers()["runner"]:
            folder = self.runner_folder(uid)
            with contextlib.suppress(OSError):  # it renews nothing that can be read
                record, owners = _read(folder / "runner", RunnerRecord), folder / owner_record.FOLDER
                if record is not None and record.uid == uid and _owner(folder) == uid:
                    yield uid, record, owner_record.content(owners, owner_record.newest(owners))

    def runner_folder(self, uid: int) -> Path:
        """Where the runner of a user has its records."""
        return self.path / f"runner-{uid}"

    def announce(self, record: RunnerRecord, runner: str) -> None:
        """Replace the record of the last runner of a user by that of the next one, whose id is `runner`."""
        folder = self.runner_folder(record.uid)
        owner_record.create(folder / f".{runner}", msgspec.json.encode(record))
        (folder / f".{runner}").replace(folder / "runner")

    def job_folder(self, number: int) -> Path:
        """Where a user has the records of a job."""
        return self.path / f"job-{number}"

    def add(self, record: JobRecord, is_numbered: bool = True) -> Job:
        """Create a job with the next number, which its run directory has at its end if it `is_numbered`.

        ConfigError: `read` would refuse it.
        """
        run_dir = record.run_dir
        while True:
            number = max(self._numbers()["job"], default=0) + 1
            if is_numbered:
                record = replace(record, run_dir=f"{run_dir}-job{number}")
            content = _content(record)
            try:
                self.job_folder(number).mkdir()
            except FileExistsError:
                continue
            os.chmod(self.job_folder(number), 0o755)  # other users' runners read it, whatever the umask
            _create_durable(self.job_folder(number) / "job", content)
            sync_directory(str(self.path))
            return Job(number, record)

    def create_attempt(self, number: int, record: AttemptRecord) -> bool:
        """False: another runner has created one of this number first."""
        return owner_record.create(self.path / f"attempt-{number}", msgspec.json.encode(record))

    def close_attempt(self, job: int, number: int, end: AttemptEnd) -> bool:
        """False: the attempt has an end."""
        return owner_record.create(self.job_folder(job) / f"ended-{number}", msgspec.json.encode(end))

    def end_job(self, number: int, end: JobEnd) -> bool:
        """False: the job has a terminal record."""
        return _create_durable(self.job_folder(number) / "end", msgspec.json.encode(end))

    def request(self, number: int, name: str) -> None:
        """Create the request `STOP`, `HOLD` or `preempt-<attempt>` of a job."""
        owner_record.create(self.job_folder(number) / name, b"")

    def withdraw(self, number: int, name: str) -> None:
        """Remove a request."""
        (self.job_folder(number) / name).unlink(missing_ok=True)

    def _numbers(self) -> Mapping[str, set[int]]:
        found: dict[str, set[int]] = {"job": set(), "attempt": set(), "runner": set()}
        for match in filter(None, map(_ENTRY.fullmatch, os.listdir(self.path))):
            found[match[1]].add(int(match[2]))
        return {kind: numbers if kind == "runner" else _near(numbers) for kind, numbers in found.items()}

    def _read_job(self, number: int, attempts: list[int]) -> None:
        folder = self.job_folder(number)
        record = self._jobs[number].record if number in self._jobs else _read(folder / "job", JobRecord)
        names = set() if record is None or _owner(folder) != record.uid else _names(folder)
        if record is None or not names:
            self._jobs.pop(number, None)
            return
        own = [(n, self._attempts[n]) for n in attempts if self._attempts[n].uid == record.uid]
        named = [(match[1], int(match[2])) for match in filter(None, map(_REQUEST.fullmatch, names))]
        ended = {n: _read(folder / f"ended-{n}", AttemptEnd, LOST) for kind, n in named if kind == "ended"}
        self._jobs[number] = Job(
            number,
            record,
            tuple(JobAttempt(n, attempt, ended.get(n)) for n, attempt in own),
            _read(folder / "end", JobEnd, FAILED) if "end" in names else None,
            STOP in names,
            HOLD in names,
            frozenset(n for kind, n in named if kind == "preempt"),
        )


def open_queue(path: Path, writes: bool = False) -> QueueFolder:
    """The queue in a folder. `writes`: this user is to add files to it.

    ConfigError: There is none, others can remove the records of this user, or the user cannot write to it.
    """
    try:
        mode = path.stat().st_mode
        os.listdir(path)
    except OSError as error:
        fix = "zmqrl queue add PRESET makes one"
        raise ConfigError(f"is not a queue: {error.strerror}", key=("--queue",), value=str(path), fix=fix) from error
    if mode & 0o022 and not mode & stat.S_ISVTX:
        fix = f"for several users: chmod 1777 {path}; for one: chmod 755 {path}"
        raise ConfigError("other users can remove files in it", key=("--queue",), value=str(path), fix=fix)
    if writes and not os.access(path, os.W_OK | os.X_OK):
        fix = f"for several users, its owner: chmod 1777 {path}; or name a folder of yours (--queue, $ZMQRL_QUEUE)"
        raise ConfigError("you cannot add files to it", key=("--queue",), value=str(path), fix=fix)
    return QueueFolder(path)


def _near(numbers: set[int]) -> set[int]:
    """The numbers up to the first gap of more than `MOST_GAP`."""
    pairs = itertools.pairwise([0, *sorted(numbers)])
    return {number for _, number in itertools.takewhile(lambda pair: pair[1] - pair[0] <= MOST_GAP, pairs)}


def _content(record: JobRecord) -> bytes:
    content = json.dumps(to_json(record)).encode()  # also of a path that is not UTF-8
    try:
        if len(content) > MOST_BYTES:
            raise WireError("size", f"{len(content):,} bytes; at most {MOST_BYTES:,} are allowed")
        decode(JobRecord, content)
    except WireError as error:
        raise ConfigError.about("the job", f"cannot be added: {error}") from error
    return content


def _create_durable(path: Path, content: bytes) -> bool:
    is_new = owner_record.create(path, content, durable=True)
    sync_directory(str(path.parent))
    return is_new


def _read(path: Path, kind: type[Kind], damaged: Kind | None = None) -> Kind | None:
    """The record in a file, or `damaged` for another content; None: it does not count. OSError: see `OF_A_FILE`."""
    try:
        with open(path, "rb", opener=no_link) as file:
            found = os.fstat(file.fileno())
            content = b"" if found.st_mode & 0o022 else file.read(MOST_BYTES)
            record = decode(kind, content)
    except WireError:
        return damaged
    except OSError as error:
        if error.errno not in OF_A_FILE:
            raise
        return None
    return record if getattr(record, "uid", found.st_uid) == found.st_uid else None


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, PermissionError):
        return set()


def _owner(folder: Path) -> int | None:
    """The user to whom a folder belongs; None: it is none, or others can write to it."""
    found = folder.lstat()
    return found.st_uid if stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022 else None
