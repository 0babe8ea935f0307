"""The host agent as the orchestrator starts it: a real process, far from the launcher's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.agent.plans import START, stand_in_plan
from tests.support.raising import raises
from tests.support.waiting import WAIT_S, until
from zmqrl.agent import process
from zmqrl.agent.devices import Devices, FaultOf
from zmqrl.agent.process import check_host, choice_limit
from zmqrl.agent.run_processes import AGENT, processes_of
from zmqrl.broker.liveness import JOIN_S
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot, TcpListen
from zmqrl.config.sections import DefaultsSection, LimitsSection, NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.messages.command import Join
from zmqrl.messages.lines import line_of
from zmqrl.supervision.host_entry import Entry
from zmqrl.supervision.host_lock import HostLock
from zmqrl.types import Gpu

pytestmark = pytest.mark.whole
AUTOGROUP = Path("/proc/self/autogroup")
ROOT = Path(__file__).parents[2]
JOIN_LINE = line_of(Join(["127.0.0.1"], (1, 2, 3), None, None, None))


def remote_boot(run_dir: str) -> Boot:
    """A host with no part of its own: it waits for a `join`."""
    plan = replace(stand_in_plan(Path("unused")), run_dir=run_dir, store_path="")
    return Boot("agent", 0, 0, "far", plan, workers=(0,), streams_logs=True, neighbours="refused")


@contextmanager
def agent_of(
    boot: Boot, workdir: Path, niceness: int = 0, variables: Mapping[str, str] = {}
) -> Iterator[subprocess.Popen[bytes]]:
    command = ["nice", "-n", str(niceness), sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", boot.plan.run_id, "0"]
    with subprocess.Popen(
        command,
        cwd=workdir,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as agent:
        assert agent.stdin is not None
        agent.stdin.write(json.dumps(to_json(boot)).encode() + b"\n")
        agent.stdin.flush()
        try:
            yield agent
        finally:
            agent.kill()


def ended(agent: subprocess.Popen[bytes], last_words: bytes = b"") -> list[dict[str, Any]]:
    """Its events, once it has ended with exit code 0; a warning among them tells of another run on this machine."""
    out, err = agent.communicate(last_words, WAIT_S)
    assert agent.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]


def test_a_remote_agent_removes_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    boot = remote_boot("runs/mine")
    with agent_of(boot, tmp_path) as agent:
        events = [event for event in ended(agent, b'{"command": "stop"}\n') if event["event"] != "warning"]
    assert [event["event"] for event in events] == ["finished"]
    assert (events[0]["ended"], events[0]["killed"], events[0]["left"]) == (0, [], [])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["other"]


def test_the_last_remote_agent_leaves_nothing(tmp_path: Path) -> None:
    with agent_of(remote_boot("runs/mine"), tmp_path) as agent:
        ended(agent)  # the connection was closed
    assert not list(tmp_path.iterdir())


def test_it_is_registered_and_leads_a_session_while_it_lives(tmp_path: Path) -> None:
    boot = remote_boot("runs/mine")
    with agent_of(boot, tmp_path) as agent:
        until((tmp_path / "runs" / "mine" / "logs").exists, "the logs, made once it is registered", WAIT_S)
        assert [(entry.pid, entry.host) for entry in registered_as(boot)] == [(agent.pid, "far")]
        names = processes_of(boot.plan.run_id)
        assert [process.pid for process in names if names[process] == AGENT] == [agent.pid]
        assert os.getsid(agent.pid) == agent.pid
        ended(agent)
    assert not registered_as(boot)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="the kernel has no autogroup")
def test_its_niceness_is_that_of_its_session_too(tmp_path: Path) -> None:
    with agent_of(remote_boot("runs/mine"), tmp_path, niceness=3) as agent:
        until((tmp_path / "runs" / "mine" / "logs").exists, "the logs, made once it is registered", WAIT_S)
        niceness = os.getpriority(os.PRIO_PROCESS, agent.pid)
        assert Path(f"/proc/{agent.pid}/autogroup").read_text().split()[1:] == ["nice", str(niceness)]
        ended(agent)
    assert niceness == os.getpriority(os.PRIO_PROCESS, 0) + 3


def test_malformed_commands_are_counted_and_do_not_end_it(tmp_path: Path) -> None:
    lines = [
        b'{"command": "join"}',
        b'{"command": "set_workers", "workers": [null]}',
        b'{"command": "allow"}',
        b"[" * 100_000,
    ]
    with agent_of(remote_boot("runs/mine"), tmp_path) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(b"\n".join([*lines, b""]))
        agent.stdin.flush()
        counts: dict[str, int] = {}
        while sum(counts.values()) < len(lines):
            line = agent.stdout.readline()
            assert line, "it ended"
            counts = json.loads(line)["counts"] if b'"refused"' in line else counts
        events = ended(agent, b'{"command": "stop"}\n')
    assert counts == {"fields": 2, "value": 1, "not JSON": 1}
    assert events[-1]["event"] == "finished"


def test_a_launcher_that_is_silent_from_the_start_loses_the_host(tmp_path: Path) -> None:
    boot = remote_boot("runs/mine")
    config = boot.plan.config
    limits = replace(config.limits, host_lease_s=0.5)
    boot = replace(boot, plan=replace(boot.plan, config=replace(config, limits=limits)))
    with agent_of(boot, tmp_path) as agent:
        assert agent.wait(WAIT_S) == 0, "its stdin is open, and no line came after the boot"
        assert agent.stdout is not None
        assert b'"event":"lease_lost","source":"launcher"' in agent.stdout.read()


@pytest.mark.parametrize("last_words", [b'{"command": "stop"}\n', b'{"command": "kill"}\n', b""])
def test_an_agent_that_waits_for_torch_ends_when_it_is_requested(tmp_path: Path, last_words: bytes) -> None:
    """torch may take half a minute from a network file system. A command before the end starts nothing any more."""
    boot = remote_boot("runs/mine")
    limits = LimitsSection(start_s=7200.0, host_lease_s=3600.0)
    config = replace(boot.plan.config, defaults=DefaultsSection(worker_device="auto"), limits=limits)
    boot = replace(boot, plan=replace(boot.plan, config=config, acting={"runtime": "torch"}))
    (tmp_path / "torch.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n")
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho '0, GPU-1, NVIDIA L4, 700, 23034, [N/A]'\n")
    nvidia_smi.chmod(0o755)
    variables = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with agent_of(boot, tmp_path, variables=variables) as agent:
        until((tmp_path / "begun").exists, "the import of torch", WAIT_S)
        events = ended(agent, JOIN_LINE + last_words)
    assert [event["event"] for event in events if event["event"] != "warning"] == ["finished"]


@pytest.mark.parametrize(("limits", "limit"), [
    ({}, (60.0, "half of limits.start_s (60 s)")),
    ({"start_s": 300.0}, (60.0, "limits.host_lease_s (60 s)")),
    ({"host_lease_s": 10.0}, (10.0, "limits.host_lease_s (10 s)")),
    ({"start_s": 10.0}, (5.0, "half of limits.start_s (5 s)")),
])  # fmt: skip
def test_the_choice_of_a_gpu_has_less_time_than_the_host(limits: dict[str, float], limit: tuple[float, str]) -> None:
    """The run ends after `start_s`; the broker takes a host to be lost `JOIN_S` and its lease after its handshake."""
    section = LimitsSection(**limits)
    assert choice_limit(section) == limit
    assert limit[0] < section.start_s and limit[0] < JOIN_S + section.host_lease_s


def test_nvidia_smi_and_torch_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    boot, now = remote_boot("runs/mine"), 1000.0
    config = replace(boot.plan.config, defaults=DefaultsSection(worker_device="auto"), limits=LimitsSection())
    boot = replace(boot, plan=replace(boot.plan, config=config, acting={"runtime": "torch"}))
    limits: list[tuple[float, str]] = []

    def query(is_over: Callable[[], bool]) -> list[Gpu]:
        nonlocal now
        assert not is_over()
        now += 20.0
        assert not is_over()
        return [Gpu(0, "GPU-1", "NVIDIA L4", 700, 23034, False, ())]

    def claimed(*_: object, fault_of: FaultOf, note: object) -> Devices:
        fault_of(Gpu(0, "GPU-1", "NVIDIA L4", 700, 23034, False, ()))
        return Devices(boot)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(process, "query", query)
    monkeypatch.setattr(process, "torch_fault", lambda device, limit_s, limit, *_: limits.append((limit_s, limit)))
    monkeypatch.setattr(process, "claimed", claimed)
    process._with_devices(boot, Mock(), Mock(), lambda: False)
    assert limits == [(40.0, "half of limits.start_s (60 s)")]


def registered_as(boot: Boot) -> list[Entry]:
    return [entry for entry in HostLock().entries() if entry.run_id == boot.plan.run_id]


def test_a_host_without_the_runtime_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = remote_boot("runs/r/far")
    config = replace(boot.plan.config, network=NetworkSection(runtime="onnx"))
    boot = replace(boot, plan=replace(boot.plan, config=config))
    check_host(boot)
    monkeypatch.setattr("zmqrl.agent.process.versions", lambda: {"onnxruntime": None})
    with raises(ConfigError, key=(), value="", fix="run there, in a checkout of zmqrl: pip install '.[onnx]'"):
        check_host(boot)
    check_host(remote_boot("runs/r/far"))


def test_an_agent_on_another_processor_ends_with_exit_code_2(tmp_path: Path) -> None:
    """`setarch` has the kernel name another one."""
    command = ["setarch", "i686", sys.executable, "-m", "zmqrl.entry", "zmqrl.agent", "r", "0"]
    boot = json.dumps(to_json(remote_boot("runs/r/far"))).encode() + b"\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, input=boot, capture_output=True, timeout=WAIT_S)
    assert done.returncode == 2, done.stderr
    (error,) = [event["error"] for event in map(json.loads, done.stdout.splitlines()[1:]) if event["event"] == "fault"]
    assert error.startswith("the processor is i686, and run.mode sync needs x86-64"), "the launcher names the host"


def test_the_acting_digest_is_computed_once_a_process_is_ready(tmp_path: Path) -> None:
    """It imports numpy: until then the processes that start have the cores for themselves."""
    plan = stand_in_plan(tmp_path / "run", workers=1)
    boot = Boot("agent", 0, 0, "local", plan, workers=(0,), listen=TcpListen())
    with subprocess.Popen(
        [sys.executable, START, "zmqrl.agent", plan.run_id, "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(json.dumps(to_json(boot)).encode() + b"\n")
        agent.stdin.flush()
        seen: list[str] = []
        for line in filter(lambda line: line.startswith(b"{"), agent.stdout):  # not the handshake
            event = json.loads(line)
            seen.append(event.get("report", event)["event"])
            if seen[-1] == "acting":
                break
        agent.communicate(b'{"command": "kill"}\n', WAIT_S)
    assert "ready" in seen, seen
