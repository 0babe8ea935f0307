"""A check process: one call of a function that may import the user's code, its answer, and the end of the process."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from zmqrl import errors
from zmqrl.errors import ZmqrlError
from zmqrl.messages.check import Call, Place, Raised, Returned, Stage, data_of, line
from zmqrl.plugins import described, is_own, traceback_of
from zmqrl.supervision.own_session import die_with

ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ZmqrlError)}
"""What crosses the boundary as it is; a subclass of another module as its base."""
OF_USER = "user"
"""Kind of an exception of the user's code."""
UNANSWERED = 97
"""Exit code of a process whose answer could not be written."""
TEMPLATE, CHECK = "zmqrl.template", "zmqrl.check"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


class Pipes(NamedTuple):
    """Descriptors of a check process, to write to."""

    answers: int
    trace: int
    """Where Python's faulthandler writes, without the interpreter's lock."""
    log: int
    """Its stderr."""


def run(call: Call, pipes: Pipes, template: int) -> NoReturn:
    """Carry out `call` in this process, a fork of the template. Nothing of the interpreter's own end is run."""
    pid, code = os.getpid(), UNANSWERED
    try:
        answer: Returned | Raised
        try:
            _prepare(call, pipes, template)
            answer = Returned(data_of(_value(call, pipes.answers)))
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            answer = _raised(error)
        if os.getpid() == pid:  # else the user's code has forked, and its copy came here
            write(pipes.answers, line(answer))
            code = 0
    finally:
        os._exit(code)


def _prepare(call: Call, pipes: Pipes, template: int) -> None:
    die_with(template)
    os.setsid()
    os.dup2(pipes.log, sys.stderr.fileno())
    _show_as(CHECK)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a worker: a KeyboardInterrupt is the user's own
    warnings.simplefilter("ignore")
    faulthandler.enable(pipes.trace)
    # The last of them comes at the limit: it shows where the call is then.
    dumps = max(1, round(call.limit_s / call.waiting_s))
    faulthandler.dump_traceback_later(call.limit_s / dumps, repeat=True, file=pipes.trace)


def _show_as(name: str) -> None:
    """The command line of this process has `name` in place of the template's."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    at = ctypes.string_at(begin, end - begin).find(TEMPLATE.encode()) if 0 < begin < end else -1
    if at >= 0:
        ctypes.memmove(begin + at, name.encode().ljust(len(TEMPLATE), b"\0"), len(TEMPLATE))


def _value(call: Call, answers: int) -> Any:
    module, _, name = call.function.partition(":")
    found = getattr(importlib.import_module(module), name)(*json.loads(call.arguments))
    while isinstance(found, Generator):
        try:
            stage = next(found)
        except StopIteration as end:
            return end.value
        assert isinstance(stage, Stage)
        write(answers, line(stage))
    return found


def write(descriptor: int, content: bytes) -> None:
    """All of it: a pipe may take a part."""
    while content:
        content = content[os.write(descriptor, content) :]


def _raised(error: BaseException) -> Raised:
    if isinstance(error, ZmqrlError):
        kind = next(each.__name__ for each in type(error).__mro__ if ERRORS.get(each.__name__) is each)
        fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        return Raised(kind, str(error), json.dumps(fields, default=str))
    text, frames = described(error), traceback_of(error)
    if isinstance(error, SystemExit):
        return Raised(OF_USER, f"sys.exit was called: {text}")
    return Raised(OF_USER if frames else "", text, traceback=frames)


def places(dump: str) -> Iterator[Place]:
    """The place of the call in each dump of faulthandler, oldest first."""
    for stack in dump.split("\n\n"):
        frames = [
            traceback.FrameSummary(file, int(number), function, lookup_line=False)
            for file, number, function in _FRAME.findall(stack)
        ]
        if any(frame.filename == __file__ for frame in frames):  # the thread that carries out the call
            newest = next(filter(is_own, frames), frames[0])
            yield Place(newest.filename, newest.lineno or 0, newest.name)
