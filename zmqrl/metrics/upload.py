"""Rows of `metrics.jsonl` for a service, from outside the run: what was sent is asked of the service, never stored."""

from __future__ import annotations

import errno
import hashlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zmqrl.errors import ConfigError, ZmqrlError
from zmqrl.metrics.attempts import are_current
from zmqrl.metrics.groups import METRICS
from zmqrl.metrics.jsonl import Lines, rows_in

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0


class UploadError(ZmqrlError):
    """The service did not take what was sent."""


class NumberedRow(NamedTuple):
    """A row of `metrics.jsonl` and its number there, from 0: the step by which a service knows it."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class UploadedRun:
    """What a service shows of a run."""

    id: str
    """Its lineage, which every resume keeps."""
    directory: Path
    project: str
    config: Mapping[str, Any]
    """The configuration of the run, without secrets."""


class Destination(ABC):
    """The place of one run in a service. Every method raises `UploadError` where the service fails."""

    @abstractmethod
    def open(self) -> int:
        """Connect, and return the step after the last row that the service has."""

    @abstractmethod
    def write(self, rows: Sequence[NumberedRow]) -> None:
        """Send rows. A row that is sent again after a failure is there once."""

    @abstractmethod
    def close(self, exit_code: int | None) -> None:
        """End the connection. `exit_code`: of a run that has ended."""


class MetricsTail:
    """The rows of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._lines, self._count = Lines(path), 0

    def read(self, begin: int) -> list[NumberedRow]:
        """The new rows from step `begin` on, without those that a later attempt among them repeats."""
        rows: list[dict[str, float]] = []
        with suppress(FileNotFoundError):  # a run that starts
            rows += [row for lines in self._lines for row in rows_in(lines) if row is not None]
        first, self._count = self._count, self._count + len(rows)
        current = np.flatnonzero(are_current(rows)).tolist()
        return [NumberedRow(first + k, rows[k]) for k in current if first + k >= begin]


@dataclass
class Upload:
    """One run on its way to a service. A service that fails is tried again, with growing waits, up to a bound."""

    run: UploadedRun
    destination: Destination
    retry_s: float
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sent: int = 0
    """Rows that this process has sent."""
    _tail: MetricsTail | None = None
    _waiting: list[NumberedRow] = field(default_factory=list)
    _failing_since: float | None = None
    _next_at: float = -np.inf
    _wait_s: float = FIRST_WAIT_S

    def step(self) -> None:
        """Send what is new; `UploadError` when the service has failed for longer than `retry_s`."""
        now = self.clock()
        if now < self._next_at:
            return
        try:
            self._send()
        except UploadError as error:
            since = self._failing_since = now if self._failing_since is None else self._failing_since
            if now - since >= self.retry_s:
                raise
            self._next_at, self._wait_s = now + self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
            left_s = self.retry_s - (now - since)
            self.report(f"{self.run.directory}: {error}; trying again for {left_s:.0f} s")
        else:
            self._failing_since, self._wait_s = None, FIRST_WAIT_S

    @property
    def is_waiting(self) -> bool:
        """Whether rows that were read are not sent."""
        return self._tail is None or bool(self._waiting)

    def _send(self) -> None:
        if self._tail is None:
            begin = self.destination.open()
            tail = MetricsTail(self.run.directory / METRICS)
            self._waiting, self._tail = tail.read(begin), tail
        else:
            self._waiting += self._tail.read(0)
        if self._waiting:
            self.destination.write(self._waiting)
            self.sent += len(self._waiting)
            self._waiting = []


def reserve(service: str, run: UploadedRun, place: str | None) -> socket.socket:
    """Refuse the same upload to other processes of this machine as long as the returned socket is open.

    It is an abstract socket with the upload in its name: the kernel closes it with the process.

    Raises:
        ConfigError: Another process has it.
    """
    digest = hashlib.sha256(repr((service, run.project, run.id, place)).encode()).hexdigest()
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0zmqrl-upload-{digest[:32]}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what, fix = f"{run.directory}: another process uploads this run to {service}", "end it, or wait for its end"
            held.close()
            raise ConfigError(what, key=(), fix=fix) from None
    return held


def imported(module: str, extra: str) -> Any:
    """A module of the service's package, which an extra of zmqrl installs."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        what, fix = (
            f"the package {error.name} is not installed",
            f"run in the checkout of zmqrl: pip install '.[{extra}]'",
        )
        raise ConfigError(what, key=(), fix=fix) from error


@contextmanager
def service_errors(name: str, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of a library as `UploadError`."""
    try:
        yield
    except kinds as error:
        raise UploadError(f"{name} does not take the rows: {type(error).__name__}: {error}") from error
