"""Commands of root on a run of another user leave its files to that user."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import Command
from tests.support.stored_runs import store_run
from zmqrl.errors import DeadlineExceeded
from zmqrl.launch.requests import FOLDER, send_request
from zmqrl.messages.files import ScaleRequest
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.supervision.process_table import identify

OTHER = 4_711
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files and processes of another user need root")


@pytest.fixture
def launcher() -> Iterator[int]:
    """A process of `OTHER` in place of a launcher."""
    with subprocess.Popen(["sleep", "600"], user=OTHER) as process:
        yield process.pid
        process.kill()


def run_of(directory: Path, pid: int) -> Path:
    """A run of `OTHER`, whose launcher is this process."""
    store_run("cartpole-ppo", directory)
    process = identify(pid)
    assert process is not None
    info = RunInfo("run-1", pid, process.start_time, socket.gethostname(), time.time(), None, lineage="x")
    (directory / "run.json").write_bytes(msgspec.json.encode(info))
    for path in (directory, *directory.rglob("*")):
        os.chown(path, OTHER, OTHER)
    return directory


def test_files_of_a_run_that_root_brings_down_remain_those_of_its_user(
    zmqrl: Command, tmp_path: Path, launcher: int
) -> None:
    directory = run_of(tmp_path / "run", launcher)
    down = zmqrl("down", directory)
    assert (down.code, down.err) == (0, "")
    info, found = read_info(directory), (directory / "run.json").stat()
    assert info is not None and info.ended_at is not None
    assert (found.st_uid, found.st_gid) == (OTHER, OTHER)


def test_a_request_of_root_can_be_removed_by_the_launcher_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER, OTHER)
    with pytest.raises(DeadlineExceeded):
        send_request(tmp_path, ScaleRequest({}), 0.1)
    assert (tmp_path / FOLDER).stat().st_uid == OTHER
