"""What every process of zmqrl restores of an inherited state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.running import environment
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError
from zmqrl.inherited import INTENDED, working_directory
from zmqrl.launch.stop_signals import StopRequest, StopSignals

INHERIT = Path(__file__).parent / "machine_inputs" / "inherit.py"
STATE = """
import os, signal
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
from zmqrl.inherited import set_right
set_right()
ignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
print(sorted(ignored), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), oct(os.umask(0)))
"""


def state_after(kinds: str) -> str:
    command = [sys.executable, INHERIT, kinds, sys.executable, "-c", STATE]
    return subprocess.check_output(command, env=environment(), text=True, timeout=WAIT_S).strip()


def test_ignored_and_blocked_signals_and_a_umask_that_takes_the_owners_rights() -> None:
    of_python = sorted(map(int, (signal.SIGPIPE, signal.SIGXFSZ)))
    umask = os.umask(0o022)
    try:
        assert state_after("sigchld,block") == f"{of_python} [] 0o22"
        assert state_after("ignore,umask") == f"{sorted(map(int, INTENDED))} [] 0o77"
    finally:
        os.umask(umask)


def test_a_child_of_a_run_restores_them_too() -> None:
    command = [sys.executable, INHERIT, "ignore,block", sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "RUN", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline()
        status = Path(f"/proc/{process.pid}/status").read_text()
        masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
        bits = {number: 1 << number - 1 for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)}
        assert not [n for n, bit in bits.items() if (int(masks["SigIgn"], 16) | int(masks["SigBlk"], 16)) & bit]
        process.stdin.close()
        process.wait(WAIT_S)


def test_a_launcher_in_a_script_receives_signals_that_the_script_blocks() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    try:
        signals = StopSignals()
        with signals.caught():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.request == StopRequest.STOP
        assert {signal.SIGTERM, signal.SIGUSR1} <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_a_working_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with raises(ConfigError, fix="change to a directory that exists: cd ~"):
        working_directory()
