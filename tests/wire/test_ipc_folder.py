from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.wire import runtime_folder
from zmqrl.wire.runtime_folder import RUNTIME_VARIABLE, IpcFolder, is_held, remove_left_folder, run_folder_root


def test_private_and_gone_afterwards(tmp_path: Path) -> None:
    folder = IpcFolder(tmp_path / "root", "run-1")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.endpoints().control == f"ipc://{folder.path}/control"
    (folder.path / "control").touch()
    folder.close()
    folder.close()
    assert not folder.path.exists()


def test_a_root_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with raises(ConfigError, value=str(tmp_path)):
        IpcFolder(tmp_path, "run-1")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    folder = IpcFolder(tmp_path / "root", "r" * 100)
    with raises(ConfigError, value=str(folder.path)):
        folder.endpoints()


def test_the_root_outlives_a_login_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "own"))
    assert run_folder_root() == tmp_path / "own"
    monkeypatch.delenv(RUNTIME_VARIABLE)
    monkeypatch.setattr(runtime_folder, "TMP", tmp_path)
    assert run_folder_root() == tmp_path / f"zmqrl-{os.getuid()}"


def test_a_name_that_another_user_has_taken_is_left_to_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a link, or not this user's, cannot be made ours."""
    monkeypatch.delenv(RUNTIME_VARIABLE)
    monkeypatch.setattr(runtime_folder, "TMP", tmp_path)
    usual = tmp_path / f"zmqrl-{os.getuid()}"
    usual.symlink_to(tmp_path)
    IpcFolder(run_folder_root(), "run-1")
    assert run_folder_root() == run_folder_root() != usual
    assert (run_folder_root() / "run-1").is_dir()
    usual.unlink()
    assert run_folder_root() == usual


def test_a_folder_is_held_while_its_agent_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the agent is in a container: neither its pid nor its sockets are seen here."""
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path))
    hold = "import sys; from zmqrl.wire.runtime_folder import *; "
    hold += "f = IpcFolder(run_folder_root(), 'r'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdout.readline()
        assert is_held(tmp_path / "r")
        remove_left_folder("r")
        assert (tmp_path / "r").is_dir()
        agent.kill()
    assert not is_held(tmp_path / "r") and not is_held(tmp_path / "none")
    remove_left_folder("r")
    assert not (tmp_path / "r").exists()
