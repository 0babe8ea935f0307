"""A recorded run equals the ledger, whatever was killed, and its data set is that of an undisturbed run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import CARTPOLE, DQN, PPO, SLOW_SEQUENCES, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same, newest_n
from tests.support.waiting import WAIT_S
from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, StoreSection
from zmqrl.data_sets.episodes import frame_dtype
from zmqrl.learner.recording import SEGMENTS
from zmqrl.supervision.process_table import await_gone
from zmqrl.types import Array, ModeName

Begin = Callable[[RunPlan], PlanRun]
HELD: Mapping[str, Any] = {"kind": "tests.stand_ins.held_tally:HeldTally", "minibatch_size": 64, "round_s": 0.02}
VICTIMS = ("learner-0", "worker-0", "broker-0", "worker-1", "launcher")
"""Killed in turn. The run is resumed after the launcher's death."""
MOST_UNUSED = 12
"""Segments of the end of an attempt that no learner takes: slots of the arena without replay."""
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


def _data(plan: RunPlan) -> h5py.File:
    return h5py.File(Path(plan.run_dir, "recording", "data", "main_data.hdf5"))


def _steps(plan: RunPlan) -> int:
    with _data(plan) as file:
        return sum(int(group.attrs["total_steps"]) for group in file.values())


def _survived(begin: Begin, plan: RunPlan, kills: int) -> dict[str, Any]:
    """The summary of the last attempt of a run with so many kills, four versions or more apart."""
    config = replace(plan.config, restart=replace(plan.config.restart, max=2 * kills))
    run = begin(replace(plan, config=config))
    for number in range(kills):
        run.wait_for_updates(newest_n(Path(plan.store_path)) + 4)
        victim = VICTIMS[number % len(VICTIMS)]
        if victim != "launcher":
            run.kill(victim)
            continue
        run.wait_for(lambda: newest_n(Path(plan.store_path), "full-") > 0)  # a resume continues from there
        _kill_launcher(run)
        run = begin(replace(run.plan, run_id=f"{plan.run_id}-{number}", resume=True, started_at=time.time()))
    return run.done()


def _kill_launcher(run: PlanRun) -> None:
    others = list(run.processes().values())
    run.process.kill()
    run.process.communicate()
    assert not await_gone(others, WAIT_S)


def _launchers(kills: int) -> int:
    """Attempts that ended with the launcher's death."""
    return kills // len(VICTIMS)


def _resumed_at(summary: Mapping[str, Any]) -> int:
    """Env steps of the attempts before: the ledger is of one attempt."""
    return 0 if summary["resumed_from"] is None else int(summary["resumed_from"]["env_steps"])


def _of_last_attempt(frames: Array) -> int:
    """Rows that the last attempt of an async run recorded: its incarnations have numbers of their own."""
    attempts = frames["id"][:, 1] >> RESUMED_SHIFT
    return int(frames["rows"][attempts == attempts[-1]].sum())


@pytest.mark.parametrize(
    ("algorithm", "kills"), [(SLOW_TALLY, 2), long(SLOW_SEQUENCES, 4, id="replay"), long(SLOW_TALLY, 20, id="20 kills")]
)
def test_sync_records_what_an_undisturbed_run_records(
    tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any], kills: int
) -> None:
    plan = _plan(tmp_path / "killed", "sync", algorithm, 7_000 * kills)
    summary = _survived(begin, plan, kills)
    alone = _plan(tmp_path / "alone", "sync" if _launchers(kills) else "single", algorithm, 7_000 * kills)
    assert_same(summary, begin(alone).done())
    own, other = _frames(plan), _frames(alone)
    assert int(own["rows"].sum()) == _steps(plan) == summary["env_steps"]
    assert summary["ledger"]["stored"] == summary["env_steps"] - _resumed_at(summary)
    assert (_resumed_at(summary) > 0) == bool(_launchers(kills))
    for name in frame_dtype(plan.columns).names or ():
        if name != "id":
            assert np.array_equal(own[name], other[name]), name
    assert np.array_equal(own["id"][:, ::2], other["id"][:, ::2])  # the incarnations count the deaths
    _assert_same_data(plan, alone)


def _assert_same_data(plan: RunPlan, other: RunPlan) -> None:
    with _data(plan) as own, _data(other) as expected:
        assert list(own) == list(expected)
        for name, episode in own.items():
            assert dict(episode.attrs) == dict(expected[name].attrs)
            for column in ("observations", "actions", "rewards", "terminations", "truncations"):
                assert np.array_equal(episode[column], expected[name][column]), (name, column)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "kills"),
    [(DQN, 2), long(HELD, 2, id="held"), long(PPO, 20, id="ppo"), long(DQN, 20, id="dqn_20")],
)
def test_async_records_each_segment_once(
    tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any], kills: int
) -> None:
    plan = _plan(tmp_path / "run", "async", algorithm, 6_000 * kills, SLOW)
    summary = _survived(begin, plan, kills)
    frames = _frames(plan)
    rows, stored = int(frames["rows"].sum()), summary["ledger"]["stored"]
    unused = MOST_UNUSED * CARTPOLE.num_envs * CARTPOLE.segment_steps
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert rows == _steps(plan)
    # Of each attempt the last ones, which no learner took, are in the ledger alone.
    assert stored - unused <= _of_last_attempt(frames) <= stored
    assert summary["env_steps"] - unused * (1 + _launchers(kills)) <= rows <= summary["env_steps"]
    for vector_env in range(2):
        ids = frames["id"][frames["id"][:, 0] == vector_env].tolist()
        for before, after in itertools.pairwise(ids):
            follows = after[2] == before[2] + 1 if after[1] == before[1] else after[1] > before[1]
            assert follows, (before, after)
