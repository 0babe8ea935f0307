from __future__ import annotations

from pathlib import Path

import pytest

from zmqrl.agent.ipc_folder import IpcFolder, run_folder_root
from zmqrl.errors import ConfigError


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
    with pytest.raises(ConfigError, match="chmod 700"):
        IpcFolder(tmp_path, "run-1")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    folder = IpcFolder(tmp_path / "root", "r" * 100)
    with pytest.raises(ConfigError, match="too long for a socket path"):
        folder.endpoints()


def test_root_is_the_runtime_dir_or_one_in_tmp(tmp_path: Path) -> None:
    assert run_folder_root(str(tmp_path), 7) == tmp_path / "zmqrl"
    assert run_folder_root(None, 7) == Path("/tmp/zmqrl-7")
    assert run_folder_root("/nowhere", 7) == Path("/tmp/zmqrl-7")
