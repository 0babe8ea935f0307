"""Whole runs of envs with several agents under one policy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.envs.agent_envs import AGENTS, Seesaw
from tests.support.runs.references import References
from tests.support.runs.system_plans import SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same
from tests.support.waiting import WAIT_S
from zmqrl import load_policy, train
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection

WALKERS = EnvSection("tests.envs.agent_envs:Walkers", 6, 4, 32, {"length": 40}, max_episode_steps=60)


def test_the_same_bits_in_single_and_in_sync_with_a_killed_worker(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], reference: References
) -> None:
    """A successor repeats the joint actions, also where some agents have ended."""
    run = begin(system_plan(tmp_path / "run", "sync", 2, SLOW_TALLY, WALKERS, steps=9000, schedule_steps=9000))
    run.wait_for_updates(3)
    run.kill("worker-0")
    summary = run.done()
    assert summary["restarts"] == 1
    assert_same(summary, reference(run.plan))


@pytest.mark.long
def test_one_policy_learns_what_each_agent_has_to_do(tmp_path: Path) -> None:
    """Each is rewarded for another action: 8 of 8 steps; a policy that ignores who acts has 2.7."""
    summary = train(
        "cartpole-ppo",
        run_dir=tmp_path / "run",
        mode="single",
        env={"id": "tests.envs.agent_envs:Seesaw", "num_envs": 6, "vector_envs": 2, "segment_steps": 32},
        env__max_episode_steps=8,
        run__total_env_steps=12_000,
        run__stop_at_return=None,
        evaluator__episodes=0,
    )
    assert summary.ledger["balanced"]
    policy = load_policy(tmp_path / "run")
    obs = Seesaw().reset(seed=1)[0]
    assert [int(policy(obs[agent])) for agent in AGENTS] == [0, 2, 1]
    assert policy(np.stack([obs[agent] for agent in AGENTS])).tolist() == [0, 2, 1]
    command = [sys.executable, "-m", "zmqrl", "eval", tmp_path / "run", "--episodes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0 and "8" in done.stdout, done.stdout + done.stderr


pytestmark = pytest.mark.whole
