"""Every way a run can end, with real processes: the exit code, the summary, and nothing left within 5 s."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from tests.support.marks import long
from tests.support.raising import raises
from tests.support.running import Run
from tests.support.waiting import WAIT_S, until
from tests.support.yardstick import within
from zmqrl.config.codec import replace
from zmqrl.config.plan import Lineage, RunPlan
from zmqrl.config.sections import HostSection, StoreSection
from zmqrl.errors import ConfigError
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.run_output import PROBLEMS_LOG
from zmqrl.messages.command import Stop
from zmqrl.messages.orchestrator import AgentExited, HostUnusable
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.run_files.published_runs import published_runs
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.supervision.host_lock import AGENTS
from zmqrl.supervision.process_table import ProcessId, await_gone, identify, is_alive
from zmqrl.types import ColumnSpec

pytestmark = pytest.mark.whole

END_S = 5.0
"""Within which docs and messages promise that nothing is left."""


class StandInRun(Run):
    """A launcher over stand-ins."""

    def __init__(
        self, run_dir: Path, *behaviour: str, mode: str = "sync", detach: bool = False, workers: int = 1
    ) -> None:
        kind = "detach" if detach else "attach"
        arguments = (run_dir, mode, workers, kind, *behaviour)
        super().__init__(self.start("-m", "tests.launch.stand_in_launch", *arguments), run_dir)

    def ready(self) -> list[ProcessId]:
        """Wait until it runs, its learner too; everything below the launcher: the agent first.

        A stand-in worker steps without a version of the learner, and the run counts as running from then on.
        """
        until(self._is_running, "the run", WAIT_S)
        return descendants(self.process.pid)

    def _is_running(self) -> bool:
        status = self.status()
        return status.get("phase") == "running" and bool(status["metrics"])


def launcher_of(plan: RunPlan, orchestrator: Orchestrator, on_ready: Callable[[], None] = lambda: None) -> Launcher:
    return Launcher(plan, orchestrator, RunDirectory.own(plan), plain=True, on_ready=on_ready)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> list[ProcessId]:
    """The agent, then its children: those are of the thread that started them."""
    (agent,) = children(pid)
    found = [identify(p) for p in (agent, *children(agent))]
    return [process for process in found if process is not None]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def started() -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        if not run.process.stdout.closed:  # type: ignore[union-attr]
            run.process.communicate()
        run.process.wait(WAIT_S)


def test_done_writes_everything_and_leaves_nothing(run_dir: Path) -> None:
    run = StandInRun(run_dir, "train_s=0.3", workers=2)
    code, out, err = run.end()
    summary = run.summary()
    assert (code, summary["status"], summary["exit_code"], summary["error"]) == (0, "done", 0, None), err
    assert summary["ledger"] == {
        "produced": 128,
        "stored": 128,
        "in_flight": 0,
        "dropped": {},
        "duplicates_refused": 0,
        "overbooked": 0,
        "balanced": True,
    }
    assert summary["eval_return_mean"] == 30.0
    assert summary["first_env_step_s"] < summary["wall_s"]
    assert set(summary["peak_pss_mb"]) == {"broker", "learner", "worker", "evaluator"}
    assert "5 processes ended, 0 left" in out
    assert "ledger balanced" in out
    assert (run_dir / "config.json").exists()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) >= 3 and [sum(f"worker_{i}_wait_fraction" in row for row in rows) for i in (0, 1)] == [1, 1]
    assert list((run_dir / "tensorboard").iterdir())


def test_single_has_a_learner_and_an_evaluator(run_dir: Path) -> None:
    code, out, err = StandInRun(run_dir, "train_s=0.3", mode="single").end()
    assert code == 0, err
    assert "2 processes ended, 0 left" in out


@pytest.mark.parametrize(("number", "status", "code"), [
    (signal.SIGINT, "interrupted", 130),
    (signal.SIGTERM, "interrupted", 130),
    (signal.SIGUSR1, "stopped", 0),
])  # fmt: skip
def test_one_signal_stops_cleanly(
    run_dir: Path, started: list[Run], number: signal.Signals, status: str, code: int
) -> None:
    run = StandInRun(run_dir, "grace_s=30")
    started.append(run)
    processes = run.ready()
    run_id = run.status()["run_id"]
    until(lambda: ("running", run_id) in [(row.state, row.run_id) for row in published_runs()], "the row for all users")
    run.process.send_signal(number)
    run.process.send_signal(number)  # the same press
    assert run.end()[0] == code
    assert not list(AGENTS.parent.glob(f"{AGENTS.name}-*/{run_id}*"))
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == (status, code)
    assert summary["weights_sha256"] is not None, "the learner wrote its last words"
    assert not await_gone(processes, 0.0)


def test_second_sigint_kills(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=deaf", "grace_s=30")
    started.append(run)
    processes = run.ready()
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end()
    assert code == 130
    first, same, kill = err.splitlines()[:3]
    assert first == "stopping with a checkpoint; a second interrupt, at least 1 s later, kills all processes"
    assert same.startswith("this interrupt came within 1 s of the first and counts as the same; a second interrupt")
    assert kill == "killing every process of the run"
    assert run.summary()["status"] == "interrupted"
    assert "killed" in out
    assert not await_gone(processes, 0.0)


def test_after_a_kill_an_interrupt_ends_the_wait_for_on_end(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=deaf", "grace_s=30", f"on_end=touch {run_dir}/told; exec sleep 600")
    started.append(run)
    run.ready()
    run.process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    run.process.send_signal(signal.SIGINT)
    until((run_dir / "told").exists, "on_end", WAIT_S)
    time.sleep(1.5)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(WAIT_S) == 130
    assert "on_end: interrupted" in run.end()[2]


def test_deaf_worker_is_killed_and_named(run_dir: Path) -> None:
    code, out, err = StandInRun(run_dir, "worker=deaf", "train_s=2").end()
    assert code == 0, err
    assert "killed local/worker-0 (pid" in out
    assert "0 left" in out


def test_what_an_env_started_does_not_outlive_the_run(run_dir: Path) -> None:
    code, out, err = StandInRun(run_dir, "worker=litter", "train_s=2").end()
    assert code == 0, err
    assert "local/stray (pid" in out


def test_failing_worker_ends_the_run_after_its_restarts(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=raise", workers=2)
    started.append(run)
    code, _, err = run.end()
    summary = run.summary()
    assert (code, summary["status"], summary["restarts"]) == (1, "failed", 2)
    assert "EnvFault: step returned NaN (env Broken-v0, seed 7, step 12)" in summary["error"]
    assert "raise error" in summary["error"], "the log's tail"
    assert "restart limit reached (1 within" in err


def test_failing_learner_ends_the_run(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "learner=raise")
    started.append(run)
    assert run.end()[0] == 1
    assert "the loss is NaN" in run.summary()["error"]


@pytest.mark.timed
def test_a_slow_evaluator_delays_the_end_by_its_limit_only(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "evaluator=slow", "train_s=0.3", "grace_s=60")
    started.append(run)
    with within(6.0):
        code, out, _ = run.end()
    assert code == 0
    assert "evaluator.final_limit_s: " in out and "the checkpoints are complete" in out
    assert "killed" not in out


@pytest.mark.timed
def test_killed_launcher_takes_everything_with_it(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=deaf")
    started.append(run)
    processes = run.ready()
    assert len(processes) == 5
    with within(END_S):
        run.process.kill()
        assert not await_gone(processes, WAIT_S)


@pytest.mark.timed
def test_killed_agent_fails_the_run_and_takes_its_children(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=deaf")
    started.append(run)
    processes = run.ready()
    with within(END_S):
        os.kill(processes[0].pid, signal.SIGKILL)
        assert not await_gone(processes, WAIT_S)
    assert run.end()[0] == 4
    summary = run.summary()
    assert summary["status"] == "failed"
    assert "host agent of local exited unexpectedly" in summary["error"]


def test_what_an_env_started_does_not_outlive_a_killed_agent(run_dir: Path, started: list[Run]) -> None:
    """Its simulators have sessions of their own, and one has no environment."""
    run = StandInRun(run_dir, "worker=simulates")
    started.append(run)
    agent = run.ready()[0]
    os.kill(agent.pid, signal.SIGKILL)
    code, out, _ = run.end()
    assert code == 4
    assert out.count("local/stray (pid") == 3
    assert "0 left" in out


@pytest.mark.timed
def test_detach_returns_when_ready_and_the_run_continues(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, detach=True)
    started.append(run)
    run.process.stdout.readline()  # type: ignore[union-attr]
    assert run.process.wait(WAIT_S) == 0
    info = json.loads((run_dir / "run.json").read_text())
    launcher = ProcessId(info["pid"], info["start_time"])
    assert is_alive(launcher)
    with within(END_S):
        os.kill(launcher.pid, signal.SIGUSR1)
        assert not await_gone([launcher], WAIT_S)
    assert run.summary()["status"] == "stopped"


@pytest.mark.timed
@pytest.mark.parametrize("closed", [False, True])
def test_a_detached_run_outlives_the_command_that_waits_for_it(run_dir: Path, started: list[Run], closed: bool) -> None:
    """The command ends before READY, by SIGKILL or with its terminal."""
    run = StandInRun(run_dir, detach=True)
    started.append(run)
    until((run_dir / "run.json").exists, "the run", WAIT_S)
    run.process.send_signal(signal.SIGHUP if closed else signal.SIGKILL)
    if closed:
        for stream in (run.process.stdout, run.process.stderr):
            assert stream is not None
            stream.close()
    info = json.loads((run_dir / "run.json").read_text())
    launcher = ProcessId(info["pid"], info["start_time"])
    phases, summary = ("running", "ended"), run_dir / "summary.json"
    until(lambda: run.status().get("phase") in phases or summary.exists(), "the run", WAIT_S)
    assert is_alive(launcher), run.summary()
    with within(END_S):
        os.kill(launcher.pid, signal.SIGUSR1)
        assert not await_gone([launcher], WAIT_S)
    assert run.summary()["status"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_waits_for_a_detached_run_ends_it(run_dir: Path, started: list[Run], number: int) -> None:
    run = StandInRun(run_dir, "worker=silent", detach=True)
    started.append(run)
    until(lambda: run.status().get("phase") is not None, "the run", WAIT_S)
    info = json.loads((run_dir / "run.json").read_text())
    run.process.send_signal(number)
    assert run.process.wait(WAIT_S) == 130
    assert not await_gone([ProcessId(info["pid"], info["start_time"])], 0.0)
    assert run.summary()["status"] == "interrupted"
    assert run.process.stdout is not None
    assert "continues" not in run.process.stdout.read()


def test_a_terminal_that_closes_does_not_end_the_run(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "train_s=2")
    started.append(run)
    for stream in (run.process.stdout, run.process.stderr):
        assert stream is not None
        stream.close()
    assert run.process.wait(WAIT_S) == 0
    assert run.summary()["status"] == "done"


def test_a_directory_in_use_is_refused(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir)
    started.append(run)
    run.ready()
    second = StandInRun(run_dir)
    started.append(second)
    code, _, err = second.end()
    assert code != 0
    assert "is in use by run" in err
    run.process.send_signal(signal.SIGUSR1)
    assert run.end()[0] == 0


def test_too_few_workers_in_time(run_dir: Path, started: list[Run]) -> None:
    run = StandInRun(run_dir, "worker=silent", "start_s=5")
    started.append(run)
    assert run.end()[0] == 4
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("failed", 4)
    assert "limits.start_s (5 s)" in summary["error"]


@pytest.mark.parametrize(("mode", "detach"), [("sync", False), long("sync", True), ("single", False)])
def test_a_learner_that_is_not_built_in_time(run_dir: Path, started: list[Run], mode: str, detach: bool) -> None:
    """Its workers step with version 0, which is published before it is built."""
    run = StandInRun(run_dir, "learner=silent", "start_s=5", mode=mode, detach=detach)
    started.append(run)
    assert run.end()[0] == 4
    assert "the learner was not ready within limits.start_s (5 s); see its log" in run.summary()["error"]


def test_an_agent_of_this_machine_that_starts_too_late_is_reported_without_a_login_shell(
    run_dir: Path, started: list[Run]
) -> None:
    run = StandInRun(run_dir, "start_s=0.0001")  # over before the launcher waits for the first event
    started.append(run)
    code, _, err = run.end()
    assert code == 4
    cause, fix = run.summary()["error"].splitlines()
    assert cause.endswith("no handshake of the host agent within limits.start_s (0.0001 s)")
    assert fix == "raise limits.start_s if this machine is busy" and fix in err


@pytest.mark.parametrize("here", [1, 0])
def test_a_run_for_several_hosts_of_which_none_can_be_used_does_not_train_here_alone(
    run_dir: Path, capfd: pytest.CaptureFixture[str], here: int
) -> None:
    lost = HostUnusable("no route", "plug it in")
    ready = [host_event("local", "ready", role=role, index=0) for role in ("learner", "worker")[: 1 + here]]
    first = [HostEvent("a", lost), *([HostEvent("b", lost)] if not here else []), *ready]
    ends = [host_event("local", "ended", reason="stop"), host_event("local", "finished")]
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    late = [HostEvent("b", lost)] if here else []
    orchestrator.monitor.side_effect = chain(
        [first, late, [*ends, HostEvent("local", AgentExited(0, True))]], repeat([])
    )
    orchestrator.undeploy.return_value = Teardown(1)
    plan = stand_in_plan(run_dir)
    hosts = {"local": HostSection(workers=here), "a": HostSection(workers=1), "b": HostSection(workers=1)}
    plan = replace(plan, config=replace(plan.config, hosts=hosts), workers={"local": here, "a": 1, "b": 1})
    readied: list[int] = []
    assert launcher_of(plan, orchestrator, lambda: readied.append(1)).run() == 4
    err = capfd.readouterr().err
    assert "\nfailed: no " in err and ("--limit local" in err) == bool(here)
    assert ("b: no route" in json.loads((run_dir / "summary.json").read_text())["error"]) and not readied
    sent = [call.args[1] for call in orchestrator.command.call_args_list]
    assert (Stop() in sent) == bool(here)


def test_a_run_of_several_hosts_without_workers_ends_with_the_log_tail_of_its_learner(run_dir: Path) -> None:
    """A full checkpoint takes longer than `limits.grace_s` on a slow store."""
    first = [
        *(host_event(host, "agent", public=host) for host in ("local", "b")),
        *(host_event("local", "ready", role=role, index=0) for role in ("learner", "worker")),
        host_event("b", "ready", role="worker", index=1),
    ]
    failed = [
        host_event(host, "restart_limit_reached", role="worker", index=index, cause=f"EnvFault: {host}")
        for index, host in enumerate(("local", "b"))
    ]
    writing = [host_event("local", "writing", role="learner", index=0)]
    ends = [host_event("local", "ended", reason="stop"), host_event("local", "finished")]
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.monitor.side_effect = chain(
        [first, failed, [], writing, [*ends, HostEvent("local", AgentExited(0, True))]], repeat([])
    )
    orchestrator.undeploy.return_value = Teardown(1)
    plan = stand_in_plan(run_dir)
    hosts = {host: HostSection(workers=1) for host in ("local", "b")}
    plan = replace(plan, config=replace(plan.config, hosts=hosts), workers={"local": 1, "b": 1})
    assert launcher_of(plan, orchestrator).run() == 1
    summary = json.loads((run_dir / "summary.json").read_text())
    error = "all rollout workers failed, the last was b/worker-1: EnvFault: b"
    assert (summary["error"], summary["weights_sha256"] is not None) == (error, True)
    stops = [call.args for call in orchestrator.command.call_args_list if isinstance(call.args[1], Stop)]
    assert stops == [("local", Stop(failed=True))]


def test_a_clock_that_steps_back_changes_no_wall_s(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, step_s = time.time, 0.0
    monkeypatch.setattr("time.time", lambda: real() + step_s)
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.undeploy.return_value = Teardown(1)

    def events() -> Iterator[list[HostEvent]]:
        nonlocal step_s
        for seconds in (0.0, -3600.0):
            step_s = seconds
            score = host_event("local", "score", role="evaluator", index=0, wall=time.time())
            yield [host_event("local", "metrics", role="learner", index=0), score]
        yield [host_event("local", "finished"), HostEvent("local", AgentExited(0, True))]

    orchestrator.monitor.side_effect = chain(events(), repeat([]))
    launcher_of(stand_in_plan(run_dir), orchestrator).run()
    rows = [json.loads(line)["wall_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    files = [json.loads((run_dir / name).read_text()) for name in ("status.json", "summary.json")]
    assert len(rows) == 4 and rows == sorted(rows)
    assert all(0.0 <= seconds < 60.0 for seconds in (*rows, *(file["wall_s"] for file in files)))
    assert abs(files[0]["written_at"] - time.time()) < 60.0, "commands compare it with the clock"


def test_an_end_that_fails_is_summed_up_as_not_verified(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    events = [host_event("local", "ended"), host_event("local", "finished"), HostEvent("local", AgentExited(0, True))]
    orchestrator.monitor.side_effect = chain([events], repeat([]))
    orchestrator.undeploy.side_effect = ValueError("not enough values to unpack")
    assert launcher_of(stand_in_plan(run_dir), orchestrator).run() == 3
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    assert "could not be verified: ValueError: not enough values" in summary["error"]
    err = capfd.readouterr().err
    assert "Traceback" in err and "zmqrl down" in err
    assert json.loads((run_dir / "run.json").read_text())["ended_at"] is not None


def test_a_deployment_that_is_refused_leaves_no_directory(run_dir: Path) -> None:
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.deploy.side_effect = ConfigError("no such partition")
    with raises(ConfigError, key=(), what="no such partition"):
        launcher_of(stand_in_plan(run_dir), orchestrator).run()
    assert not run_dir.exists()


@pytest.mark.parametrize(("reason", "code", "status"), [("stop", 130, "interrupted"), ("total_env_steps", 0, "done")])
def test_an_engine_that_ends_the_learners_host_interrupts_the_run_and_is_reported(
    run_dir: Path, capfd: pytest.CaptureFixture[str], reason: str, code: int, status: str
) -> None:
    """Such as a job at its time limit: the agent ends in good order, and nobody has requested a stop."""
    events = [
        host_event("local", "ended", reason=reason),
        host_event("local", "finished"),
        HostEvent("local", HostUnusable("Slurm: STEP 7.0 ON n1 CANCELLED DUE TO TIME LIMIT", "resume the run")),
        HostEvent("local", AgentExited(0, True)),
    ]
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.monitor.side_effect = chain([events], repeat([]))
    orchestrator.undeploy.return_value = Teardown(1)
    launcher = launcher_of(stand_in_plan(run_dir), orchestrator)
    assert launcher.run() == code
    assert launcher.summary is not None and launcher.summary.status == status
    out, err = capfd.readouterr()
    assert ("DUE TO TIME LIMIT" in out + err) == (code != 0)
    assert out.endswith(f"\n  resume with: zmqrl train --resume {run_dir}\n") == (status in ("interrupted", "stopped"))


@pytest.mark.parametrize("was_there", [False, True])
def test_an_arena_that_does_not_fit_leaves_no_directory_and_no_copy(
    run_dir: Path, capfd: pytest.CaptureFixture[str], was_there: bool
) -> None:
    if was_there:
        run_dir.mkdir()
    column = ColumnSpec("obs", "float32", (5, 2, 4))
    plan = replace(stand_in_plan(run_dir), slots=10**11, columns=(column,))
    copies = run_dir.with_name("copies")
    store = StoreSection(options={"path": None, "mirror": f"file://{copies}"})
    plan = replace(plan, config=replace(plan.config, store=store))
    assert launcher_of(plan, LocalOrchestrator()).run() == 2
    assert run_dir.exists() == was_there and not [*run_dir.rglob("*")]
    assert not copies.exists()
    assert "lower replay.capacity" in capfd.readouterr().err


def test_all_problems_of_a_run_are_in_its_log_with_their_times(run_dir: Path) -> None:
    problems = [host_event("local", "problem", cause=f"cause {i}", done="it continues") for i in range(8)]
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.monitor.side_effect = chain([[*problems, HostEvent("local", AgentExited(0, True))]], repeat([]))
    orchestrator.undeploy.return_value = Teardown(1)
    launcher_of(stand_in_plan(run_dir), orchestrator).run()
    lines = (run_dir / "logs" / PROBLEMS_LOG).read_text().splitlines()
    causes = [line for line in lines if "cause " in line]
    assert len(causes) == len(problems)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in causes)


def test_a_launcher_that_can_start_no_thread_ends_its_hosts(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "leases":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.monitor.return_value = []
    orchestrator.undeploy.return_value = Teardown(1)
    assert launcher_of(stand_in_plan(run_dir), orchestrator).run() == 1
    orchestrator.undeploy.assert_called_once()
    assert "can't start new thread" in json.loads((run_dir / "summary.json").read_text())["error"]


def test_a_run_that_its_learner_refuses_after_env_steps_is_copied_to_its_end(run_dir: Path) -> None:
    copies = run_dir.with_name("copies")
    events = [
        host_event("local", "metrics", role="learner", index=0, values={"env_steps": 64}),
        host_event("local", "exit", role="learner", index=0, code=2, expected=False, cause="no compiler"),
        host_event("local", "failed", cause="learner-0 is not restarted"),
        HostEvent("local", AgentExited(1, True)),
    ]
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.monitor.side_effect = chain([events], repeat([]))
    orchestrator.undeploy.return_value = Teardown(1)
    plan = stand_in_plan(run_dir)
    store = StoreSection(options={"path": None, "mirror": f"file://{copies}"})
    lineage = Lineage("run-1", 1, "here", plan.run_dir)
    plan = replace(plan, config=replace(plan.config, store=store), lineage=lineage)
    assert launcher_of(plan, orchestrator).run() == 2
    assert (copies / "run-1" / "summary.json").exists()


def test_a_deployment_that_breaks_ends_what_it_has_started(run_dir: Path) -> None:
    orchestrator = create_autospec(Orchestrator, instance=True, job=None)
    orchestrator.deploy.side_effect = RuntimeError("can't start new thread")
    orchestrator.monitor.return_value = []
    orchestrator.undeploy.return_value = Teardown(1)
    assert launcher_of(stand_in_plan(run_dir), orchestrator).run() == 1
    orchestrator.undeploy.assert_called_once()
    assert "can't start new thread" in json.loads((run_dir / "summary.json").read_text())["error"]
