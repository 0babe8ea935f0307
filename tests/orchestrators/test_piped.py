"""Programs behind a command of this machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.piped import PipedProcess, PipedShell, finished
from zmqrl.orchestrators.shell_orchestrator import ShellAgent, ShellOrchestrator
from zmqrl.ssh.shell import HostShell

MISSES_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begins", flush=True)
sys.stdin.read()
"""


def test_a_command_that_misses_sigterm_ends_with_its_stdin(tmp_path: Path) -> None:
    process = PipedProcess("guest1", [sys.executable, "-c", MISSES_SIGTERM], tmp_path / "log")
    try:
        assert next(iter(process.lines())) == "begins"
        process.terminate()
        assert process.exit_status(WAIT_S) == 0
        process.terminate()
    finally:
        process.close()


def test_a_command_that_takes_longer_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "pid"

    def communicate(process: subprocess.Popen[bytes], *_: Any, **__: Any) -> Any:
        until(lambda: started.exists() and started.read_text().endswith("\n"), "its child")
        raise subprocess.TimeoutExpired("", 1.0)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(HostFailed):
        finished("n1", ["sh", "-c", f"sh -c 'echo $$ >{started}; exec sleep 600'; true"], 1.0)
    pid = int(started.read_text())
    until(lambda: process_state(pid) in (None, "Z"), "the end of its child")


def test_a_command_does_not_receive_ctrl_c() -> None:
    assert finished("n1", ["sh", "-c", "[ $(cut -d' ' -f6 /proc/$$/stat) = $$ ]"], WAIT_S).code == 0


def process_state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


class Here(ShellOrchestrator):
    """Hosts whose agents end at once; a fails to start, b cannot be verified."""

    @classmethod
    def shell(cls, config: Any, run: Config, host: str) -> PipedShell:
        if host == "a":
            raise OSError(28, "No space left on device")
        return PipedShell(host, ["true"])

    def agent(self, boot: Boot, shell: HostShell) -> ShellAgent:
        agent = super().agent(boot, shell)
        assert isinstance(agent, ShellAgent)
        if boot.host == "b":
            agent.end = lambda: _unverified(agent)  # type: ignore[method-assign]
        return agent


def _unverified(agent: ShellAgent) -> HostEnd:
    ShellAgent.end(agent)
    raise ValueError("not enough values to unpack")


def test_any_error_of_one_host_is_the_failure_of_that_host(tmp_path: Path) -> None:
    plan = stand_in_plan(tmp_path / "run")
    hosts = {host: HostSection(workers=1) for host in ("a", "b", "c")}
    plan = replace(plan, config=replace(plan.config, hosts=hosts), workers=dict.fromkeys(hosts, 1))
    orchestrator = Here(NO_KEYS, plan)
    orchestrator.deploy({host: boot for host, boot in boots(plan).items() if host in hosts})
    until(lambda: not orchestrator.is_connecting, "the starts")
    ((failed,),) = [[event.event for event in orchestrator.monitor(0.0) if event.host == "a"]]
    assert isinstance(failed, HostUnusable) and "No space left on device" in failed.cause
    assert set(orchestrator.agents) == {"b", "c"}
    teardown = orchestrator.undeploy(1.0)
    assert teardown.left == ("b/? (could not be verified: unexpected error: ValueError: not enough values to unpack)",)


def test_a_process_without_a_thread_for_its_stdin_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        PipedProcess("guest1", ["sleep", "600"], tmp_path / "log")
    assert [process.returncode for process in started] == [-9]
