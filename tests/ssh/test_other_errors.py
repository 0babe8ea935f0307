"""Errors that no refusal names, of the kernel, of paramiko or of this machine: each costs its host alone."""

from __future__ import annotations

import errno
import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import paramiko
import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, DefaultsSection, HostSection
from zmqrl.errors import HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.on_hosts import reap_over
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.orchestrators.ssh import MOST_UPLOADS, SshOrchestrator
from zmqrl.ssh.auth import log_in
from zmqrl.ssh.clients import connect_all
from zmqrl.ssh.code_sync import CodeArchive
from zmqrl.ssh.config import Target, resolve
from zmqrl.ssh.connection import Client, Connection
from zmqrl.ssh.shell import Finished, HostShell, Pipe

HOSTS = {name: HostSection(ssh="127.0.0.1", port=port, workers=1) for name, port in (("a", 7), ("b", 9))}


def target(identity: Path) -> Target:
    return replace(resolve("a", HOSTS["a"], DefaultsSection()), identities=(str(identity),), agent="none")


def full_disk(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/zmqrl-ssh-x")


def no_descriptor(*arguments: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


class Broken(Client):
    """Its first host meets an error that nothing foresees."""

    def open_once(self, target: Target) -> Connection:
        if target.host == "a":
            raise RuntimeError("can't start new thread")
        raise HostFailed(target.host, "refused", "try again")


def failures(hosts: dict[str, HostSection] = HOSTS) -> dict[str, HostFailed]:
    found = dict(connect_all(Config(hosts=hosts), list(hosts)))
    assert all(isinstance(one, HostFailed) for one in found.values()), found
    return cast("dict[str, HostFailed]", found)


def test_a_full_disk_of_this_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.ssh.settings.tempfile.NamedTemporaryFile", full_disk)
    found = failures()
    assert set(found) == {"a", "b"} and "No space left on device" in found["a"].cause and "df" in found["a"].fix


def test_the_end_of_the_descriptors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.ssh.transport.socket.socket", no_descriptor)
    found = failures()
    assert set(found) == {"a", "b"} and "Too many open files" in found["b"].cause


@pytest.mark.parametrize("deployed", [1, 2])
def test_the_orchestrator_reports_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deployed: int) -> None:
    """The error of one host is that of this host; an error of all hosts is reported for each."""
    if deployed == 1:
        monkeypatch.setattr("zmqrl.ssh.clients.make_client", lambda ssh, silence_s: Broken(ssh, silence_s))
    else:
        monkeypatch.setattr("zmqrl.orchestrators.ssh.connect_all", no_descriptor)
    plan = plan_of(tmp_path)
    orchestrator = SshOrchestrator(NO_KEYS, plan)
    orchestrator.deploy({host: boot for host, boot in boots(plan).items() if host != "local"})
    events = list(orchestrator.monitor(10.0))
    until(lambda: len({event.host for event in events}) == 2 or events.extend(orchestrator.monitor(0.1)))
    assert all(isinstance(event.event, HostUnusable) for event in events), events
    causes = {event.host: event.event.cause for event in events if isinstance(event.event, HostUnusable)}
    assert "can't start new thread" in causes["a"] if deployed == 1 else "Too many open files" in causes["b"]
    assert orchestrator.undeploy(0.1).left == ()


class Slow:
    """Host "a" is connected to, takes its files only after `go`, and starts no agent; "b" takes no files."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.connections = {host: create_autospec(Connection, instance=True, accepted=()) for host in HOSTS}
        self.connections["a"].start.side_effect = HostFailed("a", "no session", "try again")
        monkeypatch.setattr("zmqrl.orchestrators.ssh.connect_all", lambda *_: iter(self.connections.items()))
        monkeypatch.setattr(SshOrchestrator, "_upload", self._upload)
        plan = plan_of(tmp_path)
        self.orchestrator = SshOrchestrator(NO_KEYS, plan)
        self.orchestrator.deploy({host: boot for host, boot in boots(plan).items() if host != "local"})

    def _upload(self, boot: Boot, section: HostSection, connection: Connection) -> None:
        if boot.host == "b":
            raise HostFailed("b", "No space left on device", "df")
        assert self.go.wait(WAIT_S)


def test_a_slow_host_holds_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(tmp_path, monkeypatch)
    (event,) = slow.orchestrator.monitor(WAIT_S)
    assert event.host == "b" and isinstance(event.event, HostUnusable)
    assert not slow.connections["a"].start.called
    slow.go.set()
    until(lambda: slow.connections["a"].start.called)
    assert slow.orchestrator.undeploy(0.1).left == ()


class Uploads:
    """Many hosts. The code of `code.sync` is on those of `has_code`; the others take it only after `go`."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int, has_code: Collection[str]) -> None:
        self.go, self.started, self.going, self.most = threading.Event(), set[str](), set[str](), 0
        self._lock, self._has_code = threading.Lock(), has_code
        self.hosts = {f"h{n}": HostSection(ssh="127.0.0.1", port=n + 1, workers=1) for n in range(hosts)}
        connections = [(host, self._connection_of(host)) for host in self.hosts]
        monkeypatch.setattr("zmqrl.orchestrators.ssh.connect_all", lambda *_: iter(connections))
        monkeypatch.setattr("zmqrl.orchestrators.ssh.make_archive", lambda _: CodeArchive("ab", b"", ()))
        monkeypatch.setattr("zmqrl.orchestrators.ssh.find_code", self._find)
        monkeypatch.setattr("zmqrl.orchestrators.ssh.send_code", self._send)
        plan = stand_in_plan(tmp_path / "run")
        plan = replace(plan, config=replace(plan.config, hosts=self.hosts))
        plan = replace(plan, workers=dict.fromkeys(("local", *self.hosts), 1))
        self.orchestrator = SshOrchestrator(NO_KEYS, plan)
        self.orchestrator.deploy({host: boot for host, boot in boots(plan).items() if host != "local"})

    def _connection_of(self, host: str) -> Any:
        def start(*_: object) -> None:
            self.started.add(host)
            raise HostFailed(host, "no session", "try again")

        made = create_autospec(Connection, instance=True, accepted=(), host=host, target=SimpleNamespace(host=host))
        made.start.side_effect = start
        return made

    def _find(self, connection: Connection, archive: CodeArchive, workdir: str) -> str | None:
        return "code" if connection.target.host in self._has_code else None

    def _send(self, connection: Connection, archive: CodeArchive, workdir: str) -> str:
        with self._lock:
            self.going.add(connection.target.host)
            self.most = max(self.most, len(self.going))
        assert self.go.wait(WAIT_S)
        self.going.remove(connection.target.host)
        return "code"


def test_files_go_to_a_few_hosts_at_once_and_a_host_that_has_them_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many uploads that share one uplink all end late, and none within `limits.start_s`."""
    last = f"h{MOST_UPLOADS + 3}"
    uploads = Uploads(tmp_path, monkeypatch, MOST_UPLOADS + 4, has_code=[last])
    until(lambda: len(uploads.going) >= MOST_UPLOADS and uploads.started == {last})
    uploads.go.set()
    until(lambda: uploads.started == set(uploads.hosts))
    assert uploads.most == MOST_UPLOADS
    assert uploads.orchestrator.undeploy(0.1).left == ()


def test_hosts_that_take_no_files_hold_the_others_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.ssh.TURN_S", 0.1)
    uploads = Uploads(tmp_path, monkeypatch, MOST_UPLOADS + 2, has_code=())
    until(lambda: uploads.most == MOST_UPLOADS + 2)
    uploads.go.set()
    until(lambda: uploads.started == set(uploads.hosts))
    assert uploads.orchestrator.undeploy(0.1).left == ()


def test_no_agent_is_started_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that hangs is waited for once."""
    monkeypatch.setattr("zmqrl.orchestrators.shell_orchestrator.KILL_WAIT_S", 0.1)
    end_starts = Mock(side_effect=ShellOrchestrator.end_starts)
    monkeypatch.setattr(ShellOrchestrator, "end_starts", lambda orchestrator: end_starts(orchestrator))
    slow = Slow(tmp_path, monkeypatch)
    slow.orchestrator.undeploy(0.1)
    end_starts.assert_called_once()
    slow.go.set()
    until(lambda: slow.connections["a"].close.called)
    assert not slow.connections["a"].start.called


def plan_of(tmp_path: Path) -> RunPlan:
    plan = stand_in_plan(tmp_path / "run")
    return replace(plan, config=replace(plan.config, hosts=HOSTS), workers={"local": 1, "a": 1, "b": 1})


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    path = tmp_path / "id"
    paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    return path


class Transport:
    """Each login ends with `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def auth_publickey(self, user: str, key: paramiko.PKey) -> list[str]:
        raise self._error

    def is_active(self) -> bool:
        return False


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), paramiko.SSHException("x"), EOFError()],
)
def test_a_connection_that_ends_during_the_login(identity: Path, error: Exception) -> None:
    with raises(HostFailed, host="a"):
        log_in(cast(paramiko.Transport, Transport(error)), target(identity))


def test_down_queries_the_other_hosts_too() -> None:
    """An error on one host, of its shell, is that of this host."""

    class Shell(HostShell):
        def run(self, command: str, timeout_s: float) -> Finished:
            raise RuntimeError("can't start new thread")

        def start(self, command: str, stderr: Path) -> Pipe:
            raise NotImplementedError

        def close(self) -> None:
            pass

    found = dict(reap_over([(name, Shell()) for name in HOSTS], HOSTS, "r-1", 1.0, "local"))
    assert set(found) == {"a", "b"} and "can't start new thread" in str(found["b"])
