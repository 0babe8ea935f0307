"""Commands that end or change a run of another user: root leaves its files to that user, all others are refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import Command, Ended
from tests.support.running import environment
from tests.support.stored_runs import store_run
from tests.support.waiting import WAIT_S
from zmqrl.errors import DeadlineExceeded
from zmqrl.launch.requests import FOLDER, send_request
from zmqrl.messages.files import ScaleRequest
from zmqrl.run_files.run_info import RunInfo, read_info
from zmqrl.supervision.process_table import identify, is_alive

OTHER, THIRD = 4_711, 4_712
READS_ALL = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
"""This checkout and its Python may be in the home of root. Signals and writing are not affected."""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="files and processes of another user need root"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]


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


def as_third_user(*words: object, folder: Path = Path("/")) -> Ended:
    account = ["setpriv", "--reuid", str(THIRD), "--regid", str(THIRD), "--clear-groups", *READS_ALL]
    command = [*account, sys.executable, "-m", "zmqrl", *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


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


@pytest.mark.parametrize("words", [("stop",), ("down",), ("down", "--limit", "local")])
def test_a_run_of_another_user_is_refused_at_once(tmp_path: Path, launcher: int, words: tuple[str, ...]) -> None:
    directory = run_of(tmp_path / "run", launcher)
    ended, process = as_third_user(words[0], directory, *words[1:]), identify(launcher)
    what = f"zmqrl: run run-1 in {directory} is of user {OTHER}; ask {OTHER} or root to end it\n"
    assert (ended.code, ended.out, ended.err) == (2, "", what)
    assert process is not None and is_alive(process)


def test_a_run_of_another_user_whose_launcher_has_ended_is_refused(tmp_path: Path, launcher: int) -> None:
    directory = run_of(tmp_path / "run", launcher)
    os.kill(launcher, 9)
    os.waitpid(launcher, 0)
    ended = as_third_user("down", directory)
    assert (ended.code, ended.out) == (2, "")
    assert f"is of user {OTHER}" in ended.err


def test_down_of_all_leaves_out_runs_of_other_users(tmp_path: Path, launcher: int) -> None:
    run_of(tmp_path / "runs" / "a", launcher)
    ended = as_third_user("down", "--all", folder=tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, "no active run of yours on this machine\n", "")
