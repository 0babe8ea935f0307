"""`env.report`: a run has the numbers of its episodes once each, in every mode, also when processes die."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.envs.report_envs import REPORT
from tests.support.runs.system_plans import system_plan
from tests.support.runs.system_runs import PlanRun, resumed
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection
from zmqrl.data_stores.make import make_store
from zmqrl.evaluator.evaluation import EVALUATION
from zmqrl.metrics.attempts import current_metrics
from zmqrl.random_streams import episode_seed

Begin = Callable[[RunPlan], PlanRun]
STEPS = 512
"""Fewer than 100 episodes: the last row has the mean over all of them."""
ALGORITHM: Mapping[str, Any] = {"kind": "tests.stand_ins.tally:Tally", "round_s": 0.1}
SCORES = EvaluatorSection(episodes=5, best_by="cost")


def plan_of(run_dir: Path, mode: Any, workers: int, steps: int = STEPS, **more: Any) -> RunPlan:
    log = run_dir.with_name("episodes")
    log.mkdir(exist_ok=True)
    room = EnvSection(
        "tests.envs.report_envs:Room",
        num_envs=2,
        vector_envs=4,
        segment_steps=8,
        max_episode_steps=20,
        kwargs={"log": str(log)},
        report=REPORT,  # type: ignore[arg-type]
    )
    return system_plan(
        run_dir, mode, workers, ALGORITHM, room, steps=steps, schedule_steps=STEPS, episodes_csv=True, **more
    )


def counted(plan: RunPlan, slots: list[tuple[int, int]], episodes: int) -> dict[str, float]:
    """Means over the first episodes of each slot, by the envs' own count."""
    found, log, seed = [], Path(plan.config.env.kwargs["log"]), plan.config.run.seed
    for vector_env, slot in slots:
        for episode in range(episodes):
            file = log / str(episode_seed(seed, vector_env, slot, episode))
            found += [list(map(float, file.read_text().split()))] if file.is_file() else []
    assert len(found) >= 5
    return dict(zip(REPORT, np.mean(found, axis=0).tolist(), strict=True))


def ended(plan: RunPlan) -> list[tuple[str, ...]]:
    """What `episodes.csv` has of each episode."""
    with Path(plan.run_dir, "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [tuple(row[name] for name in ("env_steps", "vector_env", "env", "return", "length")) for row in rows]


def length_of(plan: RunPlan, vector_env: int, slot: int, episode: int) -> int:
    drawn = np.random.default_rng(episode_seed(plan.config.run.seed, vector_env, slot, episode))
    return int(drawn.integers(3, 13))


def reported(plan: RunPlan) -> dict[str, float]:
    """What the last row of the learner has."""
    rows = [row for row in current_metrics(Path(plan.run_dir, "metrics.jsonl")) if "report/comfort" in row]
    return {name: rows[-1][f"report/{name}"] for name in REPORT}


def test_a_run_whose_worker_dies_has_the_numbers_that_the_envs_count(tmp_path: Path, begin: Begin) -> None:
    run = begin(plan := plan_of(tmp_path / "two", "sync", 2, evaluator=SCORES))
    run.wait_for_updates(2)
    before = run.processes()["worker-1"]
    os.kill(before.pid, signal.SIGKILL)
    summary = run.done()
    assert summary["restarts"] == 1 and summary["env_steps"] >= STEPS and summary["episodes"] < 100
    slots = [(vector_env, slot) for vector_env in range(4) for slot in range(2)]
    assert reported(plan) == pytest.approx(counted(plan, slots, 100))
    rows = ended(plan)
    assert len(rows) == summary["episodes"] and max(int(row[0]) for row in rows) <= summary["env_steps"]
    lengths = [[int(float(row[4])) for row in rows if row[1:3] == (str(v), str(env))] for v, env in slots]
    assert lengths == [
        [length_of(plan, *slot, episode) for episode in range(len(of))] for slot, of in zip(slots, lengths, strict=True)
    ]

    played = counted(plan, [(EVALUATION, slot) for slot in range(5)], 1)
    rows = [row for row in current_metrics(Path(plan.run_dir, "metrics.jsonl")) if "eval_report/cost" in row]
    assert rows and summary["eval_reports"]["comfort"] == rows[0]["eval_report/comfort"]
    assert rows[0]["eval_report/comfort"] == pytest.approx(played["comfort"])
    best = make_store(plan).best()
    assert best is not None and best[2] == max(row["eval_report/cost"] for row in rows)


@pytest.mark.long
def test_the_same_numbers_in_each_mode_and_after_a_resume(tmp_path: Path, begin: Begin) -> None:
    one, two = (begin(plan_of(tmp_path / str(n), "sync", n)) for n in (1, 2))
    two.wait_for_updates(3)
    before = two.processes()["learner-0"]
    os.kill(before.pid, signal.SIGKILL)
    two.wait_for_successor("learner-0", before)
    alone = begin(plan_of(tmp_path / "alone", "single", 1))
    cut = begin(plan_of(tmp_path / "cut", "sync", 2, steps=STEPS // 2))
    for run in (one, two, alone, cut):
        run.done()
    begin(again := resumed(cut.plan, STEPS)).done()
    slots = [(vector_env, slot) for vector_env in range(4) for slot in range(2)]
    assert reported(alone.plan) == pytest.approx(counted(alone.plan, slots, 100))
    assert reported(alone.plan) == reported(one.plan) == reported(two.plan) == reported(again)
    assert ended(alone.plan) == ended(one.plan) == ended(two.plan) == ended(again)
