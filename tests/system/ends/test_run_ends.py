"""Every way to end, with the real processes: exit code, summary, and nothing left within 5 s."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.running import END_S
from tests.support.runs.system_plans import IDLE, PPO, system_plan
from tests.support.runs.system_runs import PlanRun
from tests.support.waiting import WAIT_S
from tests.support.yardstick import within
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection, RestartSection
from zmqrl.launch.launcher import Launcher
from zmqrl.orchestrators.make import make_orchestrator
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.supervision.process_table import await_gone
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
LONG = 10_000_000
ONE_RESTART = RestartSection(max=1, backoff_s=0.1)
EVALUATOR = EvaluatorSection(episodes=2, final_limit_s=1.0)


def _endless(run_dir: Path, mode: ModeName = "sync") -> RunPlan:
    return system_plan(run_dir, mode, 2 if mode != "single" else 1, IDLE, steps=LONG, evaluator=EVALUATOR)


@pytest.mark.timed
@pytest.mark.parametrize(("mode", "number", "status", "code"), [
    ("single", signal.SIGINT, "interrupted", 130),
    ("sync", signal.SIGINT, "interrupted", 130),
    long("async", signal.SIGINT, "interrupted", 130),
    long("sync", signal.SIGTERM, "interrupted", 130),
    long("sync", signal.SIGUSR1, "stopped", 0),
])  # fmt: skip
def test_one_signal_stops_cleanly(
    tmp_path: Path, begin: Begin, mode: ModeName, number: signal.Signals, status: str, code: int
) -> None:
    run = begin(_endless(tmp_path / "run", mode))
    run.wait_for_updates(3)
    processes = run.processes()
    with within(END_S):
        run.process.send_signal(number)
        assert run.end()[0] == code
    assert not await_gone(processes.values(), 0.0)
    summary = run.summary()
    assert (summary["status"], summary["exit_code"], summary["error"]) == (status, code, None)
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["ledger"]["in_flight"] == 0 or mode == "async"
    assert summary["weights_sha256"] is not None
    assert list(Path(run.plan.store_path).glob("full-*")), "it can be resumed"


@pytest.mark.long
def test_second_sigint_kills(tmp_path: Path, begin: Begin) -> None:
    run = begin(_endless(tmp_path / "run"))
    run.wait_for_updates(3)
    processes = run.processes()
    os.kill(processes["learner-0"].pid, signal.SIGSTOP)  # so that the first cannot end it
    run.process.send_signal(signal.SIGINT)
    time.sleep(1.1)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert run.summary()["status"] == "interrupted"
    assert not await_gone(processes.values(), 0.0)


@pytest.mark.parametrize("mode", ["single", "sync"])
@pytest.mark.parametrize(("fault", "said"), [
    ("raise", "the wheel came off"),
    long("nan", "NaN"),
    long("shape", "shape"),
])  # fmt: skip
def test_a_faulty_env_is_named(tmp_path: Path, begin: Begin, mode: ModeName, fault: str, said: str) -> None:
    env = EnvSection(
        id="tests.stand_ins.faulty_envs:Faulty",
        num_envs=2,
        vector_envs=2,
        segment_steps=16,
        kwargs={"fault": fault, "after": 40, "works_in": os.getpid()},  # the check before the start finds nothing
        max_episode_steps=25,
    )
    run = begin(system_plan(tmp_path / "run", mode, 2 if mode == "sync" else 1, IDLE, env, restart=ONE_RESTART))
    code, _, err = run.end()
    assert code == 1
    summary = run.summary()
    assert (summary["status"], summary["exit_code"]) == ("failed", 1)
    role = "worker" if mode == "sync" else "learner"
    for text in (summary["error"], err):
        assert said in text
        assert "env tests.stand_ins.faulty_envs:Faulty" in text
        assert "seed" in text
        assert "step" in text
        assert f"local-{role}" in text, "the log"
    logs = "".join(p.read_text() for p in (run.run_dir / "logs").glob(f"local-{role}-*.log"))
    assert "Traceback" in logs
    assert summary["ledger"] is None or summary["ledger"]["balanced"], summary["ledger"]


def test_a_learner_that_raises_is_named(tmp_path: Path, begin: Begin) -> None:
    plan = system_plan(tmp_path / "run", "sync", 2, {**PPO, "learning_rate": 1e30, "max_grad_norm": 1e30}, steps=LONG)
    run = begin(plan)
    code, _, err = run.end()
    assert code == 1
    assert re.search(r"TrainingFailed: .*\(twice in update \d+\)", err), err
    assert run.summary()["restarts"] == 1, "the same exception in the same update is not tried a third time"


def test_what_a_learner_finds_bad_before_it_began_is_bad_configuration(tmp_path: Path, begin: Begin) -> None:
    plan = system_plan(tmp_path / "run", "sync", 2)
    config = replace(plan.config, algorithm={**PPO, "kind": "ppoo"})
    run = begin(replace(plan, config=config))
    code, _, err = run.end()
    assert code == 2
    assert "did you mean 'ppo'?" in err
    assert not run.run_dir.exists()


def test_a_fault_of_the_launcher_is_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left")

    plan = _endless(tmp_path / "run", "single")
    monkeypatch.setattr("zmqrl.launch.run_output.status_of", fail)
    assert Launcher(plan, make_orchestrator(plan), RunDirectory.own(plan), plain=True).run() == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "OSError: no space left" in summary["error"]


@pytest.mark.parametrize("mode", [long("single"), "sync"])
def test_a_killed_launcher_takes_everything_with_it(tmp_path: Path, begin: Begin, mode: ModeName) -> None:
    run = begin(_endless(tmp_path / "run", mode))
    run.wait_for_updates(3)
    processes = run.processes()
    assert len(processes) == (7 if mode == "sync" else 4)
    with within(END_S):
        run.process.kill()
        assert not await_gone(processes.values(), WAIT_S)


@pytest.mark.parametrize("mode", [long("single"), "sync"])
def test_a_killed_agent_ends_the_run(tmp_path: Path, begin: Begin, mode: ModeName) -> None:
    run = begin(_endless(tmp_path / "run", mode))
    run.wait_for_updates(3)
    processes = run.processes()
    with within(END_S):
        os.kill(processes["agent-0"].pid, signal.SIGKILL)
        assert not await_gone(processes.values(), WAIT_S)
    assert run.end()[0] == 4
    assert "host agent of local exited unexpectedly" in run.summary()["error"]


def test_what_is_done_leaves_nothing(tmp_path: Path, begin: Begin) -> None:
    run = begin(system_plan(tmp_path / "run", algorithm=IDLE, evaluator=EVALUATOR))
    run.wait_for_updates(1)
    processes = run.processes()
    summary = run.done()
    assert not await_gone(processes.values(), 0.0)
    assert (summary["status"], summary["eval_episodes"]) == ("done", 2)
