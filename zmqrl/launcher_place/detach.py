"""`--detach`: the launcher continues in a separate session, and the command returns once all are READY."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from zmqrl.errors import ZmqrlError
from zmqrl.logs.standard_output import lossy_output
from zmqrl.messages.files import LauncherReady
from zmqrl.run_files.run_info import read_info

READY = b"R"
REPORT_S = 10.0
"""A command that waits for longer reports what it waits for."""
READY_MARK = "ZMQRL-READY "


def run_detached(run_dir: Path, run: Callable[[Callable[[], None]], int]) -> int:
    """Fork before anything was started (no thread, no socket, no client of a service); the child calls `run(on_ready)`.

    Returns:
        0 once the child reports READY; the child's exit code when it ends before.
    """
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        os._exit(_child(run_dir, run, write_fd))
    os.close(write_fd)
    try:
        with _forwarded_to(pid):
            if not select.select([read_fd], [], [], REPORT_S)[0]:
                print(
                    f"waiting for processes that are not ready; see: zmqrl status {run_dir}; to stop the run: Ctrl-C",
                    file=sys.stderr,
                    flush=True,
                )
            if os.read(read_fd, 1) != READY:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(read_fd)
    print(f"run in {run_dir} continues in the background (pid {pid}): `zmqrl status {run_dir}`")
    return 0


@contextlib.contextmanager
def _forwarded_to(pid: int) -> Iterator[None]:
    """SIGINT and SIGTERM go to the launcher, which ends the run. A closed terminal (SIGHUP) ends this command alone."""
    before = {number: signal.signal(number, lambda n, _: os.kill(pid, n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_place(run_dir: Path, run: Callable[[Callable[[], None]], int]) -> int:
    """This process is the launcher, started by SSH from another machine; READY is a line of JSON behind `READY_MARK`.

    From then on nothing of the login is held: its output may end at any time, before READY too.
    """
    with contextlib.suppress(PermissionError):  # it leads the session that sshd made
        os.setsid()

    def on_ready() -> None:
        info = read_info(run_dir)
        ready = LauncherReady("" if info is None else info.run_id, str(run_dir.absolute()))
        print(READY_MARK + msgspec.json.encode(ready).decode(), flush=True)
        _redirect(run_dir)

    with lossy_output():
        try:
            return run(on_ready)
        except ZmqrlError as error:
            print(f"zmqrl: {error}", file=sys.stderr, flush=True)
            return error.exit_code


def _child(run_dir: Path, run: Callable[[Callable[[], None]], int], write_fd: int) -> int:
    os.setsid()
    reported = False

    def on_ready() -> None:
        nonlocal reported
        reported = True
        _redirect(run_dir)
        with contextlib.suppress(BrokenPipeError):  # the command was killed while it waited
            os.write(write_fd, READY)
        os.close(write_fd)

    with lossy_output():
        try:
            return run(on_ready)
        except Exception as error:
            if getattr(error, "exit_code", None) is None:
                traceback.print_exc()
            else:
                print(error, file=sys.stderr, flush=True)
            return int(getattr(error, "exit_code", 1))


def _redirect(run_dir: Path) -> None:
    """Redirect messages to the launcher's log, and nowhere on a full disk: no terminal is attached from here on."""
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        log = os.open(run_dir / "logs" / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        log = os.dup(null)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
