"""async: the rate limiter holds the replay ratio, whichever side is the slow one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import CARTPOLE, DQN, IDLE_DQN, REPLAY, system_plan
from tests.support.runs.system_runs import PlanRun
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection

SLOW = "tests.stand_ins.slow_envs:Slow"
SLOW_WORKERS = (
    IDLE_DQN,
    EnvSection(id=SLOW, num_envs=2, segment_steps=16, kwargs={"step_s": 0.0005}),
)
SLOW_LEARNER = ({**DQN, "batch_size": 2000}, EnvSection(num_envs=CARTPOLE.num_envs, segment_steps=16))


@pytest.mark.parametrize(
    ("algorithm", "env"), [pytest.param(*SLOW_WORKERS, id="workers"), long(*SLOW_LEARNER, id="learner")]
)
def test_ratio_is_held_when_one_side_is_slow(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], algorithm: Mapping[str, Any], env: EnvSection
) -> None:
    summary = begin(system_plan(tmp_path / "run", "async", 2, algorithm, env, steps=6000)).done()
    assert summary["replay_ratio"] == pytest.approx(0.1, rel=0.1)
    assert summary["updates"] > 400
    produced_after_start = summary["ledger"]["stored"] - 500
    assert summary["updates"] / produced_after_start == pytest.approx(0.1, rel=0.1), "workers ran ahead"
    assert summary["ledger"]["balanced"], summary["ledger"]


@pytest.mark.long
def test_a_small_ratio_lets_both_sides_continue(tmp_path: Path, begin: Callable[[RunPlan], PlanRun]) -> None:
    """An update falls due every 50 env steps, and two leases are 64."""
    env = EnvSection(num_envs=2, vector_envs=4, segment_steps=16)
    plan = system_plan(tmp_path / "run", "async", 1, IDLE_DQN, env, steps=4000, max_wall_s=30.0)
    run = begin(replace(plan, config=replace(plan.config, replay=replace(REPLAY, ratio=0.02))))
    summary = run.done()
    assert summary["env_steps"] >= 4000
    assert summary["updates"] == pytest.approx(0.02 * (summary["env_steps"] - 500), abs=2)


@pytest.mark.timed
def test_env_steps_are_reported_before_learning_starts(tmp_path: Path, begin: Callable[[RunPlan], PlanRun]) -> None:
    env = EnvSection(id=SLOW, num_envs=2, vector_envs=4, segment_steps=8, kwargs={"step_s": 0.02})
    run = begin(system_plan(tmp_path / "run", "async", 2, IDLE_DQN, env, steps=550))
    run.done()
    told = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    warm_up = [row for row in told if row.get("updates") == 0 and 0 < row["env_steps"] < 500]
    assert len(warm_up) >= 2
    assert all("wait_fraction" not in row for row in warm_up), "not known before the second version"
    assert all(row["env_steps_per_s"] > 0 for row in warm_up[1:])
