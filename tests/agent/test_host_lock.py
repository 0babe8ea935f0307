"""The register of a machine's agents: real files, real processes, other users, and what a liar can write."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from plans import stand_in_plan

from zmqrl.agent import host_lock
from zmqrl.agent.host_entry import Entry, own_entry, user_name
from zmqrl.agent.host_lock import HostLock, registered
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.supervision.process_table import identify

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.chmod(tmp_path, 0o755)
    return tmp_path / "agents"


def boot_of(tmp_path: Path, remote: bool = True, host: str = "node01") -> Boot:
    return Boot("agent", 0, 0, host, stand_in_plan(tmp_path / "run"), workers=(0, 1, 2), remote=remote)


def entry_of(pid: int, run_id: str = "other-1", uid: int | None = None) -> Entry:
    process = identify(pid)
    assert process is not None
    owner = os.getuid() if uid is None else uid
    return Entry(run_id, pid, process.start_time, user_name(owner), owner, time.time() - 7300, 15, "node01", "lap")


def put(folder: Path, entry: Entry, owner: int | None = None, **changed: object) -> Path:
    folder.mkdir(exist_ok=True)
    os.chmod(folder, 0o1777)
    path = folder / f"{entry.run_id}-{entry.host}.json"
    path.write_text(json.dumps({**to_json(entry), **changed}))
    os.chown(path, os.getuid() if owner is None else owner, -1)
    return path


@pytest.fixture
def own() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def others() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], user=NOBODY) as process:
        yield process.pid
        process.kill()


def test_an_agent_is_in_the_register_while_it_lives(folder: Path, tmp_path: Path) -> None:
    boot, told = boot_of(tmp_path, remote=False), []
    with registered(boot, "", told.append, folder):
        (path,) = folder.iterdir()
        assert path.name == f"{boot.plan.run_id}-node01.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
        (entry,) = HostLock(folder).entries()
        assert (entry.pid, entry.workers, entry.host) == (os.getpid(), 3, "node01")
        assert entry.launcher == socket.gethostname()
        assert entry.is_live
    assert list(folder.iterdir()) == []
    assert told == []


@needs_root
def test_another_users_run_is_refused_by_name_and_left_alone(folder: Path, tmp_path: Path, others: int) -> None:
    path = put(folder, entry_of(others, "walker-6a2b", NOBODY), NOBODY)
    with pytest.raises(ConfigError) as refused, registered(boot_of(tmp_path), "", print, folder):
        pass
    for part in ("node01: busy: run walker-6a2b of user nobody, since 2 h", "15 workers", "from lap", "--limit"):
        assert part in str(refused.value)
    assert list(folder.iterdir()) == [path]


@needs_root
def test_an_agent_started_here_is_never_refused(folder: Path, tmp_path: Path, others: int) -> None:
    put(folder, entry_of(others, uid=NOBODY), NOBODY)
    told: list[str] = []
    with registered(boot_of(tmp_path, remote=False), "", told.append, folder):
        assert len(list(folder.iterdir())) == 2
    assert told == []


def test_ones_own_other_run_is_a_warning(folder: Path, tmp_path: Path, own: int) -> None:
    put(folder, entry_of(own, "mine-7f3c"))
    told: list[str] = []
    with registered(boot_of(tmp_path), "10.0.0.7", told.append, folder):
        assert {entry.launcher for entry in HostLock(folder).entries()} == {"lap", "10.0.0.7"}
    (warning,) = told
    assert "run mine-7f3c" in warning
    assert "`zmqrl down mine-7f3c`" in warning


def test_another_agent_of_the_same_run_is_no_news(folder: Path, tmp_path: Path, own: int) -> None:
    boot = boot_of(tmp_path)
    put(folder, replace(entry_of(own, boot.plan.run_id), host="node02"))
    told: list[str] = []
    with registered(boot, "", told.append, folder):
        assert len(HostLock(folder).entries()) == 2
    assert told == []


def test_own_dead_entries_are_swept_and_a_pid_that_came_back_is_dead(folder: Path, tmp_path: Path, own: int) -> None:
    live = entry_of(own)
    put(folder, replace(live, start_time=live.start_time - 1))
    (folder / ".half-written").write_text("{")
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert [entry.pid for entry in HostLock(folder).entries()] == [os.getpid()]
        assert len(list(folder.iterdir())) == 1


@needs_root
@pytest.mark.parametrize(
    "lie",
    [
        {"uid": 0},
        {"uid": "65534"},
        {"pid": 1},
        {"pid": -1},
        {"pid": True},
        {"pid": 2**40},
        {"start_time": 0},
        {"start_time": 1.5},
        {"since": "yesterday"},
        {"since": float("nan")},
        {"since": 10**400},
        {"host": "\x1b[2J"},
        {"run_id": ["x"]},
        {"launcher": "x" * 300},
        {"workers": None},
        {"more": 1},
    ],
    ids=str,
)
def test_what_a_liar_writes_stops_nobody(folder: Path, tmp_path: Path, others: int, lie: dict[str, object]) -> None:
    path = put(folder, entry_of(others, uid=NOBODY), NOBODY, **lie)
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert path.exists()


@needs_root
def test_a_liar_cannot_name_the_process_of_another(folder: Path, tmp_path: Path, own: int) -> None:
    put(folder, entry_of(own, uid=NOBODY), NOBODY)
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        pass


@needs_root
def test_a_liar_goes_by_his_own_name(folder: Path, tmp_path: Path, others: int) -> None:
    put(folder, entry_of(others, uid=NOBODY), NOBODY, user="anna")
    with pytest.raises(ConfigError, match="of user nobody"), registered(boot_of(tmp_path), "", print, folder):
        pass


def test_odd_files_are_passed_by(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    os.chmod(folder, 0o1777)
    os.mkfifo(folder / "fifo.json")
    (folder / "deep.json").write_text("[" * 4000)
    (folder / "large.json").write_text('"' + "x" * 5000 + '"')
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    (folder / "list.json").write_text("[1]")
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to("/etc/passwd")
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert [entry.pid for entry in HostLock(folder).entries()] == [os.getpid()]


@pytest.mark.parametrize("bad", ["link", "dangling", "file", "unsticky"])
def test_a_folder_that_cannot_be_trusted_refuses_a_far_agent_alone(folder: Path, tmp_path: Path, bad: str) -> None:
    if bad == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif bad == "dangling":
        folder.symlink_to(tmp_path / "elsewhere")
    elif bad == "file":
        folder.touch()
    else:
        if os.getuid() != 0:
            pytest.skip("another user's folder needs root")
        folder.mkdir()
        os.chmod(folder, 0o777)
        os.chown(folder, NOBODY, -1)
    with pytest.raises(ConfigError, match="agents"), registered(boot_of(tmp_path), "", pytest.fail, folder):
        pass
    with registered(boot_of(tmp_path, remote=False), "", pytest.fail, folder):
        pass
    assert not (tmp_path / "elsewhere").exists() or list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_stays_locked_is_waited_for_only_so_long(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_lock, "LOCK_S", 0.2)
    folder.mkdir()
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(ConfigError, match=r"locked for 0\.2 s"):
            HostLock(folder).acquire(own_entry(boot_of(tmp_path), ""), True)
        assert time.monotonic() - began < 5
    finally:
        os.close(held)


def test_a_successor_on_the_host_stays_registered(folder: Path, tmp_path: Path, own: int) -> None:
    boot = boot_of(tmp_path)
    with registered(boot, "", pytest.fail, folder):
        successor = put(folder, entry_of(own, boot.plan.run_id))
    assert successor.exists()
