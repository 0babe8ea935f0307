"""A learner that dies between any two of its writes is replaced; a run in sync or pipelined has the same bits."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data_stores.memory_store import MemoryStore
from tests.support.marks import long
from tests.support.runs.pipelined_reference import pipelined_reference
from zmqrl.algorithms.base import BaseLearner
from zmqrl.broker.events import Handover, LearnerReported
from zmqrl.bus_ends.inproc import InprocChannel, InprocSource, InprocStream
from zmqrl.bus_ends.learner_end import LearnerEnds, TakenSegment
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, EnvSection, HostSection, NetworkSection, ReplaySection, RunSection
from zmqrl.data_sets.episodes import frame_dtype
from zmqrl.data_stores.base import Full, Saved
from zmqrl.learner import process
from zmqrl.learner.checkpointing import FullCheckpoints
from zmqrl.learner.recording import SEGMENTS
from zmqrl.learner.reporting import Reporter, weights_sha256
from zmqrl.logs.events import EventPipe
from zmqrl.planning.plan_run import plan_run
from zmqrl.rollout.in_process import StoredWeights
from zmqrl.rollout.worker import RolloutWorker
from zmqrl.shared_memory.arena import LearnerRecord
from zmqrl.types import ModeName, Notice, SlotRef, Version, Weights

ROUNDS, FULL_EVERY, ROUND_ROWS, ROUNDS_HELD = 6, 3, 32, 3


MOST_EMPTY = 100
"""`take` returns at once here: nobody else has to be waited for."""


class Killed(BaseException):
    """What SIGKILL is to a process: nothing that follows in it happens."""


class Writes:
    """Counts the learner's writes, and kills it before one of them."""

    def __init__(self, killed_at: int | None) -> None:
        self._killed_at = killed_at
        self.names: list[str] = []

    def next(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self._killed_at:
            raise Killed


class Store(MemoryStore):
    def __init__(self, writes: Writes) -> None:
        super().__init__("", 8)
        self._writes = writes
        self.newest_n = 0

    def save(self, version: Version, weights: Weights, meta: Mapping[str, str]) -> Saved:
        self._writes.next(f"version {version}")
        self.newest_n = version.n
        return super().save(version, weights, meta)

    def save_full(self, full: Full, durable: bool) -> int:
        self._writes.next(f"FULL {full.version}")
        return super().save_full(full, durable)


class Source(InprocSource):
    """Of one learner; the stream outlives it."""

    def __init__(self, stream: InprocStream, writes: Writes, worker: RolloutWorker) -> None:
        super().__init__(stream)
        self._writes, self._empty, self._worker = writes, 0, worker

    def release(self, refs: Sequence[SlotRef]) -> None:
        for ref in refs:
            self._writes.next("release")
            super().release([ref])

    def _released(self) -> None:
        self._state.handle(LearnerReported(0, 0))  # as the report that is owed after it, over sockets

    def take(self, timeout_s: float) -> list[TakenSegment]:
        self._worker.collect(lambda: False)
        taken = super().take(timeout_s)
        self._empty = 0 if taken else self._empty + 1
        assert self._empty < MOST_EMPTY, "the round does not come together"
        return taken

    def close(self) -> None:
        """The arena is not the learner's."""


class Channel(InprocChannel):
    def __init__(self, stream: InprocStream, writes: Writes) -> None:
        super().__init__(stream)
        self._writes = writes

    def record_progress(self, record: LearnerRecord) -> None:
        self._writes.next(f"record {record.version}")
        super().record_progress(record)

    def announce(self, notice: Notice) -> None:
        self._writes.next(f"announce {notice.version}")
        super().announce(notice)

    def answer(self, handover: Handover) -> None:
        self._writes.next("answer")
        super().answer(handover)


class Bus:
    """What outlives a learner: the arena with the broker's state, a worker, and the store."""

    def __init__(self, plan: RunPlan, writes: Writes) -> None:
        self._plan, self._writes = plan, writes
        self.store, self.stream = Store(writes), InprocStream(plan)
        self._worker: RolloutWorker | None = None

    def ends(self) -> LearnerEnds:
        channel = Channel(self.stream, self._writes)
        weights = StoredWeights(self.store, channel)
        if self._worker is None:
            boot = Boot("worker", 0, 0, "local", self._plan)
            self._worker = RolloutWorker(boot, self.stream.sink, weights, EventPipe(None))
        self._worker._weights = weights
        return LearnerEnds(Source(self.stream, self._writes, self._worker), channel)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "dqn": {"kind": "dqn", "batch_size": 8, "target_update_every": 3, "prioritised": {}},
    "ppo": {"kind": "ppo", "epochs": 2, "minibatch_size": 16},
    "normalised": {"kind": "ppo", "minibatch_size": 32, "normalise_obs": True, "normalise_reward": True},
    "held": {"kind": "tests.stand_ins.held_tally:HeldTally", "phase": ROUNDS_HELD, "minibatch_size": 16},
}


def _plan(run_dir: Path, algorithm: Mapping[str, Any], mode: ModeName = "sync") -> RunPlan:
    config = Config(
        run=RunSection(mode=mode, total_env_steps=ROUNDS * ROUND_ROWS, record="recording"),
        env=EnvSection(num_envs=2, vector_envs=2, segment_steps=8),
        network=NetworkSection(hidden=(8,)),
        algorithm=algorithm,
        replay=ReplaySection(capacity=ROUNDS_HELD * ROUND_ROWS, learning_starts=ROUND_ROWS, ratio=0.1),
        hosts={"local": HostSection(workers=1)},
    )
    return plan_run(config, run_dir, time.time())


def _run(plan: RunPlan, killed_at: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    """The writes until the end or the death, and how the run ended: `recorded` has all that is in its recording."""
    writes, ended = Writes(killed_at), {}
    folder = Path(plan.run_dir, "recording")
    shutil.rmtree(folder, ignore_errors=True)
    bus = Bus(plan, writes)

    def end(reporter: Reporter, reason: str, learner: BaseLearner, ledger: None) -> None:
        counters = reporter._progress.counters
        sha = weights_sha256(learner.weights(), learner.network_names())
        ended.update(reason=reason, weights_sha256=sha, env_steps=counters.env_steps, updates=counters.updates)

    monkeypatch.setattr(process, "learner_ends", lambda _: bus.ends())
    monkeypatch.setattr(process, "make_store", lambda _: bus.store)
    monkeypatch.setattr(FullCheckpoints, "is_due", lambda *_, **__: bus.store.newest_n % FULL_EVERY == FULL_EVERY - 1)
    monkeypatch.setattr(Reporter, "ended", end)
    boot = Boot("learner", 0, 0, "local", plan)
    try:
        process.main(boot)
    except Killed:
        process.main(replace(boot, spawn=1))
    assert bus.stream.ledger().balanced
    frames = np.fromfile(folder / SEGMENTS, frame_dtype(plan.columns))
    assert frames["rows"].sum() == ended["env_steps"]
    frames["id"][:, 1] = 0  # the incarnations count the deaths
    ended["recorded"] = frames.tobytes()
    return writes.names, ended


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "mode"), [
    ("ppo", "sync"),
    long("dqn", "sync"),
    long("held", "sync"),
    ("normalised", "pipelined"),
    long("dqn", "pipelined"),
    long("held", "pipelined"),
])  # fmt: skip
def test_killed_before_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: ModeName) -> None:
    plan = _plan(tmp_path / "run", ALGORITHMS[kind], mode)
    names, undisturbed = _run(plan, None, monkeypatch)
    if mode == "pipelined":
        expected = pipelined_reference(plan)
        assert {name: undisturbed[name] for name in expected} == expected
    assert names.count("release") > ROUNDS, "replay lets go of segments"
    first_full = names.index(f"FULL 0-{FULL_EVERY}")
    assert "release" in names[first_full:]
    for at in range(len(names)):
        _, ended = _run(plan, at, monkeypatch)
        assert ended == undisturbed, f"killed before {names[at]}, write {at} of {names}"
