"""A process dies in a sync run: it is replaced, and the run ends with the same bits and a balanced ledger."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.references import References
from tests.support.runs.system_plans import (
    CARTPOLE,
    IDLE,
    SLOW_TALLY,
    system_plan,
)
from tests.support.runs.system_runs import PlanRun, assert_same, newest_n
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection
from zmqrl.types import ModeName
from zmqrl.wire.runtime_folder import run_folder_root

Begin = Callable[[RunPlan], PlanRun]
STEPS = 16_000


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, reference: References) -> Mapping[str, Any]:
    return reference(_plan(tmp_path_factory.mktemp("undisturbed") / "run"))


def _plan(run_dir: Path, **more: Any) -> RunPlan:
    return system_plan(run_dir, "sync", 2, SLOW_TALLY, steps=STEPS, schedule_steps=STEPS, **more)


@pytest.mark.long
def test_a_worker_killed_three_times(tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    run, dice = begin(_plan(tmp_path / "run")), random.Random(5)
    for version in (8, 22, 40):
        run.wait_for_updates(version)
        before = run.processes()["worker-1"]
        time.sleep(dice.random() * 0.03)  # a random moment of a round
        os.kill(before.pid, signal.SIGKILL)
        run.wait_for_successor("worker-1", before)
    summary = run.done()
    assert summary["restarts"] == 3
    assert_same(summary, undisturbed)


def test_evaluator_broker_learner_and_worker_killed_one_after_the_other(
    tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]
) -> None:
    run = begin(_plan(tmp_path / "run", evaluator=EvaluatorSection(episodes=2)))
    for version, victim in ((8, "evaluator-0"), (16, "broker-0"), (30, "learner-0"), (42, "worker-1")):
        run.wait_for_updates(version)
        before = run.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        run.wait_for_successor(victim, before)
    summary = run.done()
    assert summary["restarts"] == 4
    assert summary["eval_episodes"] == 2
    assert_same(summary, undisturbed)


def test_the_directory_of_the_sockets_removed(tmp_path: Path, begin: Begin, undisturbed: Mapping[str, Any]) -> None:
    """As at a logout: whoever is started afterwards finds the broker all the same, a new broker included."""
    run = begin(_plan(tmp_path / "run"))
    for version, victim in ((8, "worker-0"), (22, "broker-0"), (40, "worker-1")):
        run.wait_for_updates(version)
        before = run.processes()[victim]
        shutil.rmtree(run_folder_root())
        os.kill(before.pid, signal.SIGKILL)
        run.wait_for_successor(victim, before)
    summary = run.done()
    assert summary["restarts"] == 3
    assert_same(summary, undisturbed)


@pytest.mark.long
def test_a_learner_with_several_optimisers_and_targets_killed(
    tmp_path: Path, begin: Begin, reference: References
) -> None:
    """It continues with the state of each, and with the noise and variants of the updates that follow."""
    kind = {"kind": "tests.stand_ins.several_targets:SeveralTargets"}
    run = begin(system_plan(tmp_path / "run", "sync", 3, kind, CARTPOLE, steps=4000))
    run.wait_for_updates(4)
    run.kill("learner-0")
    summary = run.done()
    assert summary["restarts"] == 1 and summary["updates"] > 50
    assert_same(summary, reference(run.plan))


@pytest.mark.long
def test_async_continues_when_a_worker_dies(tmp_path: Path, begin: Begin) -> None:
    run = begin(system_plan(tmp_path / "run", "async", 2, IDLE, steps=10_000_000))
    run.wait_for_updates(10)
    before = run.processes()["worker-0"]
    os.kill(before.pid, signal.SIGKILL)
    run.wait_for_successor("worker-0", before)
    run.wait_for_updates(newest_n(Path(run.plan.store_path)) + 10)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    summary = run.summary()
    assert summary["restarts"] == 1
    assert summary["ledger"]["balanced"], summary["ledger"]


@pytest.mark.long
def test_a_worker_killed_where_episodes_restart(tmp_path: Path, begin: Begin) -> None:
    """Without a limit of steps nothing is repeated: the run goes on, its books are right, and the summary says so."""
    env = EnvSection(
        id="tests.stand_ins.slow_envs:Endless", num_envs=2, vector_envs=4, segment_steps=32, recovery="restart_episode"
    )
    run = begin(system_plan(tmp_path / "run", "sync", 2, IDLE, env, steps=8_000))
    run.wait_for_updates(8)
    before = run.processes()["worker-1"]
    os.kill(before.pid, signal.SIGKILL)
    run.wait_for_successor("worker-1", before)
    summary = run.done()
    assert (summary["recovery"], summary["restarts"]) == ("restart_episode", 1)
    assert summary["ledger"]["balanced"] and summary["env_steps"] >= 8_000
    status = json.loads((run.run_dir / "status.json").read_text())
    assert (status["recovery"], status["refused"]) == ("restart_episode", {}), "every line of a real run is sound"


def test_an_env_that_saves_its_state_continues_with_the_same_bits_without_a_limit(tmp_path: Path, begin: Begin) -> None:
    stateful = "tests.stand_ins.stateful_envs:Stateful"
    env = EnvSection(id=stateful, num_envs=2, vector_envs=4, segment_steps=32, recovery="state")

    def plan(name: str, mode: ModeName) -> RunPlan:
        return system_plan(tmp_path / name, mode, 2, SLOW_TALLY, env, steps=STEPS, schedule_steps=STEPS)

    run = begin(plan("killed", "sync"))
    run.wait_for_updates(8)
    before = run.processes()["worker-1"]
    os.kill(before.pid, signal.SIGKILL)
    run.wait_for_successor("worker-1", before)
    run.kill("learner-0")
    killed, alone = run.done(), begin(plan("alone", "single")).done()
    assert killed["restarts"] == 2
    assert (killed["weights_sha256"], killed["env_steps"]) == (alone["weights_sha256"], alone["env_steps"])
