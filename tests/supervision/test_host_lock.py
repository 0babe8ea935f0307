"""The register of a machine's agents: real files, real processes, other users, and what a liar can write."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.marks import at_once
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot, Neighbours
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError
from zmqrl.supervision.host_entry import Entry, user_name
from zmqrl.supervision.host_lock import HostLock, registered
from zmqrl.supervision.host_mark import HOST_VARIABLE, pid_namespace
from zmqrl.supervision.process_table import identify, is_alive

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.chmod(tmp_path, 0o755)
    return tmp_path / "agents"


def boot_of(tmp_path: Path, neighbours: Neighbours = "refused", host: str = "node01") -> Boot:
    return Boot("agent", 0, 0, host, stand_in_plan(tmp_path / "run"), workers=(0, 1, 2), neighbours=neighbours)


def entry_of(pid: int, run_id: str = "other-1", uid: int | None = None) -> Entry:
    process = identify(pid)
    assert process is not None
    owner = os.getuid() if uid is None else uid
    return Entry(run_id, pid, process.start_time, user_name(owner), owner, time.time() - 7300, 15, "node01", "lap")


def put(folder: Path, entry: Entry, owner: int | None = None, **changed: object) -> Path:
    """A file in the folder of its owner."""
    owners = folder_of(folder, os.getuid() if owner is None else owner)
    path = owners / f"{entry.run_id}-{entry.host}.json"
    path.write_text(json.dumps({**to_json(entry), **changed}))
    os.chown(path, os.getuid() if owner is None else owner, -1)
    return path


def folder_of(folder: Path, owner: int) -> Path:
    owners = folder.with_name(f"{folder.name}-{owner}-x")
    owners.mkdir(mode=0o755, exist_ok=True)
    os.chown(owners, owner, -1)
    return owners


def files(folder: Path) -> list[Path]:
    """Of all users."""
    return sorted(folder.parent.glob(f"{folder.name}-*/*"))


@pytest.fixture
def own() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def others() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"], user=NOBODY) as process:
        yield process.pid
        process.kill()


def test_an_agent_is_in_the_register_while_it_lives(folder: Path, tmp_path: Path) -> None:
    boot, told = boot_of(tmp_path, neighbours="ignored"), []
    with registered(boot, "", told.append, folder):
        (path,) = files(folder)
        assert path.name == f"{boot.plan.run_id}-node01.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
        (entry,) = HostLock(folder).entries()
        assert (entry.pid, entry.workers, entry.host) == (os.getpid(), 3, "node01")
        assert entry.launcher == f"{user_name(os.getuid())}@{socket.gethostname()}"
        assert entry.is_live
    assert files(folder) == []
    assert told == []


@pytest.mark.parametrize("manual", [False, True], ids=["by the launcher", "by a connection file"])
def test_the_agent_of_before_is_killed_when_the_launcher_starts_another(
    folder: Path, tmp_path: Path, own: int, manual: bool
) -> None:
    """One that is started by a connection file has not shown yet that it may join."""
    boot = boot_of(tmp_path)
    hosts = {"node01": HostSection(workers=3, manual=manual)}
    boot = replace(boot, plan=replace(boot.plan, config=replace(boot.plan.config, hosts=hosts)))
    put(folder, entry_of(own, boot.plan.run_id))
    with registered(boot, "", print, folder):
        until(lambda: state_of(own) == ("live" if manual else "gone"), "the agent of before", every_s=0.01)
    assert state_of(own) == ("live" if manual else "gone")


def state_of(pid: int) -> str:
    process = identify(pid)
    return "live" if process is not None and is_alive(process) else "gone"


def test_a_run_is_described_in_the_same_words_at_each_attempt(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher reports each cause of a failed attempt once, and tries every 2 s."""
    entry = replace(entry_of(own, "walker-6a2b"), user="anna", since=1_800_000_000.0, workers=1)
    before = str(entry)
    later = time.time() + 3.0
    monkeypatch.setattr("time.time", lambda: later)
    assert str(entry) == before
    assert before.startswith("run walker-6a2b of user anna since 2027-01-1") and before.endswith("(1 worker, from lap)")


@needs_root
def test_another_users_run_is_refused_by_name_and_left_alone(folder: Path, tmp_path: Path, others: int) -> None:
    entry = entry_of(others, "walker-6a2b", NOBODY)
    path, what = put(folder, entry, NOBODY), f"busy: {entry}"
    fix = "contact nobody, or exclude the host (--limit); zmqrl does not stop it"
    with (
        raises(ConfigError, key=(), what=what, fix=fix),
        registered(boot_of(tmp_path), "", print, folder),
    ):
        pass
    assert files(folder) == [path]


@needs_root
def test_an_agent_started_here_is_never_refused(folder: Path, tmp_path: Path, others: int) -> None:
    put(folder, entry_of(others, uid=NOBODY), NOBODY)
    told: list[str] = []
    with registered(boot_of(tmp_path, neighbours="ignored"), "", told.append, folder):
        assert len(files(folder)) == 2
    assert told == []


@needs_root
def test_on_a_machine_that_is_shared_by_design_another_users_run_is_a_warning(
    folder: Path, tmp_path: Path, others: int
) -> None:
    put(folder, entry_of(others, "walker-6a2b", NOBODY), NOBODY)
    told: list[str] = []
    with registered(boot_of(tmp_path, "warned"), "", told.append, folder):
        assert len(files(folder)) == 2
    (warning,) = told
    assert warning.startswith("shared with run walker-6a2b of user nobody")


def test_ones_own_other_run_is_a_warning(folder: Path, tmp_path: Path, own: int) -> None:
    put(folder, entry_of(own, "mine-7f3c"))
    told: list[str] = []
    with registered(boot_of(tmp_path), "rl@lap", told.append, folder):
        assert {entry.launcher for entry in HostLock(folder).entries()} == {"lap", "rl@lap"}
        assert HostLock(folder).held_workers() == 15 + 3
        put(folder, replace(entry_of(own, "job-7f3c"), cores=20))
        assert HostLock(folder).held_workers() == 15 + 3 + 20
    (warning,) = told
    assert warning.startswith("another run of this account is active on this host: run mine-7f3c"), (
        "the launcher adds the host"
    )
    assert warning.endswith("ask lap"), "somebody else's run of a shared account"
    with registered(boot_of(tmp_path), "lap", told.append, folder):
        assert "if it is yours, stop it: `zmqrl down mine-7f3c`" in told[-1]


def test_another_agent_of_the_same_run_is_no_news(folder: Path, tmp_path: Path, own: int) -> None:
    boot = boot_of(tmp_path)
    put(folder, replace(entry_of(own, boot.plan.run_id), host="node02"))
    told: list[str] = []
    with registered(boot, "", told.append, folder):
        assert len(HostLock(folder).entries()) == 2
    assert told == []


def test_an_earlier_agent_of_the_same_host_of_the_run_is_killed(folder: Path, tmp_path: Path) -> None:
    boot = boot_of(tmp_path)
    with subprocess.Popen(["sleep", "600"]) as former, subprocess.Popen(["sleep", "600"]) as other:
        try:
            put(folder, entry_of(other.pid, "another-run"))
            put(folder, entry_of(former.pid, boot.plan.run_id))
            with registered(boot, "", lambda text: None, folder):
                assert former.wait(WAIT_S) == -signal.SIGKILL and other.poll() is None
                assert os.getpid() in [entry.pid for entry in HostLock(folder).entries()]
        finally:
            other.kill()
            former.kill()


def test_own_dead_entries_are_removed_and_a_reused_pid_is_dead(folder: Path, tmp_path: Path, own: int) -> None:
    live = entry_of(own)
    put(folder, replace(live, start_time=live.start_time - 1))
    half = folder_of(folder, os.getuid()) / ".half-written"
    half.write_text("{")
    os.utime(half, (0, 0))
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert [entry.pid for entry in HostLock(folder).entries()] == [os.getpid()]
        assert len(files(folder)) == 1


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
def test_a_forged_entry_blocks_no_run(folder: Path, tmp_path: Path, others: int, lie: dict[str, object]) -> None:
    path = put(folder, entry_of(others, uid=NOBODY), NOBODY, **lie)
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert path.exists()


@needs_root
def test_a_forged_entry_cannot_name_the_process_of_another(folder: Path, tmp_path: Path, own: int) -> None:
    put(folder, entry_of(own, uid=NOBODY), NOBODY)
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        pass


@needs_root
def test_a_forged_user_name_is_replaced(folder: Path, tmp_path: Path, others: int) -> None:
    entry = entry_of(others, uid=NOBODY)
    put(folder, entry, NOBODY, user="anna")
    with (
        raises(ConfigError, key=(), what=f"busy: {entry}"),
        registered(boot_of(tmp_path), "", print, folder),
    ):
        pass


def test_odd_files_are_passed_by(folder: Path, tmp_path: Path) -> None:
    folder = folder_of(folder, os.getuid())
    os.mkfifo(folder / "fifo.json")
    (folder / "deep.json").write_text("[" * 4000)
    (folder / "large.json").write_text('"' + "x" * 5000 + '"')
    (folder / "bytes.json").write_bytes(b"\xff\xfe")
    (folder / "list.json").write_text("[1]")
    (folder / "folder.json").mkdir()
    (folder / "link.json").symlink_to("/etc/passwd")
    prefix = tmp_path / "agents"
    with registered(boot_of(tmp_path), "", pytest.fail, prefix):
        assert [entry.pid for entry in HostLock(prefix).entries()] == [os.getpid()]


def test_names_that_others_took_are_passed_by(folder: Path, tmp_path: Path) -> None:
    mine = f"{folder.name}-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    for name in (folder.name, mine):
        (tmp_path / name).touch()
    (tmp_path / f"{mine}-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{mine}-dangling").symlink_to(tmp_path / "nowhere")
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        assert [entry.pid for entry in HostLock(folder).entries()] == [os.getpid()]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """As /tmp is: pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="zmqrl-test-", dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


HOSTILE = """
import fcntl, os, sys
from pathlib import Path
tmp, uid = Path(sys.argv[1]), sys.argv[2]
for name in ("agents", f"agents-{uid}", f"agents-{uid}-0", f"agents-{uid}-1"):
    (tmp / name).mkdir(mode=0o700, exist_ok=True)
held = [os.open(path, os.O_RDONLY) for path in tmp.iterdir() if path.is_dir() and os.access(path, os.R_OK)]
for fd in held:
    fcntl.flock(fd, fcntl.LOCK_EX)
print(len(held), flush=True)
sys.stdin.read()
"""


@at_once
@needs_root
def test_no_lock_or_folder_of_another_user_blocks_a_run(everybodys: Path, tmp_path: Path) -> None:
    folder = everybodys / "agents"
    with registered(boot_of(tmp_path), "", pytest.fail, folder):
        pass  # there is a folder of ours, which others can open
    command = [sys.executable, "-c", HOSTILE, str(everybodys), str(os.getuid())]
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["setpriv", "--reuid", str(NOBODY), "--clear-groups", *command], **ends) as hostile:  # type: ignore[call-overload]
        assert int(hostile.stdout.readline()) >= 5, "ours among them"
        with registered(boot_of(tmp_path), "", pytest.fail, folder):
            assert [entry.pid for entry in HostLock(folder).entries()] == [os.getpid()]
        hostile.stdin.close()


AGENT = """
import sys
from dataclasses import replace
from pathlib import Path
from zmqrl.supervision.host_entry import own_entry
from zmqrl.supervision.host_lock import HostLock
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
import json
boot = from_json(Boot, json.loads(sys.argv[2]))
sys.stdin.readline()
try:
    HostLock(Path(sys.argv[1])).acquire(own_entry(boot, "lap"), "refused")
    print("in", flush=True)
except Exception as error:
    print("out", error, flush=True)
sys.stdin.read()
"""


@needs_root
def test_of_two_users_that_come_at_once_one_is_in(everybodys: Path, tmp_path: Path) -> None:
    folder = everybodys / "agents"
    boot = json.dumps(to_json(boot_of(tmp_path)))
    command = [sys.executable, "-c", AGENT, str(folder), boot]
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    agents = [
        subprocess.Popen(["setpriv", "--reuid", str(uid), "--clear-groups", *command], **ends)  # type: ignore[call-overload]
        for uid in (os.getuid(), NOBODY)
    ]
    for agent in agents:
        agent.stdin.write("\n")
        agent.stdin.flush()
    said = sorted(agent.stdout.readline() for agent in agents)
    for agent in agents:
        agent.communicate()
    assert said[0] == "in\n" and said[1].startswith("out busy: run "), said


def test_a_successor_on_the_host_stays_registered(folder: Path, tmp_path: Path, own: int) -> None:
    boot = boot_of(tmp_path)
    with registered(boot, "", pytest.fail, folder):
        successor = put(folder, entry_of(own, boot.plan.run_id))
    assert successor.exists()


IN_A_WRAP = """
import os, sys, time
from pathlib import Path
from zmqrl.supervision.host_lock import HostLock
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.supervision.host_entry import own_entry
import json
boot = from_json(Boot, json.loads(sys.argv[2]))
lock = HostLock(Path(sys.argv[1]))
entry = own_entry(boot, "lap")
print(lock.acquire(entry, "warned"), flush=True)
print(entry.pid, [other.run_id for other in lock.entries() if other.is_live], flush=True)
sys.stdin.readline()
"""


@needs_root
def test_a_wrapped_agent_is_visible_from_outside_its_pid_namespace_and_removes_no_process(
    folder: Path, tmp_path: Path, own: int
) -> None:
    put(folder, entry_of(own, "outside-1"))
    boot = boot_of(tmp_path)
    command = ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", IN_A_WRAP]
    environment = {**os.environ, HOST_VARIABLE: f"node01@{pid_namespace()}"}
    with subprocess.Popen(
        [*command, str(folder), json.dumps(to_json(boot))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as wrapper:  # fmt: skip
        assert wrapper.stdin is not None and wrapper.stdout is not None
        assert wrapper.stdout.readline() == "[]\n", "what runs outside cannot be judged within"
        assert wrapper.stdout.readline() == f"1 ['{boot.plan.run_id}']\n"
        seen = {entry.run_id: entry for entry in HostLock(folder).entries()}
        assert seen["outside-1"].is_live and seen[boot.plan.run_id].is_live
        inner = seen[boot.plan.run_id].pid
        assert [inner] == [int(p) for p in Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()]
        HostLock(folder).forget(boot.plan.run_id)
        assert len(files(folder)) == 2, "it lives"
        os.kill(inner, 9)
        wrapper.wait(WAIT_S)
    HostLock(folder).forget(boot.plan.run_id)
    assert [entry.run_id for entry in HostLock(folder).entries()] == ["outside-1"]
