"""When a durable FULL is due, and what writing one with replay needs."""

from __future__ import annotations

import errno
import os
import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec, patch

import numpy as np
import pytest

from tests.data_stores.memory_store import MemoryStore
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.algorithms.base import Algorithm, OffPolicyLearner
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, HostSection, ReplaySection, RunSection
from zmqrl.data_stores import files
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import ConfigError, StoreError
from zmqrl.learner.checkpointing import KEPT, RETRY_AFTER_S, BackgroundWrite, FullCheckpoints
from zmqrl.learner.counters import Counters, RunProgress
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.learner.full_content import held_segments
from zmqrl.learner.restore import StartState
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.learner.session import make_session
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport
from zmqrl.planning.plan_run import plan_run
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version

LEARNER = create_autospec(OffPolicyLearner, instance=True)
LEARNER.weights.return_value = {"w": np.ones(3)}
LEARNER.state.return_value = {"adam": np.ones(3)}


class _Store(MemoryStore):
    """Notes what was durable; fails or takes long when told."""

    def __init__(self) -> None:
        super().__init__("", 3)
        self.durable: list[bool] = []
        self.takes_s = 0.0
        self.fails = False

    def save_full(self, full: Full, durable: bool) -> int:
        if self.fails:
            raise StoreError("full")
        self.durable.append(durable)
        clock[0] += self.takes_s
        return super().save_full(full, durable)


clock = [0.0]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock[0] = 100.0
    monkeypatch.setattr("zmqrl.learner.checkpointing.time", create_autospec(time, monotonic=lambda: clock[0]))


def _checkpoints(store: DataStore, told: Sequence[str] = ()) -> FullCheckpoints:
    events = create_autospec(EventPipe, instance=True)
    events.send.side_effect = lambda event: told.append(type(event).__name__) if isinstance(told, list) else None
    return _checkpoints_with(store, RetryingWriter(events, 1.0))


def _checkpoints_with(
    store: DataStore, writer: RetryingWriter, source: SegmentSource | None = None, every_s: float = 10.0
) -> FullCheckpoints:
    """One is due every 10 s, unless said otherwise."""
    plan = _plan(Path("/nowhere"), every_s)
    progress = RunProgress(plan, Counters(n=1), EpisodeTracker(plan.streams, plan.config.env.num_envs))
    source = source or create_autospec(SegmentSource, instance=True)
    return FullCheckpoints(plan, store, writer, progress, source)


class _WithReplay:
    """Full checkpoints of a replay of one segment; notes what is reported, and while what is reported as writing."""

    def __init__(self) -> None:
        shape = (1, 2, 1)
        columns = {
            "obs": np.ones((1, 3, 1, 1), np.float32),
            "action": np.zeros(shape, np.int64),
            "reward": np.ones(shape, np.float32),
            "valid": np.ones(shape, bool),
            **{name: np.zeros(shape, bool) for name in ("terminated", "truncated")},
        }
        self.replay = SegmentReplay(columns, 1, 1, ReplaySpec())
        self.replay.add(SlotRef(0, 1), SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 2))
        self.store, events = _Store(), create_autospec(EventPipe, instance=True)
        self.writer = RetryingWriter(events, 0.0)
        self.events = events
        source = create_autospec(SegmentSource, instance=True, columns=columns)
        source.is_held.return_value = True
        self.checkpoints = _checkpoints_with(self.store, self.writer, source)

    def problems(self) -> list[tuple[str, str]]:
        sent = [call.args[0] for call in self.events.send.call_args_list]
        return [(event.cause, event.done) for event in sent if isinstance(event, ProblemReport)]


@pytest.fixture
def with_replay() -> _WithReplay:
    return _WithReplay()


def test_one_a_round_and_one_a_clock_is_durable() -> None:
    store = _Store()
    checkpoints = _checkpoints(store)
    for _ in range(43):  # rounds of one second
        clock[0] += 1.0
        checkpoints.write(LEARNER)
    assert [n for n, durable in enumerate(store.durable, 1) if durable] == [10, 20, 30, 40]
    checkpoints.write(LEARNER, last=True)
    assert store.durable[-1]


def test_the_clock_begins_with_what_is_written_not_with_its_end() -> None:
    store = _Store()
    checkpoints = _checkpoints(store)
    store.takes_s, clock[0] = 1.5, clock[0] + 10.0
    begun = clock[0]
    checkpoints.write(LEARNER, last=False)
    clock[0] = begun + 9.9
    assert not checkpoints.is_due()
    clock[0] = begun + 10.0
    assert checkpoints.is_due()


@pytest.mark.parametrize("every_s", [0.5, 10.0])
def test_the_first_interval_is_the_configured_one(every_s: float) -> None:
    writer = RetryingWriter(create_autospec(EventPipe, instance=True), 1.0)
    assert _checkpoints_with(_Store(), writer, every_s=every_s).interval_s == every_s


def test_a_durable_one_that_fails_is_tried_again_soon() -> None:
    store = _Store()
    checkpoints = _checkpoints(store)
    clock[0] += 10.0
    store.fails = True
    assert checkpoints.write(LEARNER, last=False) is None
    assert not checkpoints.is_due()
    store.fails, clock[0] = False, clock[0] + RETRY_AFTER_S
    assert checkpoints.is_due()
    checkpoints.write(LEARNER, last=False)
    assert store.durable == [True] and not checkpoints.is_due()


def test_a_full_that_is_scheduled_now_is_due_at_once() -> None:
    checkpoints = _checkpoints(_Store())
    assert not checkpoints.is_due()
    checkpoints.schedule_now()
    assert checkpoints.is_due()


def test_the_time_that_the_run_waited_is_the_sum_of_all_writes() -> None:
    store = _Store()
    checkpoints = _checkpoints(store)
    assert checkpoints.spent_s == 0.0
    store.takes_s = 1.5
    for last in (False, False, True):
        checkpoints.write(LEARNER, last=last)
    assert checkpoints.spent_s == 4.5


def test_a_first_full_has_the_weights_alone_and_is_durable() -> None:
    store = _Store()
    _checkpoints(store).make_start_durable(None, {"w": np.arange(3)})
    full = store.newest_full()
    assert full is not None and store.durable == [True]
    assert full.arrays["weights/w"].tolist() == [0, 1, 2]
    assert not [name for name in full.arrays if name.startswith("state/")]


def test_a_full_names_the_device_that_is_known_by_then(with_replay: _WithReplay) -> None:
    checkpoints, store = with_replay.checkpoints, with_replay.store
    devices = []
    for device in (None, "cpu"):
        checkpoints.device = device
        checkpoints.write(LEARNER)
        full = store.newest_full()
        assert full is not None
        made: Any = full.meta["made_with"]
        devices.append(made.get("device"))
    checkpoints.device = "other"
    checkpoints.write_in_background(LEARNER, with_replay.replay)
    checkpoints.is_writing(wait=True)
    full = store.newest_full()
    assert full is not None
    made = full.meta["made_with"]
    assert [*devices, made.get("device")] == [None, "cpu", "other"]


def test_who_does_not_own_the_run_writes_no_full(with_replay: _WithReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise ConfigError("taken over")

    monkeypatch.setattr(with_replay.checkpoints._owner, "check", check)
    for write in (
        lambda: with_replay.checkpoints.write(LEARNER),
        lambda: with_replay.checkpoints.write_in_background(LEARNER, with_replay.replay),
    ):
        with raises(ConfigError, key=(), what="taken over"):
            write()
    assert with_replay.store.durable == [] and not with_replay.checkpoints.is_writing()


@pytest.mark.parametrize(("has_replay", "last", "reports"), [(False, False, 0), (True, False, 1), (False, True, 1)])
def test_a_stop_waits_for_a_write_that_may_take_long(
    with_replay: _WithReplay, has_replay: bool, last: bool, reports: int
) -> None:
    replay = with_replay.replay if has_replay else None
    with patch.object(with_replay.writer, "reporting", wraps=with_replay.writer.reporting) as reporting:
        assert with_replay.checkpoints.write(LEARNER, replay, last=last) is not None
    assert reporting.call_count == reports


def test_the_end_of_a_run_without_its_last_full_names_the_one_that_a_resume_continues_from(
    with_replay: _WithReplay,
) -> None:
    with_replay.store.fails = True
    assert with_replay.checkpoints.write(LEARNER, last=True) is None
    assert with_replay.problems() == [("full", f"{KEPT}: a resume continues from it")]


def test_one_full_at_a_time_is_written_in_the_background(with_replay: _WithReplay) -> None:
    checkpoints, store, replay = with_replay.checkpoints, with_replay.store, with_replay.replay
    begun, waited, save, wait = clock[0], threading.Event(), store.save_full, BackgroundWrite.wait

    def save_when_waited_for(full: Full, durable: bool) -> int:
        waited.wait(WAIT_S)
        return save(full, durable)

    def wait_for(background: BackgroundWrite) -> None:
        waited.set()
        wait(background)

    reporting = patch.object(with_replay.writer, "reporting", wraps=with_replay.writer.reporting)
    with patch.object(store, "save_full", save_when_waited_for), patch.object(BackgroundWrite, "wait", wait_for):
        checkpoints.write_in_background(LEARNER, replay)
        assert checkpoints.is_writing()
        daemons = [thread.daemon for thread in threading.enumerate() if thread.name == "full"]
        checkpoints.write_in_background(LEARNER, replay)
        clock[0] += 3.0
        try:
            with reporting as calls:
                assert not checkpoints.is_writing(wait=True)
                assert not checkpoints.is_writing(wait=True)
        finally:
            waited.set()
    assert daemons == [True], "a store that hangs does not keep the process"
    assert (store.durable, calls.call_count, len(with_replay.problems())) == ([True], 1, 1)
    full = store.newest_full()
    assert full is not None and len(held_segments(full.arrays)[0]) == 1
    assert (checkpoints.interval_s, checkpoints.spent_s) == (15.0, 0.0), "five times what it took, and nothing waited"
    clock[0] = begun + 14.9
    assert not checkpoints.is_due()
    clock[0] = begun + 15.0
    assert checkpoints.is_due()


def test_a_full_that_fails_in_the_background_is_reported_and_due_again_soon(with_replay: _WithReplay) -> None:
    checkpoints, store = with_replay.checkpoints, with_replay.store
    clock[0] += 10.0
    store.fails = True
    checkpoints.write_in_background(LEARNER, with_replay.replay)
    assert not checkpoints.is_writing(wait=True)
    assert with_replay.problems() == [("full", f"{KEPT}, the run continues")]
    assert not checkpoints.is_due()
    clock[0] += RETRY_AFTER_S
    assert checkpoints.is_due()


def _volatile(store: DirectoryStore) -> Full:
    """A FULL that a killed process may have left in memory alone."""
    store.save_full(Full(Version(0, 4), {"a": np.arange(9)}, {"n": 4}), durable=False)
    found = store.newest_full()
    assert found is not None
    return found


def test_the_full_that_a_resume_begins_from_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = DirectoryStore(str(tmp_path), 3), list[str]()
    full = _volatile(store)
    path = tmp_path / "full-0-4.safetensors"
    inode, sync = path.stat().st_ino, files.sync
    monkeypatch.setattr(files, "sync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(files, "sync_directory", synced.append)
    _checkpoints(store).make_start_durable(full, {})
    assert synced == [str(path), str(tmp_path)] and path.stat().st_ino == inode


def test_a_failed_sync_is_not_accepted_at_the_second_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux marks pages that it could not write as clean: the next fsync of the file succeeds without them."""
    store = DirectoryStore(str(tmp_path), 3)
    full = _volatile(store)
    path = tmp_path / "full-0-4.safetensors"
    first, sync, failures = path.open("rb"), files.sync, [OSError(errno.EIO, "Input/output error")]

    def sync_once_failing(fd: int) -> None:
        if failures:
            raise failures.pop()
        assert not os.path.samestat(os.fstat(fd), os.fstat(first.fileno())), "its pages may be lost"
        sync(fd)

    with first:
        monkeypatch.setattr(files, "sync", sync_once_failing)
        _checkpoints(store).make_start_durable(full, {})
        assert not os.path.samestat(path.stat(), os.fstat(first.fileno()))
    found = store.newest_full()
    assert found is not None and (found.version, found.meta) == (full.version, full.meta)
    assert np.array_equal(found.arrays["a"], np.arange(9))


def test_writing_takes_at_most_a_fifth() -> None:
    told: list[str] = []
    store = _Store()
    checkpoints = _checkpoints(store, told)
    store.takes_s, clock[0] = 1.9, clock[0] + 10.0
    checkpoints.write(LEARNER, last=False)
    assert (checkpoints.interval_s, told) == (10.0, [])
    for _ in range(2):
        store.takes_s, clock[0] = 4.0, clock[0] + 20.0
        checkpoints.write(LEARNER, last=False)
        assert checkpoints.interval_s == 20.0
    assert told == ["ProblemReport"], "once"
    store.takes_s, clock[0] = 0.5, clock[0] + 20.0
    checkpoints.write(LEARNER, last=False)
    assert checkpoints.interval_s == 10.0


@pytest.mark.parametrize("refused", [0, 2])
def test_the_end_of_a_failure_is_reported_also_when_it_is_the_last_full(refused: int) -> None:
    store = _Store()
    events = create_autospec(EventPipe, instance=True)
    checkpoints = _checkpoints_with(store, RetryingWriter(events, 5.0))
    store.fails = True
    assert checkpoints.write(LEARNER, last=False) is None
    refusals = iter([True] * refused + [False])

    def fail(full: Full, durable: bool) -> int:
        store.fails = next(refusals)
        return _Store.save_full(store, full, durable)

    with patch.object(store, "save_full", fail):
        assert checkpoints.write(LEARNER, last=True) is not None
    problems = [call.args[0].done for call in events.send.call_args_list if isinstance(call.args[0], ProblemReport)]
    assert "the run continues" in problems[0] and "writes succeed again" in problems[-1]
    assert ["the end of the run waits" in problem for problem in problems[1:-1]] == [True] * bool(refused), "once"


def _plan(tmp_path: Path, every_s: float = 10.0) -> RunPlan:
    config = Config(
        run=RunSection(mode="sync", total_env_steps=1000, checkpoint_every_s=every_s),
        algorithm={"kind": "dqn"},
        replay=ReplaySection(capacity=2000, learning_starts=0),
        hosts={"local": HostSection(workers=1)},
    )
    return plan_run(config, tmp_path / "run", time.time())


@pytest.mark.whole
def test_a_full_with_replay_is_written_from_the_slots(tmp_path: Path) -> None:
    """64 MB of replay, and nowhere near it of memory; what comes back is what the slots hold."""
    slots, steps, envs = 64, 16, 4
    flags = {name: np.zeros((slots, steps, envs), bool) for name in ("terminated", "truncated")}
    columns = {
        "obs": np.arange(slots * steps * envs * 4096, dtype=np.float32).reshape(slots, steps, envs, 4096),
        "reward": np.ones((slots, steps, envs), np.float32),
        "valid": np.ones((slots, steps, envs), bool),
        **flags,
    }
    replay = SegmentReplay(columns, slots - 2, 1, ReplaySpec())
    order = np.random.default_rng(1).permutation(slots)[: slots - 2].tolist()
    for index, slot in enumerate(order):
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, index), Version(0, index), steps * envs))
    store = DirectoryStore(str(tmp_path / "store"), 3)
    source = create_autospec(SegmentSource, instance=True, columns=columns)
    ends = LearnerEnds(source, create_autospec(LearnerChannel, instance=True))
    events, plan = create_autospec(EventPipe, instance=True), _plan(tmp_path)
    counters = Counters(n=7, rows=[0] * plan.streams, positions=[(0, 0)] * plan.streams)
    start = StartState(counters)
    session = make_session(plan, create_autospec(Algorithm, instance=True), store, ends, events, start)
    tracemalloc.start()
    nbytes = session.checkpoints.write(LEARNER, replay, last=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert nbytes is not None and nbytes > 60 << 20
    assert peak < 8 << 20
    full = store.newest_full()
    assert full is not None
    metas, held = held_segments(full.arrays)
    assert [meta.id.index for meta in metas] == list(range(slots - 2))
    for name, column in columns.items():
        assert np.array_equal(held[name], column[order])
