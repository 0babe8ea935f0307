"""A terminal that is closed during a run ends it as Ctrl-C does. A run may begin without standard streams, or on a
terminal that cannot show every character."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.commands import ENDLESS, RUN
from tests.support.marks import long
from tests.support.waiting import WAIT_S, until

IN_THE_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "zmqrl", *sys.argv[1:]])
"""


def test_the_run_ends_with_a_summary_and_on_end(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    run, told = tmp_path / "run", tmp_path / "told"
    words = ("train", "cartpole-ppo", *ENDLESS, "--set", f"on_end=touch {told}", "--run-dir", str(run))
    argv = [sys.executable, "-c", IN_THE_TERMINAL, *words]
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        _await_env_steps(master, run / "status.json")
        os.close(master)
        assert process.wait(WAIT_S) == 130
    finally:
        process.kill()
        process.wait()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert told.exists()


@pytest.mark.parametrize("flags", [(), long(("--plain",)), ("--detach",)], ids=" ".join)
def test_a_run_without_standard_streams(tmp_path: Path, flags: tuple[str, ...]) -> None:
    run, told = tmp_path / "run", tmp_path / "told"
    words = (*RUN, "--set", f"on_end=touch {told}", "--run-dir", str(run), *flags)
    words = tuple(word for word in words if word != "--plain" or flags == ("--plain",))
    command = ["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', sys.executable, "-m", "zmqrl", *words]
    subprocess.run(command, timeout=WAIT_S, check=True)
    until(told.exists, "on_end")
    assert json.loads((run / "summary.json").read_text())["status"] == "done"


def test_a_run_on_a_terminal_that_is_not_utf_8(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    run, told = tmp_path / "run", tmp_path / "told"
    words = [word for word in RUN if word != "--plain"]
    argv = [sys.executable, "-m", "zmqrl", *words, "--set", f"on_end=touch {told}", "--run-dir", str(run)]
    environment = {**os.environ, "PYTHONIOENCODING": "iso8859-1", "TERM": "xterm"}
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        with contextlib.suppress(OSError):  # EIO: its end
            while chunk := os.read(master, 1 << 16):
                shown += chunk
        assert process.wait(WAIT_S) == 0, shown.decode("iso8859-1")
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert json.loads((run / "summary.json").read_text())["status"] == "done" and told.exists()
    assert b"?" * 10 in shown, "the bar"


def _await_env_steps(terminal: int, status: Path) -> None:
    by = time.monotonic() + WAIT_S
    while time.monotonic() < by:
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 1 << 16)
        if status.exists() and json.loads(status.read_text())["env_steps"]:
            return
    raise AssertionError("the run has not begun within 60 s")
