"""The learner dies after a FULL that is older than what the workers have filled since."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stand_ins import slow_store
from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import CARTPOLE, DQN, IDLE_DQN, PPO, SLOW_SEQUENCES, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import SAME, PlanRun
from zmqrl.broker.leases import least_slack
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, StoreSection
from zmqrl.data_stores import tensors
from zmqrl.learner.async_loop import PUBLISH_EVERY_UPDATES
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
SLOW = replace(CARTPOLE, id="tests.stand_ins.slow_envs:Slow", kwargs={"step_s": 0.0005}, max_episode_steps=50)


def _plan(
    run_dir: Path,
    mode: ModeName,
    algorithm: Mapping[str, Any],
    steps: int,
    every_s: float = 0.4,
    env: EnvSection = CARTPOLE,
) -> RunPlan:
    """FULL on the clock alone."""
    plan = system_plan(run_dir, mode, 2, algorithm, env, steps=steps, schedule_steps=steps, checkpoint_every_s=every_s)
    return replace(plan, config=replace(plan.config, store=StoreSection(sync_full_max_mb=0.0)))


def _versions(run: PlanRun, kind: str) -> list[tuple[int, int]]:
    names = [path.name for path in Path(run.plan.store_path).glob(f"{kind}[0-9]*-*.safetensors")]
    parts = [name.removeprefix(kind).removesuffix(".safetensors").split("-") for name in names]
    return [(int(incarnation), int(n)) for incarnation, n in parts]


def _kill_beyond_full(run: PlanRun, incarnation: int, rounds: int) -> int:
    """Once the learner of that incarnation has written FULL and published `rounds` versions after it.

    Returns the updates between the last FULL and the last version.
    """

    def is_beyond() -> bool:
        fulls = [n for i, n in _versions(run, "full-") if i == incarnation]
        newest = [n for i, n in _versions(run, "v") if i == incarnation]
        return bool(fulls and newest) and max(newest) >= max(fulls) + rounds

    run.wait_for(is_beyond)
    before = run.processes()["learner-0"]
    run.kill("learner-0")
    run.wait_for_successor("learner-0", before)
    full, newest = (max(v for v in _versions(run, kind) if v[0] == incarnation) for kind in ("full-", "v"))
    counters = json.loads(_metadata(run, "full-", full)["full"])["counters"]
    return int(_metadata(run, "v", newest)["updates"]) - int(counters["updates"])


def _metadata(run: PlanRun, kind: str, version: tuple[int, int]) -> dict[str, str]:
    name = f"{kind}{version[0]}-{version[1]}.safetensors"
    return tensors.parse((Path(run.plan.store_path) / name).read_bytes())[1]


def _check_ledger(summary: dict[str, Any]) -> None:
    ledger = summary["ledger"]
    assert ledger["balanced"], ledger
    assert ledger["stored"] == summary["env_steps"]


@pytest.mark.parametrize("algorithm", [long(SLOW_SEQUENCES, id="replay"), pytest.param(SLOW_TALLY, id="on-policy")])
def test_sync_rolls_back_and_reaches_the_same_bits(
    tmp_path: Path, begin: Begin, reference: References, algorithm: Mapping[str, Any]
) -> None:
    run = begin(_plan(tmp_path / "killed", "sync", algorithm, 14_000))
    _kill_beyond_full(run, 0, rounds=3)
    _kill_beyond_full(run, 1, rounds=3)
    summary, straight = run.done(), reference(run.plan)
    _check_ledger(summary)
    assert {n: summary[n] for n in SAME} == {n: straight[n] for n in SAME}
    assert summary["restarts"] == 2
    assert summary["ledger"]["dropped"]["rolled_back"] > 0


@pytest.mark.long
def test_sync_before_the_first_full(tmp_path: Path, begin: Begin, reference: References) -> None:
    run = begin(_plan(tmp_path / "killed", "sync", SLOW_SEQUENCES, 4_000, every_s=1000.0))
    run.wait_for_updates(5)
    run.kill("learner-0")
    summary, straight = run.done(), reference(run.plan)
    _check_ledger(summary)
    assert {n: summary[n] for n in SAME} == {n: straight[n] for n in SAME}


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [pytest.param(DQN, id="dqn"), pytest.param(PPO, id="ppo")])
def test_async_continues_and_counts_its_losses(tmp_path: Path, begin: Begin, algorithm: Mapping[str, Any]) -> None:
    run = begin(_plan(tmp_path / "run", "async", algorithm, 12_000, every_s=0.4, env=SLOW))
    seen = sum(_kill_beyond_full(run, incarnation, rounds=4) for incarnation in (0, 1))
    summary = run.done()
    _check_ledger(summary)
    assert summary["restarts"] == 2
    assert summary["ledger"]["dropped"]["rolled_back"] == 0
    assert seen > 0
    assert seen <= summary["updates_lost"] <= seen + 2 * PUBLISH_EVERY_UPDATES  # done and not published, of each
    if algorithm is DQN:
        replay = run.plan.config.replay
        expected = replay.ratio * (summary["env_steps"] - replay.learning_starts)
        counted = summary["updates"] + summary["updates_lost"]
        rows = CARTPOLE.num_envs * CARTPOLE.segment_steps
        slack = least_slack(2, run.plan.config.limits.leases_per_worker, rows, replay.ratio)
        away = 2 * (replay.ratio * slack + PUBLISH_EVERY_UPDATES)  # fell due while nobody was there, at most
        assert expected - away - PUBLISH_EVERY_UPDATES <= counted <= expected + PUBLISH_EVERY_UPDATES
    assert json.loads((run.run_dir / "summary.json").read_text())["status"] == "done"


def test_a_successor_writes_a_full_at_once(tmp_path: Path, begin: Begin) -> None:
    """What it began with may be the only one, or there may be none."""
    run = begin(_plan(tmp_path / "run", "async", IDLE_DQN, 10_000_000, every_s=1000.0))
    run.wait_for_updates(5)
    run.kill("learner-0")
    run.wait_for(lambda: max(_versions(run, "full-")) >= (1, 1))
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130


def test_sync_survives_a_kill_between_releasing_slots_and_announcing(
    tmp_path: Path, begin: Begin, reference: References
) -> None:
    """In the round after a FULL, when replay has let go of segments that FULL names."""
    plan = _plan(tmp_path / "killed", "sync", SLOW_SEQUENCES, 8_000)
    run = begin(
        replace(
            plan,
            config=replace(
                plan.config, store=replace(plan.config.store, kind="tests.stand_ins.slow_store:SlowVersions")
            ),
        )
    )
    run.wait_for(Path(plan.store_path).with_name(slow_store.WINDOW).exists)
    run.kill("learner-0")
    summary, straight = run.done(), reference(run.plan)
    _check_ledger(summary)
    assert {n: summary[n] for n in SAME} == {n: straight[n] for n in SAME}
    assert summary["restarts"] == 1
