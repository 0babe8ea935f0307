"""A run over several hosts: agents of this machine that speak over CURVE and tcp as those of other machines do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stand_ins.slow_store import FULL_S
from tests.support.running import END_S
from tests.support.runs.references import References
from tests.support.runs.system_plans import IDLE, SLOW_TALLY, TALLY, WAITING_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same, newest_n
from tests.support.waiting import WAIT_S
from tests.support.yardstick import within
from tests.system.hosts.secret_search import assert_each_stays_on_its_host
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import (
    EnvSection,
    HostSection,
    LearnerSection,
    LimitsSection,
    OrchestratorSection,
    RestartSection,
)
from zmqrl.launch.requests import send_request
from zmqrl.planning.plan_run import plan_run
from zmqrl.supervision.process_table import ProcessId, await_gone, identify
from zmqrl.types import ModeName

STEPS = 8_000
ROOT = Path(__file__).parents[3]
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0)
SHORT_LEASE = replace(LIMITS, host_lease_s=2.0)
# a run of no less than 8 s however fast the machine is, for what takes its time by the clock
SLOW: Mapping[str, Any] = {
    "env": EnvSection(
        id="tests.stand_ins.slow_envs:Slow", num_envs=2, vector_envs=4, segment_steps=32, max_episode_steps=50
    ),
    "steps": 16_000,
}
ENDLESS = 10_000_000


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
        return send_request(self.run_dir, {"scale": workers}, WAIT_S)


def hosts_plan(run_dir: Path, mode: ModeName = "sync", hosts: Mapping[str, int] | None = None, **more: Any) -> RunPlan:
    """The run of `test_kills`, spread over hosts."""
    steps = more.pop("steps", STEPS)
    more.setdefault("limits", LIMITS)
    algorithm = more.pop("algorithm", SLOW_TALLY)
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
def one_host(reference: References, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return reference(hosts_plan(tmp_path_factory.mktemp("one") / "run", hosts={"local": 2}, algorithm=TALLY))


@pytest.fixture(scope="module")
def one_slow_host(reference: References, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    at_once = replace(SLOW["env"], kwargs={"step_s": 0.0})  # decides about no bit
    more = {**SLOW, "env": at_once, "algorithm": TALLY}
    return reference(hosts_plan(tmp_path_factory.mktemp("slow") / "run", hosts={"local": 2}, **more))


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
        await_gone(held, WAIT_S)


def _balanced(summary: dict[str, Any]) -> None:
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["ledger"]["in_flight"] == 0


def test_three_hosts_give_the_bits_of_one_also_if_the_broker_is_killed_and_leave_nothing(
    tmp_path: Path, begin: Any, one_host: Mapping[str, Any]
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


@pytest.mark.long
def test_an_agent_killed_costs_its_host_and_no_bits(tmp_path: Path, begin: Any, one_host: Mapping[str, Any]) -> None:
    run = begin(hosts_plan(tmp_path / "run"))
    run.wait_for_updates(15)
    os.kill(run.agent("b"), signal.SIGKILL)
    code, out, err = run.end()
    assert code == 0, out + err
    assert "b: " in out + err
    assert_same(run.summary(), one_host)


@pytest.mark.long
@pytest.mark.timed
def test_drained_scaled_and_connected_to_again(tmp_path: Path, begin: Any, one_slow_host: Mapping[str, Any]) -> None:
    run = begin(hosts_plan(tmp_path / "run", **SLOW))
    run.wait_for_updates(2)
    assert "leave at the end" in run.scale(b=0)
    run.wait_for(lambda: not run.has_worker(1))
    assert "local: 2 workers" in run.scale(local=2, c=1).splitlines()
    run.wait_for(lambda: run.has_worker(3))
    assert "reconnecting" in run.scale(b=1)
    run.wait_for(lambda: run.has_worker(4))
    assert_same(run.done(), one_slow_host)


@pytest.mark.long
def test_async_over_hosts(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", "async"))
    run.wait_for_updates(5)
    os.kill(run.agent("c"), signal.SIGKILL)
    _balanced(run.done())


def test_a_run_whose_last_worker_failed_waits_for_the_last_full_checkpoint(tmp_path: Path, begin: Any) -> None:
    env = EnvSection(
        id="tests.stand_ins.faulty_envs:Faulty",
        num_envs=2,
        vector_envs=2,
        segment_steps=16,
        kwargs={"fault": "raise", "after": 100, "works_in": os.getpid()},  # the check before the start finds nothing
        max_episode_steps=25,
    )
    more: dict[str, Any] = {"restart": RestartSection(max=0), "limits": replace(LIMITS, grace_s=FULL_S)}
    plan = hosts_plan(tmp_path / "run", hosts={"local": 1, "b": 1}, algorithm=IDLE, env=env, **more)
    store = replace(plan.config.store, kind="tests.stand_ins.slow_store:SlowerFulls")
    run = begin(replace(plan, config=replace(plan.config, store=store)))
    code, out, err = run.end()
    assert code == 1, err
    error = run.summary()["error"]
    assert error.startswith("all rollout workers failed, the last was ") and "the wheel came off" in error
    assert "killed" not in out and newest_n(Path(plan.store_path), "full-") > 0


@pytest.mark.long
@pytest.mark.timed
def test_a_launcher_that_is_stopped_loses_every_host(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", steps=ENDLESS, limits=SHORT_LEASE, algorithm=WAITING_TALLY))
    run.wait_for_updates(2)
    held = run.everything()
    run.process.send_signal(signal.SIGSTOP)
    try:
        with within(SHORT_LEASE.host_lease_s + END_S):
            assert not await_gone(held, WAIT_S)
    finally:
        run.process.send_signal(signal.SIGCONT)
    code, _, err = run.end()
    assert code == 4, err
    assert "local: no launcher heartbeat for limits.host_lease_s (2 s)" in err


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("broker_too", [pytest.param(False, id="same broker"), pytest.param(True, id="new broker")])
def test_a_stopped_agent_has_failed_and_is_refused_when_it_continues(
    tmp_path: Path, begin: Any, one_slow_host: Mapping[str, Any], broker_too: bool
) -> None:
    """With its connections as they were. A new broker has the list at once: what it does not say counts for nobody."""
    run = begin(hosts_plan(tmp_path / "run", limits=SHORT_LEASE, **SLOW))
    run.wait_for_updates(4)
    agent = run.agent("b")
    held = [found for pid in run.below(agent) if (found := identify(pid))]
    for process in held:
        os.kill(process.pid, signal.SIGSTOP)
    run.wait_for(lambda: "received no message from it" in (run.run_dir / "status.json").read_text())
    if broker_too:
        before = run.processes()["broker-0"]
        run.kill("broker-0")
        run.wait_for_successor("broker-0", before)
        here = newest_n(Path(run.plan.store_path))
        run.wait_for_updates(here + 2)
    assert run.status()["refused"].get("unknown key", 0) == 0
    for process in held:
        with contextlib.suppress(ProcessLookupError):  # the agent is first: it may have ended its children by then
            os.kill(process.pid, signal.SIGCONT)
    run.wait_for(lambda: run.status()["refused"].get("unknown key", 0) > 0)
    assert not await_gone(held, WAIT_S)
    assert_same(run.done(), one_slow_host)


@pytest.mark.long
def test_no_secret_is_visible_outside_of_its_host(tmp_path: Path, begin: Any) -> None:
    run = begin(hosts_plan(tmp_path / "run", steps=ENDLESS, algorithm=IDLE))
    run.wait_for_updates(2)
    run.wait_for(lambda: all(run.has_worker(index) for index in range(3)))
    hosts = {host: list(run.below(run.agent(host))) for host in ("local", "b", "c")}
    files = [path for folder in ("run", "runs") for path in (tmp_path / folder).glob("**/*") if path.is_file()]
    assert_each_stays_on_its_host(hosts, run.process.pid, files, run.below(run.process.pid))
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
