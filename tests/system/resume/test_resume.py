"""Stop and resume is as if never stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl
from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import (
    ACROBOT,
    CARTPOLE,
    DQN,
    IQL,
    NORMALISED,
    PPO,
    PRIORITISED,
    SEQUENCES,
    SLOW_TALLY,
    STACKED,
    STACKED_STATES,
    TALLY,
    system_plan,
)
from tests.support.runs.system_runs import SAME, PlanRun, newest_n
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
STEPS, TWO_LEGS = 6000, 4000
STOPPED_STEPS = 16_000
"""As in `test_kills`: the same reference."""
KINDS = {
    "ppo": (PPO, CARTPOLE),
    "ppo-normalised": (NORMALISED, ACROBOT),
    "tally": (SLOW_TALLY, CARTPOLE),
    "dqn": (DQN, CARTPOLE),
    "dqn-prioritised": (PRIORITISED, CARTPOLE),
    "iql": (IQL, CARTPOLE),
    "sequences": (SEQUENCES, CARTPOLE),
    "stacks": (TALLY, STACKED),
    "stacks-in-states": (TALLY, STACKED_STATES),
}


def _second_attempt(plan: RunPlan, run_id: str, steps: int = STEPS) -> RunPlan:
    run = replace(plan.config.run, total_env_steps=steps)
    return replace(plan, run_id=run_id, resume=True, started_at=time.time(), config=replace(plan.config, run=run))


def _check(second: dict[str, Any], straight: dict[str, Any], before: int) -> None:
    ledger = second["ledger"]
    assert ledger["balanced"], ledger
    assert before + ledger["stored"] == second["env_steps"]
    assert {n: second[n] for n in SAME} == {n: straight[n] for n in SAME}


@pytest.mark.parametrize(("kind", "mode"), [
    long("ppo", "single"),
    long("ppo-normalised", "sync"),
    long("dqn", "single"),
    ("dqn-prioritised", "sync"),
    long("iql", "sync"),
    long("sequences", "single"),
    long("stacks", "sync"),
    long("stacks-in-states", "sync"),
])  # fmt: skip
def test_two_attempts_are_one_run(
    tmp_path: Path, begin: Begin, reference: References, kind: str, mode: ModeName
) -> None:
    algorithm, env = KINDS[kind]
    workers = 2 if mode == "sync" else 1
    plan = system_plan(tmp_path / "legs", mode, workers, algorithm, env, steps=TWO_LEGS // 2)
    first = begin(plan).done()
    assert first["env_steps"] < TWO_LEGS
    leg = _second_attempt(plan, f"{plan.run_id}-b", TWO_LEGS)
    second = begin(leg).done()
    _check(second, reference(leg), first["env_steps"])
    if kind.startswith("ppo"):
        _check_that_nothing_remains(begin, leg, second)


def _check_that_nothing_remains(begin: Begin, plan: RunPlan, done: dict[str, Any]) -> None:
    """As after a cut between the last FULL and the summary: a resume trains no round more."""
    names = os.listdir(plan.store_path)
    assert not [name for name in names if name.startswith(".")]
    assert len([name for name in names if name.startswith("v")]) <= plan.config.store.keep
    Path(plan.run_dir, "summary.json").unlink()
    again = begin(_second_attempt(plan, f"{plan.run_id}-c", TWO_LEGS)).done()
    _check(again, done, done["env_steps"])
    assert again["ledger"]["stored"] == 0


@pytest.mark.parametrize("mode", [long("single"), "sync"])
def test_a_run_stopped_in_the_middle_continues(
    tmp_path: Path, begin: Begin, reference: References, mode: ModeName
) -> None:
    """SIGTERM at any moment, then with another number of workers."""
    plan = system_plan(tmp_path / "legs", mode, 1, SLOW_TALLY, steps=STOPPED_STEPS, schedule_steps=STOPPED_STEPS)
    run = begin(plan)
    run.wait_for_updates(8)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    stopped = run.summary()
    assert stopped["env_steps"] < STOPPED_STEPS
    assert stopped["ledger"]["balanced"], stopped["ledger"]
    assert stopped["ledger"]["stored"] == stopped["env_steps"]
    second = _second_attempt(plan, f"{plan.run_id}-b", STOPPED_STEPS)
    _check(begin(second).done(), reference(plan), stopped["env_steps"])


@pytest.mark.long
@pytest.mark.parametrize(("mode", "start"), [("single", 254), ("sync", -1)])
def test_a_space_with_an_offset_survives_a_death_and_a_resume(
    tmp_path: Path, begin: Begin, reference: References, mode: ModeName, start: int
) -> None:
    env = replace(CARTPOLE, id="tests.stand_ins.offset_envs:Offset", kwargs={"start": start}, max_episode_steps=500)
    plan = system_plan(tmp_path / "legs", mode, 1, TALLY, env, steps=STEPS // 2)
    run = begin(plan)
    run.wait_for_updates(5)
    run.kill("worker-0" if mode == "sync" else "learner-0")
    first = run.done()
    leg = _second_attempt(plan, f"{plan.run_id}-b")
    assert first["restarts"] == 1
    _check(begin(leg).done(), reference(leg), first["env_steps"])
    action = zmqrl.load_policy(plan.run_dir)(np.zeros(2, np.float32))
    assert int(action) - start in range(3)


@pytest.mark.parametrize(("kind", "full_mb"), [("tally", 8.0), long("tally", 0.0), long("dqn-prioritised", 8.0)])
def test_a_stop_in_a_round_that_does_not_come_together(
    tmp_path: Path, begin: Begin, reference: References, kind: str, full_mb: float
) -> None:
    """FULL is that of the last boundary, whatever the segments are that were taken since."""
    algorithm, env = KINDS[kind]
    limits = LimitsSection(heartbeat_s=0.2, grace_s=1.5)
    plan = system_plan(
        tmp_path / "legs", "sync", 2, algorithm, env, steps=STEPS, schedule_steps=STEPS, limits=limits,
        checkpoint_every_s=1000.0,
    )  # fmt: skip
    plan = replace(plan, config=replace(plan.config, store=replace(plan.config.store, sync_full_max_mb=full_mb)))
    store = Path(plan.store_path)
    run = begin(plan)
    run.wait_for_updates(9)
    os.kill(run.processes()["worker-1"].pid, signal.SIGSTOP)
    n = [-1, newest_n(store, "v")]

    def rests() -> bool:  # the other worker's part of the round has been taken
        n.append(newest_n(store, "v"))
        return len(n) > 100 and n[-100] == n[-1]

    run.wait_for(rests)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    assert newest_n(store, "full-") == n[-1]
    second = begin(_second_attempt(plan, f"{plan.run_id}-b")).done()
    assert {name: second[name] for name in SAME} == {name: reference(plan)[name] for name in SAME}
    assert second["ledger"]["balanced"]
    rows = env.num_envs * env.segment_steps * env.vector_envs
    assert second["ledger"]["stored"] <= STEPS - (n[-1] - 2) * rows * 0.8
