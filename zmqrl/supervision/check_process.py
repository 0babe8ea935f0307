"""Calls of functions that may import the user's code: each in a check process, which a template forks and ends.

The template is started with the first call, or earlier by `start`, so that its imports overlap with those of the
command. Of several threads, one calls at a time.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from zmqrl.errors import ConfigError, UncleanTeardown, ZmqrlError
from zmqrl.loading import importing_environment
from zmqrl.messages.check import Call, Ended, FromTemplate, Place, Raised, data_of, line, read_from_template
from zmqrl.plugins import shown_path
from zmqrl.supervision.check_child import ERRORS, OF_USER, TEMPLATE
from zmqrl.supervision.template import CLOSED, END_S, LATE, SETTLED

WAITING_S = 5.0
START_S = 60.0
"""For the imports of the template."""
CHUNK = 1 << 20
COMMAND = (sys.executable, "-m", "zmqrl.entry", TEMPLATE, "-", "0")
MODULES = ("zmqrl.launch.check_calls",)
"""Imported by the template."""

_lock = threading.RLock()
_template: _Template | None = None
_found: dict[str, Any] = {}


class CheckEnded(ConfigError):
    """A check process hung, or ended without an answer. `stage`: where; `known`: the value as far as it was known."""

    def __init__(self, message: str, stage: str, known: Any) -> None:
        super().__init__(message)
        self.stage, self.known = stage, known


def start() -> None:
    """Start the template, unless there is one, and return at once."""
    global _template
    with _lock:
        if _template is None:
            _template = _Template()


def end() -> None:
    """End the template, with all that is left of a call."""
    global _template
    with _lock:
        _found.clear()
        if _template is not None:
            _template.end()
            _template = None


atexit.register(end)


def call(function: str, *arguments: Any, subject: str, limit_s: float, key: str | None = None) -> Any:
    """Carry out `function` of zmqrl, `module:name`, in a check process.

    Everything that the process has started has ended afterwards.

    Args:
        function: It takes and returns plain data; a generator yields a `Stage` at the start of each part.
        arguments: Plain data.
        subject: Begins the message of an error: `key: what`.
        limit_s: `limits.start_s`.
        key: Of several calls with the same key before `end`, only the first is carried out.

    Raises:
        ZmqrlError: What the function raised, by its class and attributes.
        ConfigError: It raised something else; or, as `CheckEnded`, its process hung or ended.
    """
    with _lock:
        if key not in _found:
            value = _called(Call(function, data_of(arguments), limit_s, min(limit_s, WAITING_S)), subject)
            if key is None:
                return value
            _found[key] = value
        return _found[key]


def _called(request: Call, subject: str) -> Any:
    start()
    assert _template is not None
    try:
        ended = _template.call(request, subject)
    except BaseException:  # the next call takes another template
        end()
        raise
    stage = ended.stage.name
    if isinstance(ended.answer, Raised):
        raise _error_of(ended.answer, ended, f"{subject}: {stage}")
    if ended.answer is None and ended.cause != SETTLED:
        raise CheckEnded(f"{subject}: {stage}: {_how(ended, request.limit_s)}", stage, json.loads(ended.stage.known))
    if ended.left:
        pids = ", ".join(map(str, ended.left))
        raise UncleanTeardown(f"{subject}: processes that its check has started are left: pid {pids}")
    return json.loads(ended.stage.known if ended.answer is None else ended.answer.value)


def _error_of(raised: Raised, ended: Ended, where: str) -> Exception:
    if raised.kind == OF_USER:
        more = f"\n{raised.traceback}" if raised.traceback else _shown(ended.log)
        return ConfigError(f"{where}: {raised.text}{more}")
    kind = ERRORS.get(raised.kind)
    if kind is None:
        return RuntimeError(f"{where}: {raised.text}")
    error = kind.__new__(kind)
    error.args = (raised.text,)
    vars(error).update(json.loads(raised.fields))
    return error


def _how(ended: Ended, limit_s: float) -> str:
    causes = {LATE: f"not finished within limits.start_s ({limit_s:g} s)", CLOSED: f"the user's code {CLOSED}"}
    cause = causes.get(ended.cause, f"the user's code ended its process ({ended.cause})")
    return f"{cause}{'' if ended.place is None else _at(ended.place)}{_shown(ended.log)}"


def _shown(log: Sequence[str]) -> str:
    return "".join(f"\n   {text}" for text in log)


def _at(place: Place) -> str:
    return f" ({shown_path(place.file)}:{place.line}, in {place.function})"


class _Template:
    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=importing_environment(),
            start_new_session=True,
        )
        self._is_idle = True
        self._unread = b""
        self._write(data_of(MODULES).encode() + b"\n")

    def call(self, request: Call, subject: str) -> Ended:
        self._is_idle = False
        self._write(line(request))
        until = time.monotonic() + START_S + request.limit_s + 2 * END_S
        while True:
            found = self._read(until)
            if isinstance(found, Ended):
                self._is_idle = True
                return found
            name = subject.partition(": ")[2] or subject
            print(f"still waiting for {name}: {found.stage}{_at(found.place)}", file=sys.stderr, flush=True)

    def _write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading shows why
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read(self, until: float) -> FromTemplate:
        assert self._process.stdout is not None
        parts = [self._unread]
        while b"\n" not in parts[-1]:
            watched = select.poll()
            watched.register(self._process.stdout, select.POLLIN)
            ready = watched.poll(max(0.0, until - time.monotonic()) * 1000)
            chunk = os.read(self._process.stdout.fileno(), CHUNK) if ready else b""
            if not chunk:
                self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
                log = self._log.read().decode(errors="replace").strip()
                what = "has ended" if ready else "does not answer"
                raise ZmqrlError(f"the process that starts check processes {what}: {log or 'no output'}")
            parts.append(chunk)
        content, _, self._unread = b"".join(parts).partition(b"\n")
        return read_from_template(content)

    def end(self) -> None:
        """While a call runs, the template ends what it has started first."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._is_idle:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(2 * END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
