"""Every error that zmqrl raises on purpose, grouped by what the caller can do about it.

The exit code of the command line is the `exit_code` of the error that ended it.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

    from zmqrl.summary import Summary

Key: TypeAlias = tuple[str, ...]

DEFAULT = "(default)"
"""Source of a key that no layer has."""
_KEY = re.compile(r"([a-z_]+(?:\.[\w-]+)*): ")

ENDED_BY_USER_CODE = 70
"""Exit code of a process of a run out of which user code raised SystemExit, or what else is not an `Exception`."""


class ZmqrlError(Exception):
    """The root. A message states what happened, the value got, and what to do."""

    exit_code = 1


class ConfigError(ZmqrlError):
    """The configuration, a flag or an argument is invalid: correct it. Nothing was started.

    The fields are data that no code changes; `replaced` makes another error of them. The sentence is rendered from
    them: `SOURCE: KEY: VALUE: WHAT; FIX (PLACES)`, each part where it is known, and those of `more` in further lines.
    """

    exit_code = 2

    def __init__(
        self,
        what: str = "",
        *,
        key: Key | None = None,
        value: str = "",
        is_subject: bool = False,
        fix: str = "",
        python_fix: str = "",
        others: tuple[Key, ...] = (),
        source: str = "",
        more: tuple[str, ...] = (),
    ) -> None:
        """Where `key` is left out, `what` may be a whole sentence that begins with it, `store.folder: ...`.

        Args:
            what: What is wrong.
            key: Names from the section to the key, `("hosts", "n1.lab", "ssh")`, or one flag or argument, `("--on",)`.
            value: Of the key, as it is shown; without a key, what the error is about.
            is_subject: `what` is the rest of a sentence about the value: no colon separates them.
            fix: What to write in place of it.
            python_fix: The same as `zmqrl.train` takes it, where that differs.
            others: Further keys that `what` or `fix` names.
            source: Where the key was written: file and line, or a flag. `DEFAULT`: it has its default.
            more: Sentences of further errors of the same kind, each a line.
        """
        super().__init__(what)
        if key is None:
            key, what = _split(what)
        self.key: Final = key
        self.value: Final = value
        self.is_subject: Final = is_subject
        self.what: Final = what
        self.fix: Final = fix
        self.python_fix: Final = python_fix
        self.others: Final = others
        self.source: Final = source
        self.more: Final = more
        self.places: Final[tuple[tuple[str, str], ...]] = ()
        """Keys of `others` that the user wrote, each with its source."""

    @classmethod
    def about(cls, value: object, what: str, fix: str = "") -> ConfigError:
        """An error about something that has no key, such as a folder: `VALUE WHAT; FIX`."""
        return cls(what, key=(), value=str(value), is_subject=True, fix=fix)

    def __str__(self) -> str:
        key, rest = ".".join(self.key), "; ".join(filter(None, (self.what, self.fix)))
        separator = " " if self.is_subject else ": "
        if key.startswith("--"):
            text = f"{key} {self.value}".rstrip() + separator + rest
        else:
            key = f"{key} (default)" if self.source == DEFAULT else key
            text = ": ".join(filter(None, (key, f"{self.value}{separator}{rest}" if self.value else rest)))
        if self.source not in ("", DEFAULT):
            text = f"{self.source}: {text}"
        text = f"{text} ({', '.join(map(': '.join, self.places))})" if self.places else text
        return "\n".join((text, *self.more))

    def replaced(self, **fields: object) -> Self:
        """The same error with other fields: raise it `from error.__cause__`."""
        assert fields.keys() <= vars(self).keys(), fields
        other = type(self).__new__(type(self), *self.args)
        vars(other).update({**vars(self), **fields})
        other.__cause__ = self.__cause__
        return other.with_traceback(self.__traceback__)

    def of(self, key: Key, value: str = "", source: str = "", fix: str = "") -> ConfigError:
        """The error as one of `key`, whose value led to it; an error of another key is named behind it."""
        is_of_another_value = bool(value and self.value and not self.key)
        if self.source or self.key not in ((), key) or is_of_another_value:
            return ConfigError(str(self), key=key, value=value, source=source, fix=fix)
        more = "; ".join(filter(None, (self.fix, fix)))
        return self.replaced(key=key, value=value or self.value, source=source, fix=more)


def check_field(owner: object, name: str, holds: bool, what: str, fix: str = "") -> None:
    """Raise `ConfigError` for a field of a specification that is written in Python, unless `holds`."""
    if not holds:
        raise ConfigError(what, key=(type(owner).__name__, name), value=repr(getattr(owner, name)), fix=fix)


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
    """The run could not continue: the message names the first cause. `summary`: of the run, from the Python API."""

    def __init__(self, message: str, summary: Summary | None = None) -> None:
        super().__init__(message)
        self.summary = summary


class HostFailed(ZmqrlError):
    """A host cannot be used: which one, why, and the command that fixes it. Other hosts may continue."""

    def __init__(self, host: str, cause: str, fix: str) -> None:
        super().__init__(f"{host}: {cause}\n   {fix}")
        self.host, self.cause, self.fix = host, cause, fix


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
        self.reason, self.detail = reason, detail


class StoreError(ZmqrlError):
    """A checkpoint could not be written, found or verified.

    The sentence is rendered from the fields: `NAME WHAT in PLACE: CAUSE; FIX`, each part where it is known.
    """

    def __init__(self, what: str = "", *, name: str = "", place: str = "", cause: str = "", fix: str = "") -> None:
        """`StoreError("SENTENCE")` is the short form.

        `what` has the same words for each checkpoint and each place. `name`: of the file or object. `place`: folder or
        URL. `cause`: what the file system or the service reported.
        """
        super().__init__(what)
        self.what, self.name, self.place, self.cause, self.fix = what, name, place, cause, fix

    def __str__(self) -> str:
        text = f"{self.name or self.place} {self.what}".strip()
        text = f"{text} in {self.place}" if self.name and self.place else text
        text = f"{text}: {self.cause}" if self.cause else text
        return f"{text}; {self.fix}" if self.fix else text


class TransportError(ZmqrlError):
    """The carrier of segments is away, or did not take a message: it is tried again."""


class StoreRefused(StoreError):
    """The service of a store refused a request: credentials, permissions, bucket or clock of this host."""


class DamagedCheckpoints(StoreError):
    """A run has checkpoints, and none of them verifies. `names`: the files, newest first of each kind."""

    def __init__(self, what: str, names: tuple[str, ...], *, place: str = "", cause: str = "") -> None:
        super().__init__(what, place=place, cause=cause)
        self.names = names


class ArenaError(ZmqrlError):
    """Shared memory was used against its rules: a stale lease, a foreign layout."""


class ArenaTooLarge(ArenaError, ConfigError):
    """The arena does not fit into memory: the message states the required and available memory and the setting."""


class EnvFault(ZmqrlError):
    """The user's env raised, or returned something that its spaces do not allow: `SUBJECT: WHAT (PLACE)`.

    `detail` names env, vector_env, slot, seed, episode and step.
    """

    def __init__(
        self, what: str, detail: dict[str, object] | None = None, *, subject: str = "", place: str = ""
    ) -> None:
        """`subject`: the env and its slot, as they are shown. `place`: file and line of the user's code."""
        super().__init__(what)
        self.what, self.detail, self.subject, self.place = what, detail or {}, subject, place

    def __str__(self) -> str:
        text = f"{self.subject}: {self.what}" if self.subject else self.what
        return f"{text} ({self.place})" if self.place else text


class DeadlineExceeded(ZmqrlError):
    """A bounded wait ended without what it waited for."""


def key_of(dotted: str) -> Key:
    """The names of a dotted key, such as `run.seed`, which is not one of a host: a host may have dots in its name."""
    return tuple(dotted.split("."))


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


def _split(sentence: str) -> tuple[Key, str]:
    """The key that a sentence begins with, and the rest, for kinds of users that raise `ConfigError(SENTENCE)`."""
    match = _KEY.match(sentence)
    return (tuple(match[1].split(".")), sentence[match.end() :]) if match else ((), sentence)
