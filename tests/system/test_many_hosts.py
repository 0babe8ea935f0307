"""A run over several hosts: agents of this machine that speak over CURVE and tcp as those of other machines do."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.running import END_S
from tests.system.system_plans import IDLE, PPO, system_plan
from tests.system.system_runs import PlanRun, assert_same
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, HostSection, LearnerSection, LimitsSection, OrchestratorSection
from zmqrl.launch.plan_run import plan_run
from zmqrl.launch.requests import ask
from zmqrl.supervision.process_table import ProcessId, await_gone, identify
from zmqrl.types import Mode

STEPS = 8_000
ROOT = Path(__file__).parents[2]
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0)
SHORT_LEASE = replace(LIMITS, host_lease_s=2.0)
ANSWER_S = 10.0
# a run of no less than 8 s however fast the machine is, for what takes its time by the clock
SLOW: Mapping[str, Any] = {
    "env": EnvSection(
        id="tests.system.slow_envs:Slow", num_envs=2, vector_envs=4, segment_steps=32, max_episode_steps=50
    ),
    "steps": 16_000,
}
ENDLESS = 10_000_000
MOST_MAPPED = 32 << 20


class HostsRun(PlanRun):
    """Its far hosts' folders are below the launcher's working directory."""

    def __init__(self, plan: RunPlan) -> None:
        folder = Path(plan.run_dir).parent
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("PYTHONPATH", str(ROOT))
            super().__init__(plan)

    def below(self, pid: int) -> Iterator[int]:
        """Every process below `pid`, itself first."""
        yield pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return
        for child in children:
            yield from self.below(int(child))

    def everything(self) -> list[ProcessId]:
        """All of the run but the launcher."""
        return [found for pid in self.below(self.process.pid) if pid != self.process.pid and (found := identify(pid))]

    def agent(self, host: str) -> int:
        """Pid of a host's agent, once it is there: its stderr names it."""
        found: list[int] = []

        def is_there() -> bool:
            for pid in self.below(self.process.pid):
                try:
                    log = Path(os.readlink(f"/proc/{pid}/fd/2")).name
                except OSError:
                    continue
                if log == f"{host}-agent-0.log":
                    found.append(pid)
            return bool(found)

        self.wait_for(is_there)
        return found[0]

    def has_worker(self, index: int) -> bool:
        return f"worker-{index}" in self.processes()

    def scale(self, **workers: int) -> str:
        return ask(self.run_dir, {"scale": workers}, ANSWER_S)


def hosts_plan(run_dir: Path, mode: Mode = "sync", hosts: Mapping[str, int] | None = None, **more: Any) -> RunPlan:
    """The run of `test_kills`, spread over hosts."""
    steps = more.pop("steps", STEPS)
    more.setdefault("limits", LIMITS)
    algorithm = more.pop("algorithm", {**PPO, "epochs": 10})
    alone = system_plan(run_dir, mode, 2, algorithm, steps=steps, schedule_steps=STEPS, **more)
    held = {"local": 1, "b": 1, "c": 1} if hosts is None else hosts
    config = replace(
        alone.config,
        hosts={host: HostSection(workers=count) for host, count in held.items()},
        learner=replace(LearnerSection(), address="127.0.0.1"),
        orchestrator=OrchestratorSection(kind="local"),
    )
    return plan_run(config, run_dir, time.time())


@pytest.fixture(scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return HostsRun(hosts_plan(tmp_path_factory.mktemp("one") / "run", hosts={"local": 2})).done()


@pytest.fixture(scope="module")
def one_slow_host(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("slow")
    at_once = replace(SLOW["env"], kwargs={"step_s": 0.0})  # decides about no bit
    return HostsRun(hosts_plan(folder / "run", hosts={"local": 2}, **{**SLOW, "env": at_once})).done()


@pytest.fixture
def begin() -> Iterator[Any]:
    runs: list[HostsRun] = []

    def start(plan: RunPlan) -> HostsRun:
        runs.append(HostsRun(plan))
        return runs[-1]

    yield start
    for run in runs:
        held = run.everything()
        if run.process.poll() is None:
            for process in held:
                os.kill(process.pid, signal.SIGCONT)
            run.process.kill()
        run.process.communicate()
        await_gone(held, END_S)


def _balanced(summary: dict[str, Any]) -> None:
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["ledger"]["in_flight"] == 0


def test_three_hosts_give_the_bits_of_one_also_if_the_broker_is_killed_and_leave_nothing(
    tmp_path: Path, begin: Any, one_host: dict[str, Any]
) -> None:
    run = begin(hosts_plan(tmp_path / "run"))
    run.wait_for_updates(15)
    run.kill("broker-0")
    summary = run.done()
    assert summary["restarts"] == 1
    assert_same(summary, one_host)
    assert not list((tmp_path / "runs").glob("**/*")), "folders of far hosts"
    logs = {path.name for path in (run.run_dir / "logs").iterdir()}
    assert {"local-learner-0.log", "local-agent-0.log"} <= logs


def test_an_agent_killed_costs_its_host_and_no_bits(tmp_path: Path, begin: Any, one_host: dict[str, Any]) -> None:
    run = begin(hosts_plan(tmp_path / "run"))
    run.wait_for_updates(15)
    os.kill(run.agent("b"), signal.SIGKILL)
    code, out, err = run.end()
    assert code == 0, out + err
    assert "b: " in out + err
    assert_same(run.summary(), one_host)


@pytest.mark.timed
def test_drained_scaled_and_connected_to_again(tmp_path: Path, begin: Any, one_slow_host: dict[str, Any]) -> None:
    run = begin(hosts_plan(tmp_path / "run", **SLOW))
    run.wait_for_updates(2)
    assert "leave at the end" in run.scale(b=0)
    run.wait_for(lambda: not run.has_worker(1))
    assert run.scale(local=2, c=1).startswith("local: 2 workers")
    run.wait_for(lambda: run.has_worker(3))
    assert "reconnecting" in run.scale(b=1)
    run.wait_for(lambda: run.has_worker(4))
    assert_same(run.done(), one_slow_host)


def test_async_over_hosts(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", "async"))
    run.wait_for_updates(5)
    os.kill(run.agent("c"), signal.SIGKILL)
    _balanced(run.done())


@pytest.mark.timed
def test_a_launcher_that_is_stopped_loses_every_host(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", steps=ENDLESS, limits=SHORT_LEASE, algorithm=IDLE))
    run.wait_for_updates(2)
    held = run.everything()
    run.process.send_signal(signal.SIGSTOP)
    try:
        assert not await_gone(held, SHORT_LEASE.host_lease_s + 5.0)
    finally:
        run.process.send_signal(signal.SIGCONT)
    code, _, err = run.end()
    assert code == 1, err
    assert "local: no launcher heartbeat for limits.host_lease_s (2 s)" in err


@pytest.mark.timed
def test_an_agent_that_is_stopped_is_given_up_and_ends_when_it_wakes(
    tmp_path: Path, begin: Any, one_slow_host: dict[str, Any]
) -> None:
    run = begin(hosts_plan(tmp_path / "run", limits=SHORT_LEASE, **SLOW))
    run.wait_for_updates(4)
    agent = run.agent("b")
    held = [found for pid in run.below(agent) if (found := identify(pid))]
    for process in held:
        os.kill(process.pid, signal.SIGSTOP)
    run.wait_for(lambda: "received no message from it" in (run.run_dir / "status.json").read_text())
    for process in held:
        os.kill(process.pid, signal.SIGCONT)
    assert not await_gone(held, SHORT_LEASE.host_lease_s + 5.0)
    assert_same(run.done(), one_slow_host)


def test_nothing_secret_is_to_be_seen(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", steps=ENDLESS, algorithm=IDLE))
    run.wait_for_updates(2)
    run.wait_for(lambda: all(run.has_worker(index) for index in range(3)))
    held = {host: _memory_of(run.agent(host)) for host in ("local", "b", "c")}
    secrets = {host: _secrets_in(memory) for host, memory in held.items()}
    assert all(secrets.values()), "the test itself no longer finds what it looks for"
    seen = [path for pid in run.below(run.process.pid) for path in _shown_by(pid)]
    files = [path for folder in ("run", "runs") for path in (tmp_path / folder).glob("**/*") if path.is_file()]
    assert files
    for path in (*seen, *files):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        assert not any(secret in content for found in secrets.values() for secret in found), path
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130


def _shown_by(pid: int) -> list[Path]:
    return [Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")]


def _secrets_in(memory: bytes) -> set[bytes]:
    """Those of a boot line; CURVE's public halves may be seen."""
    return set(re.findall(rb'secret": ?"([^"]{40})"', memory))


def _memory_of(pid: int) -> bytes:
    """What a process has on its heap."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_, inode_or_name = line.split()
            if rights.startswith("rw") and inode_or_name in ("0", "[heap]"):
                start, end = (int(word, 16) for word in span.split("-"))
                memory.seek(start)
                found.append(memory.read(end - start) if end - start < MOST_MAPPED else b"")
    return b"".join(found)
