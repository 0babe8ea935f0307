"""The process of a ProxyCommand: no signal of the terminal ends it, and its transport does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.waiting import until
from zmqrl.ssh.transport import Proxied


def started(pid_file: Path) -> int:
    until(lambda: pid_file.exists() and pid_file.read_text().strip())
    return int(pid_file.read_text())


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_proxy_command_has_a_session_of_its_own_and_ends_with_its_stdin(tmp_path: Path) -> None:
    """Ctrl-C and the end of the terminal go to each process of the session of this one."""
    transport = Proxied(f"sh -c 'echo $$ >{tmp_path}/pid; exec cat'")
    pid = started(tmp_path / "pid")
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    transport.close()
    assert not runs(pid)


def test_a_proxy_command_that_ignores_the_end_of_its_stdin_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.ssh.transport.END_S", 0.2)
    transport = Proxied(f"sh -c 'sleep 600 & echo $! >{tmp_path}/pid; wait'")
    pid = started(tmp_path / "pid")
    transport.close()
    transport.close()
    until(lambda: not runs(pid))
