"""`run.max_wall_s` ends also a run that makes no progress, in every mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.system_plans import CARTPOLE, DQN, PPO, system_plan
from tests.system.system_runs import PlanRun
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, LimitsSection
from zmqrl.types import Mode

pytestmark = pytest.mark.timed

Begin = Callable[[RunPlan], PlanRun]
WALL_S, GRACE_S, TEARDOWN_S = 5.0, 2.0, 2.0
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=GRACE_S)
SLOW = EnvSection(
    id="tests.system.slow_envs:Slow",
    max_episode_steps=500,
    num_envs=2,
    vector_envs=4,
    segment_steps=32,
    kwargs={"step_s": 0.2},
)
LONG = 10_000_000
KINDS: Mapping[str, tuple[Mode, Mapping[str, Any]]] = {
    "single-ppo": ("single", PPO),
    "single-dqn": ("single", DQN),
    "sync-ppo": ("sync", PPO),
    "async-ppo": ("async", {**PPO, "clip_schedule": "constant", "batch_segments": 4}),
    "async-dqn": ("async", DQN),
}


def _begin(begin: Begin, run_dir: Path, kind: str, env: EnvSection = CARTPOLE) -> PlanRun:
    mode, algorithm = KINDS[kind]
    return begin(system_plan(run_dir, mode, 1, algorithm, env, steps=LONG, limits=LIMITS, max_wall_s=WALL_S))


def _done_within(run: PlanRun, limit_s: float) -> dict[str, Any]:
    summary = run.done()
    assert (summary["status"], summary["exit_code"], summary["error"]) == ("done", 0, None)
    assert WALL_S <= summary["wall_s"] <= limit_s
    assert summary["ledger"] is None or summary["ledger"]["balanced"], summary["ledger"]
    return summary


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_that_takes_longer_than_the_limit(tmp_path: Path, begin: Begin, kind: str) -> None:
    """Of 13 s; the learner waits for it, or collects it itself."""
    summary = _done_within(_begin(begin, tmp_path / "run", kind, SLOW), WALL_S + 1.0 + TEARDOWN_S)
    assert summary["weights_sha256"] is not None, "the learner ended by itself"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "single" not in kind])
def test_a_worker_that_was_stopped(tmp_path: Path, begin: Begin, kind: str) -> None:
    run = _begin(begin, tmp_path / "run", kind)
    run.wait_for_updates(1)
    os.kill(run.processes()["worker-0"].pid, signal.SIGSTOP)
    summary = _done_within(run, WALL_S + 1.0 + GRACE_S + TEARDOWN_S)
    assert summary["weights_sha256"] is not None, "the learner ended by itself"


@pytest.mark.parametrize("kind", ["single-ppo", "sync-ppo", "async-dqn"])
def test_a_learner_that_was_stopped(tmp_path: Path, begin: Begin, kind: str) -> None:
    """The launcher ends the run, `limits.grace_s` later; so long its agent waits for the learner."""
    run = _begin(begin, tmp_path / "run", kind)
    run.wait_for_updates(1)
    os.kill(run.processes()["learner-0"].pid, signal.SIGSTOP)
    _done_within(run, WALL_S + 2 * GRACE_S + 1.0 + TEARDOWN_S)
