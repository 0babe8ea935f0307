"""What a learner of an off-policy async run that goes on does not make up for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest

from tests.data_stores.memory_store import MemoryStore
from tests.support.raising import raises
from zmqrl.algorithms.base import Algorithm, LearnerContext, OnPolicyLearner
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource, StreamPosition, TakenSegment
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import (
    Config,
    EnvSection,
    HostSection,
    LearnerSection,
    NetworkSection,
    ReplaySection,
    RunSection,
)
from zmqrl.data_stores.base import DataStore, Full, prefixed
from zmqrl.errors import ConfigError
from zmqrl.learner.counters import Counters
from zmqrl.learner.full_content import metas_array, stored_counters
from zmqrl.learner.process import _report_start
from zmqrl.learner.restore import StartState, load_start_state
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport
from zmqrl.planning.plan_run import plan_run
from zmqrl.shared_memory.arena import LearnerRecord
from zmqrl.testing.experience import published, version_0
from zmqrl.types import Array, ModeName, SegmentId, SegmentMeta, SlotRef, Version

BEFORE, RATIO = 100_000, 0.5


LEFT = LearnerRecord(Version(1, 5), 0, 0)


def _stream(stored: int | None, left: LearnerRecord = LEFT, base: int = BEFORE) -> LearnerEnds:
    """What the arena knows of a leg in which `stored` rows came; None: it is new."""
    stream = create_autospec(SegmentSource, instance=True)
    channel = create_autospec(LearnerChannel, instance=True)
    channel.last_record.return_value = None if stored is None else left
    channel.base_env_steps.return_value = None if stored is None else base
    stream.stream_positions.return_value = [] if stored is None else [StreamPosition(1 << 16, 9, stored)]
    stream.restore.side_effect = lambda metas, _: [TakenSegment(SlotRef(i, 1), m) for i, m in enumerate(metas)]
    return LearnerEnds(stream, channel)


def _start(boot: Boot, store: DataStore, ends: LearnerEnds) -> StartState:
    return load_start_state(boot, make_algorithm(boot.plan.config, boot.plan.env), store, ends)


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    """Of the first learner of a resumed leg."""
    config = Config(
        run=RunSection(mode="async", total_env_steps=10 * BEFORE),
        algorithm={"kind": "dqn"},
        replay=ReplaySection(capacity=2000, learning_starts=0, ratio=RATIO),
        hosts={"local": HostSection(workers=1)},
    )
    return Boot("learner", 0, 0, "local", plan_run(config, tmp_path / "run", time.time(), resume=True))


def _store(*fulls: Full) -> MemoryStore:
    store = MemoryStore("", 3)
    for full in fulls:
        store.save_full(full, durable=False)
    return store


def _full(version: Version, counters: Counters, arrays: Mapping[str, Array] | None = None) -> Full:
    return Full(version, dict(arrays or {}), {"counters": asdict(counters)})


def _of_last_attempt(plan: RunPlan, updates: int, arrays: Mapping[str, Array] | None = None, forgiven: int = 0) -> Full:
    started_at, streams = plan.started_at - 1000.0, plan.streams
    counters = Counters(
        env_steps=BEFORE,
        updates=updates,
        attempt_started_at=started_at,
        rows=[0] * streams,
        positions=[(0, 0)] * streams,
    )
    counters.updates_offset = forgiven
    return _full(Version(0, 700), counters, arrays)


def test_updates_of_earlier_attempts_are_offset(boot: Boot) -> None:
    counters = _start(boot, _store(_of_last_attempt(boot.plan, 20_000)), _stream(None)).counters
    assert (counters.updates, counters.updates_offset) == (20_000, RATIO * BEFORE - 20_000)


def test_updates_owed_by_the_former_learner_are_offset_too(boot: Boot) -> None:
    """Its lost updates, and those that fell due when it was away."""
    store = _store(_of_last_attempt(boot.plan, 20_000))
    first = _start(boot, store, _stream(None)).counters
    later = replace(first, env_steps=BEFORE + 40_000, updates=40_000)
    store.save_full(_full(Version(1, 5), later), durable=False)
    second = _start(replace(boot, spawn=1), store, _stream(60_000)).counters
    assert (second.env_steps, second.updates) == (BEFORE + 60_000, 40_000)
    assert second.updates_offset == RATIO * (BEFORE + 60_000) - 40_000


@pytest.mark.parametrize("stored", [None, 60_000])
def test_also_where_the_replay_came_back(boot: Boot, stored: int | None) -> None:
    held = {
        "held_metas": metas_array([SegmentMeta(SegmentId(0, 0, 3), Version(0, 2), 8)]),
        "held/obs": np.zeros((1, 2)),
    }
    store = _store(_of_last_attempt(boot.plan, 20_000, held, forgiven=7_000))
    counters = _start(replace(boot, spawn=0 if stored is None else 1), store, _stream(stored)).counters
    assert counters.updates_offset == RATIO * (BEFORE + (stored or 0)) - 20_000


@pytest.mark.parametrize("saved", [True, False])
def test_without_a_full_an_async_learner_continues_from_the_newest_version(boot: Boot, saved: bool) -> None:
    """Its predecessor died before there was one, or the only one is damaged."""
    store = _store()
    if saved:
        store.save(Version(0, 36), {"w": np.zeros(2)}, {"env_steps": "900", "updates": "290"})
        store.save(Version(0, 37), {"w": np.ones(2)}, {"env_steps": "950", "updates": "300"})
    stream = _stream(1_000, LearnerRecord(Version(0, 37), 310, 5), base=0)
    start = _start(replace(boot, spawn=1), store, stream)
    counters = start.counters
    assert (counters.incarnation, counters.env_steps) == (1, 1_000)
    if not saved:
        assert (start.version, counters.n, counters.updates, counters.updates_lost) == (None, 0, 0, 315)
        return
    assert start.version is not None and start.version.weights["w"].tolist() == [1.0, 1.0]
    assert (counters.n, counters.updates, counters.updates_lost) == (37, 300, 15)
    assert counters.updates_offset == RATIO * 1_000 - 300


@pytest.mark.parametrize(("mode", "version"), [("async", Version(0, 37)), ("sync", None)])
def test_a_resume_with_the_first_full_alone_begins_with_the_newest_version(
    boot: Boot, mode: ModeName, version: Version | None
) -> None:
    """All processes died before the second FULL. In sync the bits are those of a run from its start."""
    store = _store()
    store.save_full(Full(Version(0, 0), {"weights/w": np.zeros(2)}, {"counters": {"leg": 1.0}}), durable=True)
    store.save(Version(0, 37), {"w": np.ones(2)}, {"env_steps": "950", "updates": "300"})
    config = replace(boot.plan.config, run=replace(boot.plan.config.run, mode=mode))
    start = _start(replace(boot, plan=replace(boot.plan, config=config)), store, _stream(None))
    counters = start.counters
    assert counters.incarnation == 1
    if version is None:
        assert start.full is not None and (counters.n, counters.env_steps) == (0, 0)
        return
    assert start.full is None and start.version is not None and start.version.version == version
    assert (counters.n, counters.env_steps, counters.env_steps_before, counters.updates) == (37, 950, 950, 300)
    assert counters.updates_lost == 0


def test_a_full_of_0_1_has_other_names_for_two_counters() -> None:
    counters = {"n": 3, "leg": 1.5, "updates_forgiven": 7}
    stored = stored_counters(Full(Version(0, 3), {}, {"counters": counters}))
    assert Counters(**stored) == Counters(n=3, attempt_started_at=1.5, updates_offset=7)


def test_no_backlog_gives_no_updates_offset(boot: Boot) -> None:
    counters = _start(boot, _store(_of_last_attempt(boot.plan, 51_000)), _stream(None)).counters
    assert counters.updates_offset == 0


def test_a_resume_that_needs_a_full_does_not_begin_without(boot: Boot) -> None:
    """Also the learner that is started again in the same attempt."""
    needs = replace(boot, plan=replace(boot.plan, full_required=True))
    again = replace(boot, plan=replace(boot.plan, from_scratch=True, may_continue=False))
    with raises(ConfigError, key=("--from-scratch",)):
        _start(again, _store(_of_last_attempt(boot.plan, 20_000)), _stream(None))
    for spawn in (0, 1):
        with pytest.raises(ConfigError, match="--from-scratch"):
            _start(replace(needs, spawn=spawn), _store(), _stream(None))
    assert _start(boot, _store(), _stream(None)).counters.env_steps == 0
    assert _start(needs, _store(_of_last_attempt(boot.plan, 20_000)), _stream(None)).full is not None


def _replaced(boot: Boot, kind: str, **options: object) -> tuple[Boot, Algorithm]:
    """A learner of a run of `kind` on Pendulum that is started again in the arena of its predecessor."""
    config = replace(
        boot.plan.config,
        algorithm={"kind": kind, **options},
        env=EnvSection(id="Pendulum-v1"),
        network=NetworkSection(hidden=(8,)),
        learner=LearnerSection(),
    )
    plan = plan_run(config, Path(boot.plan.run_dir), time.time(), resume=True)
    return replace(boot, plan=plan, spawn=1), make_algorithm(plan.config, plan.env)


def _with_first_full(algorithm: Algorithm) -> MemoryStore:
    """What a run has before its second full checkpoint."""
    store, version = MemoryStore("", 3), published(algorithm)
    first = Full(Version(0, 0), prefixed("weights", version_0(algorithm)), {"counters": asdict(Counters())})
    store.save_full(first, durable=True)
    store.save(Version(0, 0), version, {"env_steps": "0", "updates": "0"})
    newest = (
        {**version, "obs_mean": np.full(3, 50.0), "obs_scale": np.full(3, 0.33)} if "obs_mean" in version else version
    )
    store.save(Version(0, 37), newest, {"env_steps": "950", "updates": "300"})
    return store


def _reported(boot: Boot, store: MemoryStore, start: StartState) -> ProblemReport:
    events = create_autospec(EventPipe, instance=True)
    _report_start(boot, store, events, start)
    (call,) = events.send.call_args_list
    report = call.args[0]
    assert isinstance(report, ProblemReport)
    return report


@pytest.mark.parametrize("executor", ["manual", "eager"])
def test_a_learner_continues_with_the_statistics_that_workers_act_with(boot: Boot, executor: str) -> None:
    """Else it trains with mean 0 and scale 1 what they acted with mean 50 and scale 0.33."""
    boot, algorithm = _replaced(boot, "ppo", normalise_obs=True, normalise_reward=True)
    store, ends = _with_first_full(algorithm), _stream(1_000, LearnerRecord(Version(0, 37), 310, 5), base=0)
    start = load_start_state(boot, algorithm, store, ends)
    assert start.version is not None
    learner = algorithm.learner(LearnerContext(start.version.weights, executor=executor))
    assert isinstance(learner, OnPolicyLearner)
    for name, value in (("obs_mean", 50.0), ("obs_scale", 0.33)):
        np.testing.assert_allclose(learner.weights()[name], np.full(3, value))
        np.testing.assert_array_equal(learner.weights()[name], start.version.weights[name])
    (count,) = (array for name, array in learner.state().items() if name.endswith("obs_stats.count"))
    assert count == [950.0]
    report = _reported(boot, store, start)
    assert "version 0-37" in report.done
    assert report.done.endswith("started from scratch: optimiser, reward statistics")


def test_the_optimiser_alone_is_named_where_a_version_has_the_rest(boot: Boot) -> None:
    store = _store()
    store.save(Version(0, 37), {"w": np.ones(2)}, {"env_steps": "950", "updates": "300"})
    again = replace(boot, spawn=1)
    start = _start(again, store, _stream(1_000, LearnerRecord(Version(0, 37), 310, 5), base=0))
    assert _reported(again, store, start).done.endswith("started from scratch: optimiser")


@pytest.mark.parametrize(("kind", "lacks"), [("sac", "q1, q2, log_temperature"), ("td3", "q1, q2")])
def test_a_trained_actor_does_not_meet_untrained_critics(boot: Boot, kind: str, lacks: str) -> None:
    """The learner begins with the networks of version 0, which belong together; its replay is in the arena."""
    boot, algorithm = _replaced(boot, kind)
    store, ends = _with_first_full(algorithm), _stream(1_000, LearnerRecord(Version(0, 37), 310, 5), base=0)
    start = load_start_state(boot, algorithm, store, ends)
    counters = start.counters
    assert start.version is None and start.full is not None and start.full.version == Version(0, 0)
    assert (counters.incarnation, counters.n, counters.updates, counters.env_steps) == (1, 0, 0, 1_000)
    assert (counters.updates_lost, counters.updates_offset) == (315, RATIO * 1_000)
    report = _reported(boot, store, start)
    assert f"version 0-37 lacks {lacks}" in report.done and "full checkpoint 0-0" in report.done


def test_the_first_full_is_no_problem_where_no_version_is_newer(boot: Boot) -> None:
    boot, algorithm = _replaced(boot, "td3")
    store = MemoryStore("", 3)
    first = Full(Version(0, 0), prefixed("weights", version_0(algorithm)), {"counters": asdict(Counters())})
    store.save_full(first, durable=True)
    store.save(Version(0, 0), published(algorithm), {"env_steps": "0", "updates": "0"})
    start = load_start_state(boot, algorithm, store, _stream(10, LearnerRecord(Version(0, 0), 0, 0), base=0))
    events = create_autospec(EventPipe, instance=True)
    _report_start(boot, store, events, start)
    assert not events.send.called
