"""A recorded run equals the ledger, whatever was killed, and its data set is that of an undisturbed run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import CARTPOLE, DQN, PPO, SLOW_SEQUENCES, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same, newest_n
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, StoreSection
from zmqrl.data_sets.episodes import frame_dtype
from zmqrl.learner.recording import SEGMENTS
from zmqrl.types import Array, ModeName

Begin = Callable[[RunPlan], PlanRun]
HELD: Mapping[str, Any] = {"kind": "tests.stand_ins.held_tally:HeldTally", "minibatch_size": 64, "round_s": 0.02}
SLOW = replace(CARTPOLE, id="tests.stand_ins.slow_envs:Slow", kwargs={"step_s": 0.0005}, max_episode_steps=50)


def _plan(
    run_dir: Path, mode: ModeName, algorithm: Mapping[str, Any], steps: int, env: EnvSection = CARTPOLE
) -> RunPlan:
    """Its full checkpoints are older than what was recorded."""
    plan = system_plan(
        run_dir, mode, 2, algorithm, env, steps=steps, schedule_steps=steps, record="recording", checkpoint_every_s=0.4
    )
    return replace(plan, config=replace(plan.config, store=StoreSection(sync_full_max_mb=0.0)))


def _frames(plan: RunPlan) -> Array:
    found: Array = np.fromfile(Path(plan.run_dir, "recording", SEGMENTS), frame_dtype(plan.columns))
    return found


def _steps(plan: RunPlan) -> int:
    with h5py.File(Path(plan.run_dir, "recording", "data", "main_data.hdf5")) as file:
        return sum(int(group.attrs["total_steps"]) for group in file.values())


def _kill(run: PlanRun, place: str, rounds: int) -> None:
    run.wait_for_updates(newest_n(Path(run.plan.store_path)) + rounds)
    run.kill(place)


@pytest.mark.parametrize(
    ("algorithm", "kills"), [(SLOW_TALLY, 2), long(SLOW_SEQUENCES, 4, id="replay"), long(SLOW_TALLY, 20, id="20 kills")]
)
def test_sync_records_what_an_undisturbed_run_records(
    tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any], kills: int
) -> None:
    plan = _plan(tmp_path / "killed", "sync", algorithm, 7_000 * kills)
    config = replace(plan.config, restart=replace(plan.config.restart, max=2 * kills))
    run = begin(replace(plan, config=config))
    for number in range(kills):
        _kill(run, ("learner-0", "worker-0")[number % 2], rounds=4)
    summary, alone = run.done(), _plan(tmp_path / "alone", "single", algorithm, 7_000 * kills)
    assert_same(summary, begin(alone).done())
    own, other = _frames(plan), _frames(alone)
    assert int(own["rows"].sum()) == _steps(plan) == summary["env_steps"] == summary["ledger"]["stored"]
    for name in frame_dtype(plan.columns).names or ():
        if name != "id":
            assert np.array_equal(own[name], other[name]), name
    assert np.array_equal(own["id"][:, ::2], other["id"][:, ::2])  # the incarnations count the deaths


@pytest.mark.parametrize(("algorithm", "kills"), [(DQN, 2), pytest.param(HELD, 2, id="held"), long(PPO, 20, id="ppo")])
def test_async_records_each_segment_once(
    tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any], kills: int
) -> None:
    plan = _plan(tmp_path / "run", "async", algorithm, 6_000 * kills, SLOW)
    config = replace(plan.config, restart=replace(plan.config.restart, max=2 * kills))
    run = begin(replace(plan, config=config))
    for number in range(kills):
        _kill(run, ("learner-0", "worker-0")[number % 2], rounds=4)
    summary, frames = run.done(), _frames(plan)
    rows = int(frames["rows"].sum())
    segment = CARTPOLE.num_envs * CARTPOLE.segment_steps
    assert rows == _steps(plan)
    assert summary["env_steps"] - 8 * segment <= rows <= summary["env_steps"]  # the last ones, which no learner took
    for vector_env in range(2):
        ids = frames["id"][frames["id"][:, 0] == vector_env].tolist()
        for before, after in itertools.pairwise(ids):
            follows = after[2] == before[2] + 1 if after[1] == before[1] else after[1] > before[1]
            assert follows, (before, after)
