"""Every error that zmqrl raises on purpose, grouped by what the caller can do about it.

The exit code of the command line is the `exit_code` of the error that ended it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zmqrl.launch.summary import Summary

ENDED_BY_USER_CODE = 70
"""Exit code of a process of a run out of which user code raised SystemExit, or what else is not an `Exception`."""


class ZmqrlError(Exception):
    """The root. A message states what happened, the value got, and what to do."""

    exit_code = 1


class ConfigError(ZmqrlError):
    """The configuration or a flag is invalid: correct it. Nothing was started."""

    exit_code = 2


class HostUnreachable(ConfigError):
    """A host that the command needs is unreachable: repeat the command when it is reachable. Nothing was started."""

    exit_code = 4


class FolderOfRuns(ConfigError):
    """The folder of several runs (`--seeds`) was given where one run is needed. `runs`: their directories."""

    def __init__(self, message: str, runs: tuple[str, ...]) -> None:
        super().__init__(message)
        self.runs = runs


class UntrustedRun(ConfigError):
    """The run at `place` is of another user or at a URL, and names code: `names`, each with its key. Trust it first."""

    def __init__(self, message: str, place: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.place, self.names = place, names


class TrainingFailed(ZmqrlError):
    """The run started and could not continue: the message names the first cause.

    `summary` is that of the run where `zmqrl.train`, `resume` or `Run.wait` raises it, else None.
    """

    exit_code = 1

    def __init__(self, message: str, summary: Summary | None = None) -> None:
        super().__init__(message)
        self.summary = summary


class HostFailed(ZmqrlError):
    """A host cannot be used: which one, why, and the command that fixes it. Other hosts may continue."""

    def __init__(self, host: str, cause: str, fix: str) -> None:
        super().__init__(f"{host}: {cause}\n   {fix}")
        self.host = host
        self.cause = cause
        self.fix = fix


class UncleanTeardown(ZmqrlError):
    """The run ended and something of it is still there: the message names what."""

    exit_code = 3


class Interrupted(ZmqrlError):
    """SIGINT or SIGTERM ended the run."""

    exit_code = 130


class WireError(ZmqrlError):
    """A message was rejected. `reason` is the key under which the broker counts rejections."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class StoreError(ZmqrlError):
    """A checkpoint could not be written, found or verified."""


class TransportError(ZmqrlError):
    """The carrier of segments is away, or did not take a message: it is tried again."""


class StoreRefused(StoreError):
    """The service of a store refused a request: credentials, permissions, bucket or clock of this host."""


class DamagedCheckpoints(StoreError):
    """A run has checkpoints, and none of them verifies. `names`: the files, newest first of each kind."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class ArenaError(ZmqrlError):
    """Shared memory was used against its rules: a stale lease, a foreign layout."""


class ArenaTooLarge(ArenaError, ConfigError):
    """The arena does not fit into memory: the message states the required and available memory and the setting."""

    exit_code = 2


class EnvFault(ZmqrlError):
    """The user's env raised, or returned something that its spaces do not allow.

    `detail` names env, vector_env, slot, seed, episode and step.
    """

    def __init__(self, message: str, detail: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.detail = detail or {}


class DeadlineExceeded(ZmqrlError):
    """A bounded wait ended without what it waited for."""


def unusable(host: str, error: Exception) -> HostFailed:
    """The failure of a host by any error, also one that no message explains: of a library, or of this machine."""
    if isinstance(error, HostFailed):
        return error
    what = str(error) if isinstance(error, ZmqrlError) else f"unexpected error: {name_of(error)}: {error}"
    fix = "check this machine: disk space (df -h /tmp), open files (ulimit -n), processes (ulimit -u)"
    return HostFailed(host, what, fix)


@contextmanager
def as_host_failed(host: str) -> Iterator[None]:
    """Whatever is raised within is `HostFailed`: one host may not end the work for the others."""
    try:
        yield
    except Exception as error:
        failed = unusable(host, error)
        if failed is error:
            raise
        raise failed from error


def user_exceptions() -> tuple[type[BaseException], ...]:
    """Types for the `except` clause around code of the user: all, `SystemExit` included, except an interrupt by Ctrl-C.

    A KeyboardInterrupt is the user's own where SIGINT has no handler, as in the processes of a run, and in a thread
    that never receives it.
    """
    kind, is_main = sys.exc_info()[0], threading.current_thread() is threading.main_thread()
    interrupts = is_main and callable(signal.getsignal(signal.SIGINT))
    return () if kind is KeyboardInterrupt and interrupts else (BaseException,)


def name_of(error: BaseException) -> str:
    """The name of its class; with its module where the class is not named as an exception (`pygame.error`)."""
    kind = type(error)
    return kind.__name__ if kind.__name__[0].isupper() else f"{kind.__module__}.{kind.__name__}"
