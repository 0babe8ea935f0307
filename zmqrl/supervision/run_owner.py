"""Which launcher owns a run directory, also among hosts that share it over NFS and do not see each other's processes.

`<run directory>/.owner/<n>` is the record of the n-th owner; the highest number is the one that counts, and is never
removed. An owner counts its record up in every `RENEW_S`. A successor creates the next number (one of several can) once

- the owner has released it, or its process is gone, where both are on one machine; else
- its record did not change for `SILENT_PERIODS` periods by the successor's own clock, without the time in which the
  successor itself was frozen: clocks are never compared.

An owner that was frozen, or had no access to the directory, finds the higher number before it writes again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from enum import Enum, auto
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.supervision import owner_record as records
from zmqrl.supervision.owner_record import FOLDER, OwnerRecord
from zmqrl.supervision.process_table import identify
from zmqrl.wire.active_clock import ActiveClock

RENEW_S = 1.0
SILENT_PERIODS = 3
POLL_EVERY_S = 0.1
TURN_S = 0.25
"""A wait counts a second of a freeze at most (`ActiveClock`)."""


class OwnerState(Enum):
    """What is known here of the launcher that owns a run directory."""

    HERE = auto()
    """Launcher that runs, and that this process sees."""
    ELSEWHERE = auto()
    """Launcher that renews its record, on another host or in another pid namespace of this machine."""
    ENDED = auto()
    UNKNOWN = auto()
    """Launcher that cannot be seen from here, and does not renew its record."""


ACTIVE = (OwnerState.HERE, OwnerState.ELSEWHERE)
"""States of a launcher that runs."""


class RunOwner:
    """This process as the owner of a run directory. Renewed by a separate thread until `release`."""

    def __init__(self, folder: Path, number: int, record: OwnerRecord) -> None:
        """Use `acquire`."""
        self._folder, self._number, self._record = folder, number, record
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="owner", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, run_dir: Path, run_id: str) -> RunOwner:
        """Own `run_dir` from now on. Waits `SILENT_PERIODS` periods where the last owner is on another host.

        Raises:
            ConfigError: It has a live owner.
            OSError: The directory cannot be read or written.
        """
        folder, me = run_dir / FOLDER, identify(os.getpid())
        assert me is not None
        folder.mkdir(exist_ok=True)
        record = OwnerRecord(run_id, socket.gethostname(), records.machine(), me.pid, me.start_time)
        while True:
            last = records.newest(folder)
            if last > 0:
                _await_end(run_dir, folder, last)
            if records.create(folder / str(last + 1), records.encoded(record)):
                break
        number = last + 1
        if records.newest(folder) > number:  # others have come and gone while this process was frozen
            (folder / str(number)).unlink()
            raise _in_use(run_dir, records.read(folder, records.newest(folder)))
        for old in [n for n in records.numbers(folder) if n < number]:
            with contextlib.suppress(FileNotFoundError):
                (folder / str(old)).unlink()
        return cls(folder, number, record)

    @property
    def successor(self) -> str | None:
        """Who has taken the directory over; None while it is this process's. OSError: it cannot be read now."""
        newest = records.newest(self._folder)
        if newest <= self._number:
            return None
        return str(records.read(self._folder, newest) or "another run")

    def release(self) -> None:
        """The next owner need not wait. OSError where the record cannot be written. Safe to call twice."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._write(replace(self._record, released=True))

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            self._record = replace(self._record, renewals=self._record.renewals + 1)
            with contextlib.suppress(OSError):  # the next period tries again, and `successor` reports a loss
                self._write(self._record)

    def _write(self, record: OwnerRecord) -> None:
        """Write the record in place: a full disk takes it, and it needs no new name."""
        with (self._folder / str(self._number)).open("r+b") as file:
            file.write(records.encoded(record))


def owner_state(run_dir: Path, run_id: str, watch: bool = True) -> OwnerState | None:
    """State of the launcher of the run as owner of `run_dir`; None: its record was not found.

    One that cannot be seen from here is watched for `SILENT_PERIODS` at most; without `watch` it is UNKNOWN.
    """
    folder = run_dir / FOLDER
    try:
        number = records.newest(folder)
        first, clock = records.content(folder, number), ActiveClock(TURN_S, time.monotonic)
        record, since = records.decoded(first), clock.now()
        if record is None or record.run_id != run_id:
            return None
        if record.released:
            return OwnerState.ENDED
        if record.is_here:
            return OwnerState.HERE if record.is_alive else OwnerState.ENDED
        path = folder / str(number)
        if records.is_namespace_gone(record, path):
            return OwnerState.ENDED
        while watch and clock.now() - since < SILENT_PERIODS * RENEW_S:
            time.sleep(POLL_EVERY_S)  # a file is all that two hosts share
            now = records.decoded(records.content(folder, number))
            if now is not None and now != record:
                return OwnerState.ENDED if now.released else OwnerState.ELSEWHERE
    except OSError:
        return None
    has_ended = watch and (record.was_before_boot or records.is_namespace_gone(record, path))
    return OwnerState.ENDED if has_ended else OwnerState.UNKNOWN


class OwnerCheck:
    """Whether another run has taken a run directory over: checked before each full checkpoint, so it must cost little.

    A new owner changes the directory of the records, and nothing else does, so they are read when it has changed, and
    every `RENEW_S`, because some file systems count time in whole seconds.
    """

    def __init__(self, run_dir: Path, run_id: str) -> None:
        self._run_dir, self._folder, self._run_id = run_dir, run_dir / FOLDER, run_id
        self._changed_at_ns = 0
        self._read_at_s = -float("inf")

    def check(self) -> None:
        """Raise `ConfigError` when another run has taken the directory over.

        Nothing is raised where it cannot be read, or is not a launcher's (on other hosts).
        """
        now = time.monotonic()
        try:
            changed_at_ns = records.changed_at_ns(self._folder)
            if changed_at_ns == self._changed_at_ns and now - self._read_at_s < RENEW_S:
                return
            record = records.read(self._folder, records.newest(self._folder))
        except OSError:
            return
        if record is None:  # its owner has created the file and not written it yet
            return
        if record.run_id != self._run_id:
            fix = f"the launcher of run {self._run_id} sent no heartbeat; this run ends without a further checkpoint"
            raise ConfigError.about(self._run_dir, f"was taken over by {record}", fix)
        self._changed_at_ns, self._read_at_s = changed_at_ns, now


def _await_end(run_dir: Path, folder: Path, number: int) -> None:
    """Return once the owner has ended, or is silent for long enough. ConfigError when it lives."""
    clock = ActiveClock(TURN_S, time.monotonic)
    first, since = records.content(folder, number), clock.now()
    while True:
        waited_s = clock.now() - since
        content = records.content(folder, number)  # after the clock: the owner may have renewed it in a freeze
        if records.newest(folder) > number:  # before `content` is judged: the next owner removes this file
            return
        record = records.decoded(content)
        if record is not None and record.released:
            return
        if record is not None and record.is_here:
            if record.is_alive:
                raise _in_use(run_dir, record)
            return
        if content != first and records.decoded(first) is not None:
            raise _in_use(run_dir, record)
        if content != first:  # it was just being created
            first, since = content, clock.now()
        elif waited_s >= SILENT_PERIODS * RENEW_S:
            return
        time.sleep(POLL_EVERY_S)  # a file is all that two hosts share


def in_use(run_dir: Path, who: str, where: str = "") -> ConfigError:
    """The error of a run directory that a live run uses."""
    fix = f"stop it: `zmqrl stop {run_dir}`{where}"
    return ConfigError.about(f"run directory {run_dir}", f"is in use by {who}", fix)


def _in_use(run_dir: Path, record: OwnerRecord | None) -> ConfigError:
    if record is None:
        return in_use(run_dir, "another run")
    return in_use(run_dir, str(record), "" if record.is_here else f" on {record.host}")
