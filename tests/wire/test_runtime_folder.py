"""Temporary folders: private, removed at every end of their process, and never those of a live one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.wire import runtime_folder
from zmqrl.wire.runtime_folder import (
    RUNTIME_VARIABLE,
    IpcFolder,
    is_own,
    remove_left_folder,
    remove_left_folders,
    temporary_folder,
)

HOLDER = """
from zmqrl.wire.runtime_folder import temporary_folder
with temporary_folder() as folder:
    (folder / "library.so").touch()
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path / "root"))
    return tmp_path / "root"


@contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a temporary folder until it reads a line."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_folder_is_private_and_removed_at_the_end(root: Path) -> None:
    with temporary_folder() as folder, temporary_folder() as other:
        assert {path.stat().st_mode & 0o777 for path in (root, folder, other)} == {0o700}
        assert folder != other
        (folder / "in").mkdir()
    with pytest.raises(OSError, match="of the body"), temporary_folder():
        raise OSError("of the body")
    assert os.listdir(root) == []


def test_a_root_that_others_may_enter_is_refused(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    with raises(ConfigError, value=str(root)), temporary_folder():
        pass


def test_folders_of_processes_that_were_killed_are_removed(root: Path) -> None:
    with holder() as (killed, left), holder() as (_, used):
        killed.kill()
        killed.wait()
        assert left.is_dir()
        assert remove_left_folders() == [left]
        assert remove_left_folders() == []
        assert [path.name for path in used.iterdir()] == ["library.so"]
        with temporary_folder() as own:
            assert remove_left_folders() == [] and own.is_dir()
    with temporary_folder() as own:
        assert os.listdir(root) == [own.name], "the next process has removed what the last one left"
    assert not used.exists()


def test_the_end_of_a_run_removes_them(root: Path) -> None:
    with holder():
        pass
    assert len(os.listdir(root)) == 1
    remove_left_folder("of a run")
    assert os.listdir(root) == []


def test_what_is_a_link_or_cannot_be_seen_is_not_ones_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert is_own(tmp_path)
    assert not any(map(is_own, (tmp_path / "link", tmp_path / "file", tmp_path / "file" / "below", tmp_path / "none")))


def test_a_folder_whose_lock_is_released_late_is_removed(root: Path) -> None:
    root.mkdir(mode=0o700)
    folder = IpcFolder(root, "of a run")
    late = threading.Timer(0.3, os.close, [folder._lock])
    late.start()
    remove_left_folder("of a run")
    late.join()
    assert not folder.path.exists()


def test_a_folder_that_stays_locked_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_folder, "RELEASE_S", 0.1)
    root.mkdir(mode=0o700)
    folder = IpcFolder(root, "of a run")
    remove_left_folder("of a run")
    assert folder.path.exists()
    folder.close()
