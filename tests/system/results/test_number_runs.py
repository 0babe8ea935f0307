"""Runs of envs that receive the numbers of each version: the same bits in every mode, after deaths and after a stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import zmqrl
from tests.support.marks import long
from tests.support.running import environment
from tests.support.runs.references import References
from tests.support.runs.system_plans import system_plan
from tests.support.runs.system_runs import SAME, PlanRun, assert_same, resumed
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection
from zmqrl.learning import Progress, value_at

Begin = Callable[[RunPlan], PlanRun]
HERE = "tests.stand_ins.progress_envs:"
ALGORITHM: Mapping[str, Any] = {"kind": "tests.stand_ins.tally:ScheduledTally", "round_s": 0.02}
STEPS = 6000
SCHEDULE = {"wind": ((0, 0.0), (STEPS, 0.9)), "gust": 0.25}
WINDY = EnvSection(f"{HERE}Windy", num_envs=2, vector_envs=4, segment_steps=8, max_episode_steps=30, schedule=SCHEDULE)
"""An episode crosses up to five versions."""
RESTORED = replace(WINDY, recovery="state")
AGENTS = replace(WINDY, id=f"{HERE}WindyWalkers", num_envs=3, kwargs={"length": 60}, max_episode_steps=40)


def plan_of(run_dir: Path, mode: Any, workers: int, env: EnvSection = WINDY, steps: int = STEPS) -> RunPlan:
    return system_plan(run_dir, mode, workers, ALGORITHM, env, steps=steps, schedule_steps=STEPS)


@pytest.mark.parametrize(
    "env", [long(WINDY, id="actions"), pytest.param(RESTORED, id="states"), long(AGENTS, id="agents")]
)
def test_the_same_bits_with_one_worker_and_with_two_that_die(
    tmp_path: Path, begin: Begin, reference: References, env: EnvSection
) -> None:
    one, two = (begin(plan_of(tmp_path / str(n), "sync", n, env)) for n in (1, 2))
    for version, victim in ((15, "worker-0"), (30, "learner-0"), (45, "worker-1")):
        two.wait_for_updates(version)
        before = two.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        two.wait_for_successor(victim, before)
    alone, killed = reference(one.plan), two.done()
    assert killed["restarts"] == 3
    assert_same(killed, alone)
    assert_same(one.done(), alone)


@pytest.mark.long
def test_a_schedule_changes_the_bits_and_a_third_worker_does_not(
    tmp_path: Path, begin: Begin, reference: References
) -> None:
    three = begin(plan_of(tmp_path / "three", "sync", 3))
    other = replace(WINDY, schedule={**SCHEDULE, "wind": ((0, 0.0), (STEPS, 0.8))})
    alone = reference(three.plan)
    assert reference(plan_of(tmp_path / "other", "single", 1, other))["weights_sha256"] != alone["weights_sha256"]
    assert_same(three.done(), alone)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "env"), [("single", WINDY), ("sync", WINDY), ("sync", RESTORED)])
def test_a_resume(tmp_path: Path, begin: Begin, reference: References, mode: str, env: EnvSection) -> None:
    straight = reference(plan_of(tmp_path / "straight", mode, 2, env))
    first = begin(plan_of(tmp_path / "cut", mode, 2, env, steps=STEPS // 2))
    before = first.done()["env_steps"]
    second = begin(resumed(first.plan, STEPS)).done()
    assert before + second["ledger"]["stored"] == second["env_steps"]
    assert {name: second[name] for name in SAME} == {name: straight[name] for name in SAME}


def trained(tmp_path: Path, mode: str, points: list[list[float]], episodes: int) -> dict[str, Any]:
    env = {"id": f"{HERE}Level", "max_episode_steps": 9, "num_envs": 8, "segment_steps": 32}
    zmqrl.train(
        "cartpole-ppo",
        run_dir=tmp_path / "run",
        mode=mode,
        workers=1,
        quiet=True,
        env={**env, "schedule": {"level": points}},
        evaluator={"episodes": episodes, "final_limit_s": 60},
        run={"total_env_steps": 4000, "stop_at_return": None},
    )
    summary: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_text())
    return summary


def test_in_async_the_numbers_of_newer_versions_arrive(tmp_path: Path) -> None:
    """The level is the reward of each of the two steps of an episode."""
    summary = trained(tmp_path, "async", [[0, 1.0], [1, 3.0]], episodes=0)
    assert summary["train_return_mean_100"] == 6.0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 3.0 in {row.get("level") for row in rows}


def test_scores_have_the_numbers_of_the_version_that_they_are_of(tmp_path: Path) -> None:
    points = [[0, 1.0], [8000, 9.0]]
    summary = trained(tmp_path, "single", points, episodes=2)
    level = tuple((int(step), value) for step, value in points)
    expected = 2 * value_at(level, Progress(1, summary["env_steps"], 0, 1))
    assert summary["eval_return_mean"] == pytest.approx(expected) and expected > 5.0
    scored = zmqrl.evaluate(zmqrl.load_policy(tmp_path / "run"), episodes=1).mean
    assert scored == pytest.approx(summary["eval_return_mean"], abs=0.2), "of the best version, which is a late one"
    command = [sys.executable, "-m", "zmqrl", "eval", str(tmp_path / "run"), "--episodes", "1", "--checkpoint", "last"]
    played = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert f"return {expected:.2f}" in played.stdout
