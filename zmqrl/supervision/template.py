"""The template: a fresh process without the user's code that forks a check process for each call, and ends it.

After the last call it may become the host agent of this machine, which has then imported what it needs.

The template, not the command, is the parent of what the user's code starts: as a child subreaper it inherits every
orphan, also one with a session and an environment of its own. It ends them after each call, and when the command ends.
"""

from __future__ import annotations

import _thread
import base64
import faulthandler
import fcntl
import importlib
import io
import itertools
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple, NoReturn

from zmqrl import errors
from zmqrl.errors import ZmqrlError
from zmqrl.loading import add_own_paths, loading
from zmqrl.messages.check import Answer, Become, Call, Ended, Report, Stage, data_of, read_request
from zmqrl.messages.lines import line_of
from zmqrl.plugins import described, traceback_of
from zmqrl.supervision.own_session import adopt_orphans, die_with
from zmqrl.supervision.process_table import await_gone, children_of, send
from zmqrl.supervision.shown_command import assume, unpacked

ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ZmqrlError)}
"""What crosses the boundary as it is; a subclass of another module as its base."""
OF_USER = "user"
"""Value in place of the name of a class, for an exception of the user's code."""
TEMPLATE, CALLS = "zmqrl.template", "zmqrl.planning.check_calls"
RUN = 4
"""Place of the run in a command line: PYTHON -m zmqrl.entry ROLE RUN INDEX."""
UNANSWERED = 97
"""Exit code of a check process whose answer could not be written."""
TERM_S, KILL_S, END_S = 0.5, 1.0, 5.0
"""For what is left: to end after SIGTERM, to end after SIGKILL, and altogether."""
DESCRIPTORS = 60_000
"""Lowest number of a check process's descriptors: `os.closerange(3, 4096)` of the user's code leaves them open."""


class _Pipes(NamedTuple):
    requests: BinaryIO
    reports: int
    log: int


def main() -> str | None:
    """Serve calls until the command closes its pipe, stdin. Reports go to what stdout was, the log is stderr.

    Returns:
        Id of the run whose host agent this process is from now on.
    """
    adopt_orphans()
    pipes, null = _Pipes(os.fdopen(os.dup(0), "rb"), _moved(1), _moved(2)), os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    with loading():
        importlib.import_module(CALLS)
    with _unpacked(json.loads(pipes.requests.readline() or "null")):
        while request := pipes.requests.readline():
            if request.strip():  # else the process of the last call has ended before
                asked = read_request(request)
                if isinstance(asked, Become):
                    return _become(asked, pipes)
                _write(pipes.reports, _served(asked, pipes))
    return None


def _become(asked: Become, pipes: _Pipes) -> str:
    """Have the descriptors and the command line of a host agent. Returns the id of its run."""
    log = os.open(os.fsencode(unpacked((asked.log,))[0]), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    for number, descriptor in enumerate((pipes.requests.fileno(), pipes.reports, log)):
        os.dup2(descriptor, number)
    pipes.requests.close()
    for descriptor in (pipes.reports, pipes.log, log):
        os.close(descriptor)
    words = unpacked(asked.words)
    try:
        assume((asked.words, asked.environment))
    except OSError:  # the reaper would not know it
        os.execvp(words[0], words)
    add_own_paths()
    return words[RUN]


@contextmanager
def _unpacked(code: str | None) -> Iterator[None]:
    """Inside, modules of a tar archive (base64) can be imported."""
    if code is None:
        yield
        return
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory(prefix="zmqrl-check-") as folder:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code)), mode="r:") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 and 3.10.11 have none
            archive.extractall(folder)
        sys.path.insert(0, folder)
        yield


def _moved(descriptor: int) -> int:
    least = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16, DESCRIPTORS)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)


def _write(descriptor: int, report: Report) -> None:
    """On a line of its own: a process that was killed may have left a part of one."""
    content = b"\n" + line_of(report)
    while content:
        content = content[os.write(descriptor, content) :]


def _served(call: Call, pipes: _Pipes) -> Ended:
    """Fork a check process, wait for its end or that of the command's patience, and end all that it leaves."""
    template, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(pipes.requests.fileno())
        _check(call, pipes, template)
    pidfd, watched = os.pidfd_open(pid), select.poll()
    for descriptor in (pidfd, pipes.requests):
        watched.register(descriptor, select.POLLIN)
    if pidfd not in dict(watched.poll()):
        pipes.requests.readline()
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(code, tuple(end_children()))


def end_children() -> list[int]:
    """End all children of this process, and those that it inherits by their ends; returns pids that cannot be ended.

    Each is reaped by its own pid.
    """
    until, number, wait_s = time.monotonic() + END_S, signal.SIGTERM, TERM_S
    while _has_children():
        found = children_of(os.getpid())
        for process in found:
            send(process, number)
        await_gone(found, wait_s)
        for process in found:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        if time.monotonic() > until:
            return [process.pid for process in found]
        number, wait_s = signal.SIGKILL, KILL_S
    return []


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # none is reaped
    except ChildProcessError:
        return False
    return True


def _check(call: Call, pipes: _Pipes, template: int) -> NoReturn:
    """The check process: carry out `call`. Nothing of the interpreter's own end is run."""
    pid, code = os.getpid(), UNANSWERED
    try:
        try:
            _prepare(call, pipes, template)
            answer = Answer(data_of(_value(call, pipes.reports)))
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            answer = _raised(error)
        if os.getpid() == pid:  # else the user's code has forked, and its copy came here
            _write(pipes.reports, answer)
            code = 0
    finally:
        os._exit(code)


def _prepare(call: Call, pipes: _Pipes, template: int) -> None:
    die_with(template)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a worker: a KeyboardInterrupt is the user's own
    warnings.simplefilter("ignore")
    sys.breakpointhook = lambda *_, **__: None  # its output is not shown
    faulthandler.enable(pipes.log)
    faulthandler.dump_traceback_later(4 * call.dump_s, file=pipes.log)  # where the thread below never has a turn
    _thread.start_new_thread(watch, (_thread.get_ident(), call.dump_s, pipes.log))
    _write(pipes.reports, Stage("start"))


def watch(thread: int, dump_s: float, log: int) -> None:
    """Write the frames of `thread` each time that `dump_s` has passed, in the format of faulthandler.

    The thread of faulthandler reads frames without the interpreter's lock, which crashes a process that imports or
    computes. It has its turn only when this one has had none for `dump_s`: one call of C holds the lock, and no frame
    changes.
    """
    sleep, frames_of, frames_below = time.sleep, sys._current_frames, traceback.walk_stack
    for look in itertools.count():
        faulthandler.dump_traceback_later(dump_s, file=log)
        sleep(dump_s / 2)
        if look % 2:
            frames = [(frame.f_code, line) for frame, line in frames_below(frames_of()[thread])]
            shown = "".join(f'  File "{code.co_filename}", line {line} in {code.co_name}\n' for code, line in frames)
            with suppress(OSError):
                os.write(log, f"Timeout (of a look)!\n{shown}\n".encode(errors="replace"))


def _value(call: Call, reports: int) -> Any:
    module, _, name = call.function.partition(":")
    found = getattr(importlib.import_module(module), name)(*json.loads(call.arguments))
    while isinstance(found, Generator):
        try:
            _write(reports, next(found))
        except StopIteration as end:
            return end.value
    return found


def _raised(error: BaseException) -> Answer:
    if isinstance(error, ZmqrlError):
        kind = next(each.__name__ for each in type(error).__mro__ if ERRORS.get(each.__name__) is each)
        fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        return Answer(error=kind, text=str(error), fields=json.dumps(fields, default=str))
    if isinstance(error, SystemExit):
        return Answer(error=OF_USER, text=f"sys.exit was called: {described(error)}")
    frames = traceback_of(error)
    return Answer(error=OF_USER if frames else "", text=described(error), traceback=frames)
