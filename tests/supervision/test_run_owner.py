"""One owner per run directory: on one machine, and among machines that share only the directory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.clock import Clock
from tests.support.marks import long
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.supervision import owner_record, run_owner
from zmqrl.supervision.owner_record import FOLDER, OwnerRecord
from zmqrl.supervision.run_owner import RENEW_S, SILENT_PERIODS, OwnerCheck, OwnerState, RunOwner, owner_state

HERE = socket.gethostname()
BY_B = f"was taken over by run b (pid {os.getpid()} on {HERE})"

SCRIPT = """
import sys, time
from pathlib import Path
from zmqrl.errors import ConfigError
from zmqrl.supervision import owner_record, run_owner
from zmqrl.supervision.run_owner import RunOwner
run_dir, run_id, run_owner.RENEW_S = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
print("up", flush=True)
sys.stdin.readline()
try:
    owner = RunOwner.acquire(run_dir, run_id)
except ConfigError as error:
    print("refused", error, flush=True)
    sys.exit(2)
print("owner", flush=True)
while (line := sys.stdin.readline().strip()):
    if line == "release":
        owner.release()
    print(owner.successor, flush=True)
"""
ELSEWHERE = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
TAKE_OVER_S = SILENT_PERIODS * RENEW_S


class Contender:
    """A process that wants a run directory, on this machine or, by its namespaces, on another."""

    def __init__(self, run_dir: Path, run_id: str, host: str | None = None, renew_s: float = RENEW_S) -> None:
        command = [sys.executable, "-c", SCRIPT, str(run_dir), run_id, str(renew_s)]
        if host is not None:
            command = [*ELSEWHERE, f'hostname {host}; exec "$@"', "-", *command]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._ended = False
        assert self.hear() == "up"

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], WAIT_S)[0], "no answer"
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "go") -> str:
        self.say(line)
        return self.hear()

    def send(self, number: signal.Signals) -> None:
        """To all of it: the namespaces have a process of their own."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGCONT)
                self.send(signal.SIGKILL)
            self.process.communicate()


Contend = Callable[..., Contender]


@pytest.fixture
def contend(tmp_path: Path) -> Iterator[Contend]:
    contenders: list[Contender] = []

    def start(run_id: str, host: str | None = None, renew_s: float = RENEW_S) -> Contender:
        contenders.append(Contender(tmp_path, run_id, host, renew_s))
        return contenders[-1]

    yield start
    for contender in contenders:
        contender.end()


needs_hosts = pytest.mark.skipif(
    subprocess.run([*ELSEWHERE, "hostname other"], capture_output=True, check=False).returncode != 0,
    reason="another host needs namespaces, and those root",
)


def owner_elsewhere(run_dir: Path, run_id: str, machine: str = "another") -> RunOwner:
    """On a machine whose processes cannot be seen from this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner_record, "machine", lambda: machine)
        return RunOwner.acquire(run_dir, run_id)


def test_an_owner_on_another_machine_is_alive_while_it_renews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = owner_record.machine().partition(" ")[0]
    seen = {"pid:[1]"}
    monkeypatch.setattr(owner_record, "_namespaces", lambda: seen)
    owner = owner_elsewhere(tmp_path, "first", f"{boot} pid:[1]")
    assert owner_state(tmp_path, "first") is OwnerState.ELSEWHERE
    assert owner_state(tmp_path, "first", watch=False) is OwnerState.UNKNOWN
    assert owner_state(tmp_path, "second") is None
    record = (tmp_path / FOLDER / "1").read_bytes()
    owner.release()
    assert owner_state(tmp_path, "first") is OwnerState.ENDED, "released"
    clock = Clock()
    monkeypatch.setattr(run_owner, "time", clock)
    (tmp_path / FOLDER / "1").write_bytes(record)
    assert owner_state(tmp_path, "first") is OwnerState.UNKNOWN, "silent: the kernel or the container may be stopped"
    assert TAKE_OVER_S <= clock.now < TAKE_OVER_S + RENEW_S
    before_boot = record.replace(boot.encode(), b"earlier-boot".ljust(len(boot)))
    (tmp_path / FOLDER / "1").write_bytes(before_boot)
    assert owner_state(tmp_path, "first") is OwnerState.ENDED, "its machine has started again"
    (tmp_path / FOLDER / "1").write_bytes(before_boot.replace(socket.gethostname().encode(), b"far.away"))
    assert owner_state(tmp_path, "first") is OwnerState.UNKNOWN, "another machine"
    assert owner_state(tmp_path / "none", "first") is None
    (tmp_path / FOLDER / "1").write_bytes(record)
    seen.clear()
    monkeypatch.setattr(owner_record, "machine", lambda: f"{boot} pid:[2]")
    assert owner_state(tmp_path, "first", watch=False) is OwnerState.UNKNOWN, "a container does not see another one"
    monkeypatch.setattr(owner_record, "machine", lambda: f"{boot} {owner_record.OF_MACHINE}")
    assert owner_state(tmp_path, "first", watch=False) is OwnerState.ENDED, "and all of it with it"


def test_an_owner_on_this_machine(tmp_path: Path) -> None:
    owner = RunOwner.acquire(tmp_path, "first")
    assert owner_state(tmp_path, "first", watch=False) is OwnerState.HERE
    record = json.loads((tmp_path / FOLDER / "1").read_text())
    owner.release()
    (tmp_path / FOLDER / "1").write_text(json.dumps({**record, "start_time": 1}))
    assert owner_state(tmp_path, "first") is OwnerState.ENDED, "its process has ended"


def test_one_machine_decides_at_once(tmp_path: Path, contend: Contend) -> None:
    """Its processes see each other: nobody waits for the periods, which are hours here."""
    first, second, third = (contend(name, renew_s=3600.0) for name in "abc")
    assert first.ask() == "owner"
    assert f"in use by run a (pid {first.process.pid} on " in second.ask()
    first.end()
    assert third.ask() == "owner"
    with raises(ConfigError, value=str(tmp_path), what=f"was taken over by run c (pid {third.process.pid} on {HERE})"):
        OwnerCheck(tmp_path, "a").check()
    OwnerCheck(tmp_path, "c").check()
    OwnerCheck(tmp_path / "elsewhere", "a").check()


def _taken_over_by(tmp_path: Path, run_id: str) -> None:
    RunOwner.acquire(tmp_path, run_id).release()


def test_a_successor_is_found_by_the_next_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_owner, "RENEW_S", 3600.0)  # the directory's time alone
    _taken_over_by(tmp_path, "a")
    owner = OwnerCheck(tmp_path, "a")
    owner.check()
    _taken_over_by(tmp_path, "b")
    for _ in range(2):
        with raises(ConfigError, value=str(tmp_path), what=BY_B):
            owner.check()


def test_a_successor_within_one_tick_of_the_file_system_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_record, "changed_at_ns", lambda folder: 1)
    _taken_over_by(tmp_path, "a")
    owner = OwnerCheck(tmp_path, "a")
    owner.check()
    _taken_over_by(tmp_path, "b")
    owner.check()
    now = time.monotonic()
    monkeypatch.setattr(run_owner.time, "monotonic", lambda: now + 2 * RENEW_S)
    with raises(ConfigError, value=str(tmp_path), what=BY_B):
        owner.check()


def test_a_successor_whose_record_is_not_written_yet_is_found_when_it_is(tmp_path: Path) -> None:
    _taken_over_by(tmp_path, "a")
    owner = OwnerCheck(tmp_path, "a")
    (tmp_path / FOLDER / "2").touch()
    owner.check()
    (tmp_path / FOLDER / "2").write_bytes((tmp_path / FOLDER / "1").read_bytes().replace(b'"a"', b'"b"'))
    with raises(ConfigError, value=str(tmp_path), what=BY_B):
        owner.check()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[" * 1000, b"\xff", b"[]", b'{"x": ' + b"[" * 3000),
        *(
            json.dumps({**asdict(OwnerRecord("a", HERE, "m", 1, 2)), **wrong}).encode()
            for wrong in ({"pid": "../1"}, {"machine": 5}, {"host": None}, {"released": "no"})
        ),
    ],
)
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1").write_bytes(content)
    assert owner_record.read(tmp_path / FOLDER, 1) is None
    assert owner_state(tmp_path, "a", watch=False) is None


def test_what_was_released_is_free(tmp_path: Path) -> None:
    for name in ("a", "b"):
        owner = RunOwner.acquire(tmp_path, name)
        who = f"is in use by run {name} (pid {os.getpid()} on {HERE})"
        with raises(ConfigError, value=f"run directory {tmp_path}", what=who):
            RunOwner.acquire(tmp_path, "other")
        owner.release()
        owner.release()
    assert os.listdir(tmp_path / FOLDER) == ["2"]


def test_a_record_that_was_never_finished_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(run_owner, "time", clock)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1").touch()
    RunOwner.acquire(tmp_path, "a").release()
    assert TAKE_OVER_S <= clock.now < TAKE_OVER_S + RENEW_S


def test_a_silent_owner_on_another_machine_is_replaced_after_its_periods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner_elsewhere(tmp_path, "dead")._ended.set()
    clock = Clock()
    monkeypatch.setattr(run_owner, "time", clock)
    RunOwner.acquire(tmp_path, "a").release()
    assert TAKE_OVER_S <= clock.now < TAKE_OVER_S + RENEW_S


@pytest.mark.parametrize("answer", ["linked", "lost answer", "no links"])
def test_one_of_two_creates_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """`lost answer`: an NFS server that is asked again, because its answer was lost, finds its own link."""

    def link(source: Path, target: Path) -> None:
        if answer == "no links":
            raise OSError(errno.EPERM, "no links")
        real_link(source, target)
        if answer == "lost answer":
            raise FileExistsError

    real_link, record = os.link, OwnerRecord("a", HERE, "elsewhere", 1, 2)
    monkeypatch.setattr(owner_record.os, "link", link)
    assert owner_record.create(tmp_path / "1", owner_record.encoded(record))
    assert not owner_record.create(tmp_path / "1", owner_record.encoded(replace(record, run_id="b")))
    assert owner_record.read(tmp_path, 1) == record
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("both", [False, True])
def test_a_contender_that_was_frozen_does_not_take_its_own_silence_for_the_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """`both`: the owner was frozen too, and renews its record in the next period."""
    owner = owner_elsewhere(tmp_path, "live")
    owner._ended.set()
    owner._thread.join()
    clock, turns = Clock(), itertools.count()

    def sleep(seconds: float) -> None:
        turn = next(turns)
        clock.sleep(10 * TAKE_OVER_S if turn == 0 else seconds)
        if turn == (RENEW_S / seconds if both else 0):
            owner._write(replace(owner._record, renewals=1))

    monkeypatch.setattr(run_owner, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=sleep))
    with raises(ConfigError, value=f"run directory {tmp_path}", what=f"is in use by {owner._record}"):
        RunOwner.acquire(tmp_path, "late")


@pytest.mark.whole
@needs_hosts
def test_a_live_owner_on_another_host_is_left_alone_and_a_dead_one_replaced(contend: Contend) -> None:
    first, second, third = contend("a", "h1"), contend("b", "h2"), contend("c", "h2")
    assert first.ask() == "owner"
    assert "in use by run a (pid" in (said := second.ask()) and "on h1" in said
    first.send(signal.SIGKILL)
    begun = time.monotonic()
    assert third.ask() == "owner"
    assert time.monotonic() - begun >= TAKE_OVER_S


@pytest.mark.whole
@needs_hosts
def test_an_owner_that_was_frozen_finds_its_successor(tmp_path: Path, contend: Contend) -> None:
    first, second = contend("a", "h1"), contend("b", "h2")
    assert first.ask() == "owner"
    assert first.ask("successor?") == "None"
    first.send(signal.SIGSTOP)
    assert second.ask() == "owner"
    first.send(signal.SIGCONT)
    assert first.ask("successor?").startswith("run b (pid")
    fix = "the launcher of run a sent no heartbeat; this run ends without a further checkpoint"
    with raises(ConfigError, value=str(tmp_path), fix=fix):
        OwnerCheck(tmp_path, "a").check()
    time.sleep(2 * RENEW_S)  # it counts its own record up again, and disturbs nobody
    assert second.ask("successor?") == "None"


def test_a_contender_that_comes_second_names_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner removes the record of the dead owner while others still watch it."""
    monkeypatch.setattr(owner_record, "machine", lambda: "elsewhere")
    dead = RunOwner.acquire(tmp_path, "dead")
    dead._ended.set()
    monkeypatch.undo()
    owners: list[RunOwner] = []

    def wins(_: float) -> None:
        if not owners:
            (tmp_path / FOLDER / "2").write_bytes((tmp_path / FOLDER / "1").read_bytes().replace(b"dead", b"wins"))
            (tmp_path / FOLDER / "1").unlink()
            owners.append(dead)
        else:
            content = (tmp_path / FOLDER / "2").read_bytes()
            (tmp_path / FOLDER / "2").write_bytes(content.replace(b'"renewals": 0', b'"renewals": 1'))

    monkeypatch.setattr(run_owner.time, "sleep", wins)
    who = f"is in use by run wins (pid {os.getpid()} on {HERE})"
    with raises(ConfigError, value=f"run directory {tmp_path}", what=who):
        RunOwner.acquire(tmp_path, "late")


@pytest.mark.whole
@needs_hosts
@pytest.mark.parametrize("end", [long("released"), "killed", "new"])
def test_of_twenty_that_come_at_once_from_two_hosts_one_wins(contend: Contend, end: str) -> None:
    if end != "new":
        before = contend("before", "h1")
        assert before.ask() == "owner"
        before.ask("release") if end == "released" else before.end()
    contenders = [contend(f"r{n}", f"h{1 + n % 2}") for n in range(20)]
    for contender in contenders:
        contender.say("go")
    said = [contender.hear() for contender in contenders]
    assert said.count("owner") == 1, said
    winner = said.index("owner")
    assert sum(f"in use by run r{winner}" in text for text in said) == 19, said
