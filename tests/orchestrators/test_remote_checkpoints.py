"""Copies of a far learner's checkpoints: the newest wins, nothing damaged is taken, and the wire is left to others."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.agent.plans import stand_in_plan
from tests.orchestrators.test_host_commands import SHELLS
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.config.sections import Config, HostSection
from zmqrl.data_stores import tensors
from zmqrl.data_stores.checkpoints import COPIED, COPIED_DURING_RUN
from zmqrl.data_stores.copies import BUSY_SHARE
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import HostFailed
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.host_commands import REMOTE_RUNS
from zmqrl.orchestrators.on_hosts import reap_over
from zmqrl.orchestrators.remote_checkpoints import LearnerFiles, Mirror, bring, bring_left, remove, send
from zmqrl.ssh.connection import Connection
from zmqrl.ssh.shell import Finished, HostShell


class Shell:
    """A connection to this machine: commands by a shell, files by copying, as slowly as is asked."""

    host = "far"

    def __init__(self, login: str = "sh") -> None:
        """`login`: the login shell."""
        self._login = login
        self.slow_s, self.fails = 0.0, False
        self.failures = 0
        """How many of the next copies fail."""
        self.gets: list[float] = []

    def check_answer(self) -> None:
        """It answers."""

    def run(self, command: str, timeout_s: float) -> Finished:
        if self.fails:
            raise HostFailed("far", "the connection is lost", "try again")
        done = subprocess.run([self._login, "-c", command], capture_output=True, timeout=timeout_s, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)

    def get(self, path: str, target: Path) -> None:
        self.gets.append(time.monotonic())
        time.sleep(self.slow_s)
        if self.failures:
            self.failures -= 1
            raise HostFailed("far", "the stream was cut", "try again")
        shutil.copyfile(path, target)

    def put(self, path: Path, target: str) -> None:
        shutil.copyfile(path, target)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def close(self) -> None:
        pass

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def shell() -> Shell:
    return Shell()


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far dir").mkdir()
    return tmp_path / "far dir"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


def write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.safetensors").write_bytes(tensors.dump({"w": np.arange(50.0)}, {"name": name}))


def names(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(".safetensors") for path in folder.iterdir())


def take(shell: Shell, far: Path, here: Path, kinds: dict[str, int] | None = None, check_here: bool = False) -> bool:
    return bring(cast(Connection, shell), str(far), here, kinds or COPIED_DURING_RUN, check_here)


def test_the_newest_are_copied_and_the_older_ones_removed(shell: Shell, far: Path, here: Path) -> None:
    write(far, "full-0-9", "full-0-10", "full-0-8", "best-0-4", "best-0-7", "v0-10", "v0-9")
    assert take(shell, far, here)
    assert names(here) == ["best-0-7", "full-0-10", "full-0-9"]
    assert names(far) == sorted(["full-0-9", "full-0-10", "full-0-8", "best-0-4", "best-0-7", "v0-10", "v0-9"])
    write(far, "full-0-11", "best-0-11")
    assert take(shell, far, here)
    assert names(here) == ["best-0-11", "full-0-10", "full-0-11"]
    assert take(shell, far, here, dict(COPIED)) and "v0-10" in names(here)


def test_what_is_not_newer_is_not_read(shell: Shell, far: Path, here: Path) -> None:
    write(far, "full-0-38", "best-0-30")
    write(here, "full-1-2", "best-0-30")
    assert take(shell, far, here)
    assert (names(here), shell.gets) == (["best-0-30", "full-1-2"], [])


def test_a_damaged_file_does_not_replace_anything(shell: Shell, far: Path, here: Path) -> None:
    write(far, "full-0-5")
    write(here, "full-0-4")
    path = far / "full-0-5.safetensors"
    path.write_bytes(path.read_bytes()[:-3] + b"bad")
    assert not take(shell, far, here)
    assert names(here) == ["full-0-4"] and names(far) == ["full-0-5"]


def test_a_damaged_file_uses_up_no_place(shell: Shell, far: Path, here: Path) -> None:
    """Neither among what is copied nor among what is kept."""
    write(far, "full-0-3", "full-0-4", "full-0-5", "full-0-6")
    for name in ("full-0-5", "full-0-6"):
        (far / f"{name}.safetensors").write_bytes(b"half")
    assert not take(shell, far, here)
    assert names(here) == ["full-0-3", "full-0-4"]
    (here / "full-0-5.safetensors").write_bytes(b"half")
    write(far, "full-0-6")
    assert take(shell, far, here)
    assert names(here) == ["full-0-4", "full-0-5", "full-0-6"], "two whole ones, and a damaged one between them"


def test_a_file_system_whose_directories_cannot_be_synced_takes_copies(
    shell: Shell, far: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def files_alone(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(fd)

    monkeypatch.setattr(os, "fsync", files_alone)
    write(far, "full-0-5")
    assert take(shell, far, here) and names(here) == ["full-0-5"]


def test_a_damaged_file_is_not_sent(shell: Shell, far: Path, here: Path) -> None:
    write(here, "full-0-3", "full-0-4", "full-0-5", "best-0-2")
    (here / "full-0-5.safetensors").write_bytes(b"half")
    send(cast(Connection, shell), here, str(far))
    assert names(far) == ["best-0-2", "full-0-3", "full-0-4"]


def test_a_learner_that_resumes_has_the_newest_kept_version_and_keeps_none_twice(
    shell: Shell, far: Path, here: Path
) -> None:
    write(here, "full-0-3", "kept-0-1", "kept-0-2", "kept-0-3")
    (here / "kept-0-3.safetensors").write_bytes(b"half")
    send(cast(Connection, shell), here, str(far))
    assert names(far) == ["full-0-3", "kept-0-2"]
    assert DirectoryStore(str(far), 8).newest_kept() == (here / "kept-0-2.safetensors").read_bytes()
    assert take(shell, far, here, dict(COPIED))
    assert names(here) == ["full-0-3", "kept-0-1", "kept-0-2", "kept-0-3"]


def test_a_resume_takes_what_is_whole_there_and_damaged_here(shell: Shell, far: Path, here: Path) -> None:
    for folder in (far, here):
        write(folder, "full-0-5")
    (here / "full-0-5.safetensors").write_bytes(b"half")
    assert take(shell, far, here) and (here / "full-0-5.safetensors").read_bytes() == b"half"
    assert take(shell, far, here, check_here=True)
    assert (here / "full-0-5.safetensors").read_bytes() == (far / "full-0-5.safetensors").read_bytes()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_resume_removes_what_a_killed_launcher_left_once_all_is_copied(
    shell: Shell, far: Path, here: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.remote_checkpoints.connect", lambda config, host: shell)
    folder = far / "run-1" / "h0"
    (folder / "logs").mkdir(parents=True)
    write(folder / "checkpoints", "full-0-4", "full-0-5")
    if not is_whole:
        (folder / "checkpoints" / "full-0-5.safetensors").write_bytes(b"half")
    bring_left("h0", Config(), str(folder), here)
    assert names(here) == ["full-0-4", "full-0-5"][: 1 + is_whole]
    assert folder.parent.exists() != is_whole


def test_all_kept_versions_are_copied_also_those_older_than_one_here(shell: Shell, far: Path, here: Path) -> None:
    write(far, "kept-0-1", "kept-0-2", "kept-0-3", "best-0-2")
    write(here, "kept-0-2")
    assert take(shell, far, here) and names(here) == ["best-0-2", "kept-0-1", "kept-0-2", "kept-0-3"]
    assert len(shell.gets) == 3
    assert take(shell, far, here) and len(shell.gets) == 3


def test_a_folder_that_is_not_there_yet_is_empty(shell: Shell, far: Path, here: Path) -> None:
    assert take(shell, far / "later", here)
    assert names(here) == []


@pytest.mark.parametrize("login", SHELLS)
def test_every_login_shell_lists_copies_and_removes(login: str, tmp_path: Path, here: Path) -> None:
    """Also a csh, which has no `2>`, and a fish, which had no `{ ...; }` before 4.1."""
    if shutil.which(login) is None:
        pytest.skip(f"{login} is not installed")
    shell, workdir = Shell(login), tmp_path / "far! dir"
    run_id = f"r-{os.getpid()}"  # of this process of pytest: a reaper ends another one of the same run
    far = workdir / REMOTE_RUNS / run_id / "h0" / "checkpoints"
    assert take(shell, far, here) and names(here) == [], "it is not there yet"
    far.mkdir(parents=True)
    write(far, "full-0-5", "best-0-4")
    assert take(shell, far, here)
    assert names(here) == ["best-0-4", "full-0-5"] and names(far) == ["best-0-4", "full-0-5"]
    remove(cast(Connection, shell), str(far.parent))
    assert list(workdir.rglob("*")) == [workdir / REMOTE_RUNS]
    far.mkdir(parents=True)
    sections = {"h0": HostSection(python=sys.executable, workdir=str(workdir))}
    ((_, found),) = reap_over([("h0", cast(HostShell, shell))], sections, run_id, 0.1, "local")
    assert isinstance(found, Reaped) and list(workdir.rglob("*")) == [workdir / REMOTE_RUNS]


@pytest.mark.whole
def test_copying_takes_a_bounded_share_of_the_time(shell: Shell, far: Path, here: Path) -> None:
    shell.slow_s = 0.1
    write(far, "full-0-1")
    begun = time.monotonic()
    mirror = Mirror(cast(Connection, shell), str(far), here, 0.01, lambda host, text: None)
    number = 1
    while len(shell.gets) < 4:
        assert time.monotonic() < begun + WAIT_S, shell.gets
        if f"full-0-{number}" in (names(here) if here.is_dir() else []):
            number += 1
            write(far, f"full-0-{number}")
        time.sleep(0.01)
    mirror.close()
    took_s = time.monotonic() - begun
    assert len(shell.gets) <= took_s * BUSY_SHARE / shell.slow_s + 1


def test_a_failure_and_its_recovery_are_each_reported_once(shell: Shell, far: Path, here: Path) -> None:
    warnings: list[str] = []
    write(far, "full-0-1")
    shell.fails = True
    mirror = Mirror(cast(Connection, shell), str(far), here, 0.01, lambda *warning: warnings.append(": ".join(warning)))
    time.sleep(0.3)  # many tries
    shell.fails = False
    until(lambda: here.is_dir() and names(here) == ["full-0-1"], "the file")
    mirror.close()
    assert len(warnings) == 1 and warnings[0].startswith("far: ") and "the connection is lost" in warnings[0]


@pytest.fixture
def learner_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LearnerFiles, list[str]]:
    """Of a run whose learner is on the host far; what it warns of."""
    monkeypatch.setattr("zmqrl.orchestrators.remote_checkpoints.RETRIES_AFTER_S", (0.01, 0.01))
    plan = stand_in_plan(here.parent / "run")
    config = replace(plan.config, learner=replace(plan.config.learner, host="far"))
    config = replace(config, run=replace(config.run, checkpoint_every_s=0.01))
    warnings: list[str] = []
    plan = replace(plan, config=config, store_path=str(here))
    return LearnerFiles(plan, lambda host, text: warnings.append(text)), warnings


@pytest.mark.parametrize("failures", [2, 3])
def test_what_the_learner_left_is_collected_by_a_further_attempt_or_stays(
    shell: Shell, far: Path, here: Path, learner_files: tuple[LearnerFiles, list[str]], failures: int
) -> None:
    collecting, warnings = learner_files
    write(far / "checkpoints", "v0-7")
    shell.failures = failures
    assert collecting.collect(cast(Connection, shell), str(far)) == (failures == 2)
    assert warnings == ([] if failures == 2 else ["the stream was cut; try again"])
    assert far.exists() == (failures == 3) and (not here.exists() or names(here) == (["v0-7"] if failures == 2 else []))


def test_an_error_of_this_machine_does_not_end_the_teardown(
    shell: Shell, far: Path, learner_files: tuple[LearnerFiles, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "verify", lambda content: bytes(1 << 62))
    write(far / "checkpoints", "v0-7")
    assert not learner_files[0].collect(cast(Connection, shell), str(far))
    assert "MemoryError" in learner_files[1][0] and far.exists()


def test_a_copy_that_was_begun_ends_before_the_rest_is_collected(
    shell: Shell, far: Path, here: Path, learner_files: tuple[LearnerFiles, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would use the same second name there."""
    monkeypatch.setattr("zmqrl.orchestrators.remote_checkpoints.CLOSE_S", 0.0)
    write(far / "checkpoints", "full-0-5")
    shell.slow_s = 0.5
    learner_files[0].mirror(cast(Connection, shell), str(far))
    until(lambda: shell.gets, "the copy")
    learner_files[0].close()
    assert learner_files[0].collect(cast(Connection, shell), str(far))
    assert (names(here), len(shell.gets), learner_files[1]) == (["full-0-5"], 1, [])


def test_no_copy_begins_for_a_start_that_ends_after_the_run(
    shell: Shell, far: Path, learner_files: tuple[LearnerFiles, list[str]]
) -> None:
    learner_files[0].close()
    learner_files[0].mirror(cast(Connection, shell), str(far))
    assert not [thread for thread in threading.enumerate() if thread.name == "mirror of checkpoints"]
