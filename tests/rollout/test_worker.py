from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.waiting import WAIT_S
from zmqrl.acting.spec import ActingSpec
from zmqrl.broker.events import RESUMED_SHIFT, Assignments, StreamAssignment
from zmqrl.bus_ends.base import OpenSegment, SegmentSink
from zmqrl.config.codec import to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, EnvSection, RunSection
from zmqrl.data_stores import tensors
from zmqrl.envs.base import EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.logs.events import EventPipe
from zmqrl.networks.spec import LayerSpec
from zmqrl.rollout.worker import RolloutWorker
from zmqrl.types import ColumnSpec, ModeName, Notice, SegmentId, SlotRef, Version

T, N = 4, 2
LOG_PROB = ColumnSpec("log_prob", "float32", (T, N))


def make_boot(mode: ModeName = "sync", events: int | None = None) -> Boot:
    config = Config(run=RunSection(mode=mode), env=EnvSection(num_envs=N, segment_steps=T))
    env = probe(config.env)
    spec = ActingSpec((LayerSpec("linear", "p", 4, 2),), "categorical", env.action, env.observation, (LOG_PROB,))
    plan = RunPlan("r", "/tmp", 0.0, config, env, to_json(spec), (), True, 4, 4, {"local": 1}, 0, "/tmp")
    return Boot("worker", 0, 0, "local", plan, fds={} if events is None else {"events": events})


class Weights:
    """One version, and maybe the one before, changed by the test."""

    def __init__(self, version: Version | None, before: Version | None = None) -> None:
        self.now, self.before = version, before

    def version(self, n: int | None = None) -> Version | None:
        there = (version for version in (self.now, self.before) if version is not None)
        return next((version for version in there if n in (None, version.n)), None)

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        version = self.version(n)
        if version is None:
            return None
        arrays = {"p.weight": np.ones((2, 4), np.float32), "p.bias": np.zeros(2, np.float32)}
        return Notice(version, "k", 0, "", 0), tensors.dump(arrays, {})


class Sink(SegmentSink):
    """Keeps what is sealed; `script` says what each poll answers, and may act in between."""

    def __init__(self, script: Iterator[Assignments], leases: int = 100) -> None:
        self._script, self.leases = script, leases
        self.sealed: list[tuple[SegmentId, Version, int]] = []
        self.abandoned = self.busy_for = 0

    def busy(self) -> None:
        self.busy_for += 1

    def poll(self, timeout_s: float) -> Assignments:
        return next(self._script, Assignments(stop=True))

    def open(self, vector_env: int) -> OpenSegment | None:
        if self.leases == 0:
            return None
        self.leases -= 1
        shapes = {"obs": ("f4", (T + 1, N, 4)), "action": ("i8", (T, N)), "reward": ("f4", (T, N))}
        shapes.update(dict.fromkeys(("terminated", "truncated", "valid"), ("?", (T, N))), log_prob=("f4", (T, N)))
        return OpenSegment(SlotRef(0, 1), {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()})

    def progress(self, vector_env: int, rows: int) -> None: ...

    def seal(self, segment: OpenSegment, id: SegmentId, version: Version, rows: int) -> None:
        self.sealed.append((id, version, rows))

    def abandon(self, segment: OpenSegment) -> None:
        self.abandoned += 1

    def close(self) -> None: ...


def assignment(vector_env: int, incarnation: int = 0, next_index: int = 0) -> StreamAssignment:
    return StreamAssignment(vector_env, incarnation, next_index, None)


def run(sink: Sink, weights: Weights, mode: ModeName = "sync") -> RolloutWorker:
    worker = RolloutWorker(make_boot(mode), sink, weights, EventPipe(None))
    worker.run()
    worker.close()
    return worker


def test_sync_answers_a_version_once_and_waits_for_the_next() -> None:
    weights = Weights(None)

    def script() -> Iterator[Assignments]:
        assignments = Assignments((assignment(0), assignment(1)))
        yield assignments
        assert sink.sealed == []
        weights.now = Version(0, 0)
        for _ in range(3):
            yield assignments
        assert [(i.vector_env, i.index, v) for i, v, _ in sink.sealed] == [(0, 0, (0, 0)), (1, 0, (0, 0))]
        weights.now = Version(0, 1)
        yield assignments

    sink = Sink(script())
    run(sink, weights)
    assert [(i.vector_env, i.index, v.n) for i, v, _ in sink.sealed[2:]] == [(0, 1, 1), (1, 1, 1)]


def test_a_worker_that_repeats_a_long_episode_shows_that_it_gets_on() -> None:
    """Else it would be taken for stalled, killed, and its successor too."""
    states = (EnvSlotState(0, np.tile([0, 1], 4)), EnvSlotState(0, np.tile([0, 1], 3)))
    sink = Sink(iter([Assignments((StreamAssignment(0, 1, 3, states),))]))
    run(sink, Weights(Version(0, 0)))
    assert sink.busy_for == 14


def test_a_new_incarnation_starts_where_the_order_says_and_unlisted_ones_go() -> None:
    weights = Weights(Version(0, 3))

    def script() -> Iterator[Assignments]:
        yield Assignments((assignment(0, 0, 3), assignment(1, 0, 3)))
        weights.now = Version(1, 2)
        yield Assignments((assignment(1, 1, 2),))
        yield Assignments((assignment(1, 1, 2),))

    sink = Sink(script())
    run(sink, weights)
    assert [tuple(i) for i, _, _ in sink.sealed] == [(0, 0, 3), (1, 0, 3), (1, 1, 2)]


def test_after_a_rollback_no_version_from_before_it_is_used() -> None:
    """With 2-6 and then 2-7 it would be a round ahead of the learner, which would not keep its segment."""
    weights = Weights(Version(2, 7), before=Version(2, 6))

    def script() -> Iterator[Assignments]:
        again = Assignments((assignment(0, 3 << RESUMED_SHIFT, 6),))
        yield from (again, again)
        weights.now, weights.before = Version(3, 6), Version(2, 7)
        yield from (again, again)

    sink = Sink(script())
    run(sink, weights)
    assert [(i.index, v) for i, v, _ in sink.sealed] == [(6, (3, 6))]


def test_async_continues_with_the_newest_version_while_there_are_leases() -> None:
    sink = Sink(iter([Assignments((assignment(0),))] * 6), leases=3)
    run(sink, Weights(Version(0, 5)), "async")
    assert [(i.index, v.n) for i, v, _ in sink.sealed] == [(0, 5), (1, 5), (2, 5)]


def test_a_stop_abandons_the_open_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(iter([Assignments((assignment(0),))] * 3))
    worker = RolloutWorker(make_boot(), sink, Weights(Version(0, 0)), EventPipe(None))
    monkeypatch.setattr(sink, "progress", lambda vector_env, rows: worker.stop())
    worker.run()
    worker.close()
    assert (sink.abandoned, sink.sealed) == (1, [])


def test_events() -> None:
    read, write = os.pipe()
    worker = RolloutWorker(
        make_boot(events=write), Sink(iter([Assignments((assignment(0),))])), Weights(Version(0, 0)), EventPipe(write)
    )
    worker.run()
    worker.close()
    os.close(write)
    with os.fdopen(read) as lines:
        events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["ready", "first_step", "left", "worker"]
    assert events[-1]["env_steps"] == T * N, "a worker that ends reports what it did since its last report"


def test_peak_pss_of_what_a_worker_imports_and_runs() -> None:
    """At most 50 MB for CartPole, sockets included; no torch, no pydantic."""
    code = """
import sys, zmq, msgpack
import zmqrl.rollout.worker
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
section = EnvSection(num_envs=8)
make_vector_env(section, probe(section), "sync", 1, 0).start()
zmq.Context()
assert not {"torch", "pydantic", "safetensors"} & set(sys.modules)
print(next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")) / 1000)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) * 1.024 <= 48


def test_sigterm_handler_only_sets_a_flag() -> None:
    worker = RolloutWorker(make_boot(), Sink(iter(())), Weights(None), EventPipe(None))
    before = signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    try:
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM))
        sink = worker._sink
        assert isinstance(sink, Sink)
        sink._script = iter(lambda: Assignments(), None)
        timer.start()
        worker.run()
        timer.join()
    finally:
        signal.signal(signal.SIGTERM, before)
        worker.close()
