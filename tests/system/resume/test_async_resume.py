"""An async run that is resumed goes on: counters, schedules, optimiser, ledger, and replay when asked."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import CARTPOLE, DQN, IDLE_DQN, PPO, PRIORITISED, system_plan
from tests.support.runs.system_runs import PlanRun, limit_files, newest_n
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import StoreSection
from zmqrl.data_stores.base import Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.metrics.jsonl import read_metrics
from zmqrl.metrics.plot import RETURN
from zmqrl.supervision.process_table import await_gone

Begin = Callable[[RunPlan], PlanRun]
ENDLESS = 10_000_000
SCHEDULE_STEPS = 6_000
MORE_STEPS = 1_500
IDLE_PRIORITISED = {**PRIORITISED, "kind": IDLE_DQN["kind"]}
"""What the learner itself saves is in `test_resume`."""


def _plan(run_dir: Path, algorithm: Mapping[str, Any], checkpoint_every_s: float) -> RunPlan:
    """A first leg: it ends when it is told to."""
    return system_plan(
        run_dir,
        "async",
        2,
        algorithm,
        CARTPOLE,
        steps=ENDLESS,
        schedule_steps=SCHEDULE_STEPS,
        checkpoint_every_s=checkpoint_every_s,
    )


def _with_replay(plan: RunPlan) -> RunPlan:
    return replace(plan, config=replace(plan.config, store=StoreSection(async_replay=True)))


def _full(plan: RunPlan) -> Full:
    full = DirectoryStore(plan.store_path, 8).newest_full()
    assert full is not None
    return full


def _second_attempt(plan: RunPlan, steps: int = ENDLESS) -> RunPlan:
    config = replace(plan.config, run=replace(plan.config.run, total_env_steps=steps))
    lineage = replace(plan.lineage, attempt=plan.lineage.attempt + 1)
    run_id, now = f"{plan.run_id}-b", time.time()
    return replace(plan, run_id=run_id, resume=True, started_at=now, config=config, lineage=lineage)


def _counters(full: Full) -> dict[str, Any]:
    counters: Any = full.meta["counters"]
    return dict(counters)


@pytest.mark.parametrize("algorithm", [pytest.param(IDLE_PRIORITISED, id="dqn"), long(PPO, id="ppo")])
def test_two_attempts_count_as_one_run(tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any]) -> None:
    plan = _with_replay(_plan(tmp_path / "run", algorithm, 0.3))
    run = begin(plan)
    run.wait_for_updates(20)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    first, full = run.summary(), _full(plan)
    steps = max(SCHEDULE_STEPS, first["env_steps"] + MORE_STEPS)
    second = begin(_second_attempt(plan, steps)).done()
    assert second["ledger"]["balanced"], second["ledger"]
    assert second["env_steps"] == first["env_steps"] + second["ledger"]["stored"]
    assert second["episodes"] > first["episodes"]
    last = _full(plan)
    assert _counters(last)["updates"] == second["updates"] > _counters(full)["updates"] == first["updates"]
    assert _counters(last)["schedule_env_steps"] == SCHEDULE_STEPS
    assert second["updates_lost"] == 0
    told = list(read_metrics(run.run_dir / "metrics.jsonl"))
    assert {row["attempt"] for row in told} == {1, 2}
    means = [(row[RETURN], row.get("train_length_mean_100")) for row in told if RETURN in row]
    assert means and all(mean == length for mean, length in means), "a CartPole gives 1 each step"
    if algorithm is IDLE_PRIORITISED:
        section = plan.config.replay
        assert second["updates"] == pytest.approx(
            section.ratio * (second["env_steps"] - section.learning_starts), rel=0.1
        )
        assert len(full.arrays["held_metas"]) == section.capacity // (CARTPOLE.num_envs * CARTPOLE.segment_steps) + 1


def test_a_run_long_past_its_full_continues_with_an_empty_replay(tmp_path: Path, begin: Begin) -> None:
    """The updates that its last FULL did not see are lost: waiting for them, nobody would fill the replay."""
    plan = _plan(tmp_path / "run", DQN, 1.0)
    run = begin(plan)
    folder = Path(plan.store_path)
    run.wait_for(lambda: list(folder.glob("full-0-*.safetensors")))
    learner = run.processes()["learner-0"]
    limit_files(learner, _between(folder))  # no FULL from here on, but versions
    then = _counters(_full(plan))
    run.wait_for(
        lambda: json.loads((run.run_dir / "status.json").read_text())["env_steps"] >= then["env_steps"] + 2_000
    )
    os.kill(run.processes()["agent-0"].pid, signal.SIGKILL)
    assert run.end()[0] == 4
    steps = run.summary()["env_steps"]
    second = begin(_second_attempt(plan, steps + MORE_STEPS)).done()
    assert second["ledger"]["balanced"] and second["env_steps"] >= steps + MORE_STEPS
    assert second["updates"] > then["updates"]


@pytest.mark.long
def test_a_resumed_attempt_continues_from_an_older_full_than_its_first(tmp_path: Path, begin: Begin) -> None:
    """The env steps before a leg are those that the broker was told, whatever FULL its second learner has."""
    plan = _plan(tmp_path / "run", IDLE_DQN, 2.0)
    run = begin(plan)
    folder = Path(plan.store_path)
    run.wait_for(lambda: len(list(folder.glob("full-0-*.safetensors"))) >= 2)
    os.kill(run.processes()["agent-0"].pid, signal.SIGKILL)
    assert run.end()[0] == 1
    (tmp_path / "run" / "summary.json").unlink()  # as after the death of the launcher
    begun = newest_n(folder, "full-0-")
    again = begin(_second_attempt(plan))
    again.wait_for(lambda: newest_n(folder, "v1-") > begun)  # beyond the version that it began with
    learner = again.processes()["learner-0"]
    os.kill(learner.pid, signal.SIGSTOP)
    newest = max(folder.glob("full-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"cut")
    os.kill(learner.pid, signal.SIGKILL)
    again.wait_for(lambda: list(folder.glob("full-2-*.safetensors")))
    again.process.send_signal(signal.SIGTERM)
    assert again.end()[0] == 130
    assert again.summary()["ledger"]["balanced"]


def _between(folder: Path) -> int:
    """Bytes that a version has room in and a FULL has not."""
    sizes = [max(path.stat().st_size for path in folder.glob(f"{kind}*-*.safetensors")) for kind in ("v", "full-")]
    assert sizes[0] < sizes[1]
    return sum(sizes) // 2


def test_a_killed_run_has_its_replay_from_a_background_full(tmp_path: Path, begin: Begin) -> None:
    plan = _with_replay(_plan(tmp_path / "run", IDLE_PRIORITISED, 0.3))
    run = begin(plan)
    folder = Path(plan.store_path)
    run.wait_for(lambda: len(list(folder.glob("full-0-*.safetensors"))) >= 2)
    agent = run.processes()["agent-0"]
    run.process.kill()
    run.process.communicate()
    assert not await_gone([agent], WAIT_S)
    full = _full(plan)
    held = len(full.arrays["held_metas"])
    assert held > 5
    assert len(full.arrays["sampler/replay.mass"]) == held
    resumed = begin(_second_attempt(plan))
    resumed.wait_for_updates(_counters(full)["n"] + 3)
    after = _full(plan)
    resumed.process.send_signal(signal.SIGTERM)
    assert resumed.end()[0] == 130
    assert resumed.summary()["ledger"]["balanced"]
    kept = {tuple(row) for row in full.arrays["held_metas"].tolist()}
    assert kept & {tuple(row) for row in after.arrays["held_metas"].tolist()}, "nothing of the replay before"
