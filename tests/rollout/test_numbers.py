"""Envs with `on_progress`: what they receive before which step, and that a successor gives them the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.rollout.test_worker import Sink, assignment
from tests.stand_ins.progress_envs import Windy
from zmqrl.acting.base import Policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.broker.env_records import pack_record, unpack_record
from zmqrl.broker.events import RESUMED_SHIFT, Assignments, StreamAssignment
from zmqrl.bus_ends.base import OpenSegment
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, EnvSection, RunSection
from zmqrl.data_stores import tensors
from zmqrl.envs.base import AT_RESET, EnvSlotState
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.learner.env_slot_record import EnvSlotRecord
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.logs.events import EventPipe
from zmqrl.networks.spec import LayerSpec
from zmqrl.rollout.collector import Collector
from zmqrl.rollout.worker import RolloutWorker
from zmqrl.types import STATE_COLUMN, Array, ModeName, Notice, SegmentId, SegmentMeta, SlotRef, Version

HERE = "tests.stand_ins.progress_envs:"
N, SEED = 3, 4
Calls = list[tuple[str, Any]]


def numbers_of(index: int) -> Mapping[str, float]:
    """Those of version `index`; every other one has the numbers of the version before it."""
    return {"wind": 0.3 * (index // 2 % 5), "other": float(index)}


class Drawn(Policy):
    """Actions that depend on the observation and the noise."""

    def load(self, weights: Any, schedule: Any) -> None:
        return

    def act(self, obs: Array, t: int, context: Any) -> Array:
        found: Array = (
            np.abs(obs[:, 0] * 1000).astype(np.int64) + (context.noise.uniform[t, :, 0] * 3).astype(int)
        ) % 3
        return found

    def act_greedily(self, obs: Array, state: Any = None) -> Array:
        raise NotImplementedError


def collector_of(section: EnvSection) -> Collector:
    spec = probe(section)
    assert spec.receives_numbers
    acting = ActingSpec((), "categorical", spec.action, spec.observation)
    return Collector(make_vector_env(section, spec, "sync", SEED, 1), Drawn(), acting, SEED, 1)


def collected(collector: Collector, section: EnvSection, index: int) -> tuple[dict[str, Array], int]:
    """A segment with the numbers of its version."""
    spec, steps, envs = probe(section), section.segment_steps, section.num_envs
    shape = {
        "obs": (steps + 1, envs, *spec.observation.shape),
        STATE_COLUMN: (1, envs, spec.state and spec.state.nbytes),
    }
    dtypes = {"obs": spec.observation.dtype, "action": "i8", "reward": "f4", STATE_COLUMN: "u1"}
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", *([STATE_COLUMN] if spec.state else []))
    columns: dict[str, Array] = {n: np.zeros(shape.get(n, (steps, envs)), dtypes.get(n, "?")) for n in names}
    collector.receive(Version(0, index), numbers_of(index))
    rows = collector.collect(columns, index, lambda _: None, lambda: False)
    assert rows is not None
    return columns, rows


@pytest.mark.parametrize("steps", [1, 5, 16, 40])
@pytest.mark.parametrize(
    "section",
    [
        EnvSection(f"{HERE}Windy", N, wrappers=(f"{HERE}Sum",)),
        EnvSection(f"{HERE}Windy", N, recovery="state"),
        EnvSection(
            f"{HERE}WindyWalkers", 6, wrappers=(f"{HERE}Forwarding",), max_episode_steps=40, kwargs={"length": 60}
        ),
    ],
    ids=["actions", "states", "agents"],
)
@pytest.mark.whole
def test_a_successor_at_every_boundary_continues_with_the_same_bits(section: EnvSection, steps: int) -> None:
    """The record goes through the wire and through FULL. Episodes of up to 30 steps cross several versions."""
    section = replace(section, segment_steps=steps)
    saves_state, group = section.recovery == "state", probe(section).slots_per_env
    tracker_of = partial(EpisodeTracker, 2, section.num_envs, saves_state=saves_state, slots_per_env=group)
    predecessor, tracker = collector_of(section), tracker_of()
    predecessor.receive(Version(0, 0), numbers_of(0))
    predecessor.start()
    crossing = 0
    for index in range(96 // steps):
        columns, rows = collected(predecessor, section, index)
        tracker.advance(SegmentMeta(SegmentId(1, 0, index), Version(0, index), rows), columns, numbers_of(index))
        stored = {name: np.array(array) for name, array in tracker.arrays().items()}
        assert "numbers" in stored
        tracker = tracker_of()
        tracker.load_arrays(stored)
        states = unpack_record(pack_record(tracker.record(1)[1]))
        crossing += max(len(state.numbers) for state in states) > 1
        successor = collector_of(section)
        successor.start(states)
        after, _ = collected(predecessor, section, index + 1)
        again, _ = collected(successor, section, index + 1)
        for name, column in after.items():
            assert column.tobytes() == again[name].tobytes(), (index, name)
        predecessor = collector_of(section)
        predecessor.start(states)
        if saves_state:
            assert all(state.numbers == ((AT_RESET, numbers_of(index)),) for state in states)
    assert crossing or saves_state or steps == 40, "no running episode crossed two versions"


def walk(done: Array, steps: int, env: int) -> list[tuple[int, float]]:
    """Step of the running episode, and version, of all that one env has received in it: from the definition."""
    received, step, resets = [(AT_RESET, 0.0)], 0, False
    for row, ended in enumerate(done[:, env]):
        if row and row % steps == 0:
            received.append((step, row / steps))
        if resets:
            received, step, resets = [(AT_RESET, float(row // steps))], 0, False
            continue
        step, resets = step + 1, bool(ended)
    return received


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_the_record_against_a_plain_walk(steps: int) -> None:
    rng = np.random.default_rng(steps)
    done = rng.random((72, N)) < 0.12
    for row in range(1, 72):
        done[row] &= ~done[row - 1]  # the row after an end is a reset
    record = EnvSlotRecord(N, True)
    for index in range(72 // steps):
        part = done[index * steps : (index + 1) * steps]
        columns = {"action": np.zeros(part.shape, np.int64), "terminated": part, "truncated": np.zeros_like(part)}
        record.advance(SegmentMeta(SegmentId(0, 0, index), Version(0, index), 0), columns, {"n": float(index)})
        for env, state in enumerate(record.states()):
            found = [(step, numbers["n"]) for step, numbers in state.numbers]
            assert found == walk(done[: (index + 1) * steps], steps, env), (index, env)
        again = EnvSlotRecord(N, True)
        again.load_arrays(record.arrays())
        assert [state.numbers for state in again.states()] == [state.numbers for state in record.states()]
        record = again if index % 3 == 0 else record


class Listening(Windy):
    """Lists what is called in `calls` of the class; no episode ends."""

    calls: Calls = []  # noqa: RUF012 - of all envs

    def on_progress(self, numbers: dict[str, float]) -> None:
        self.calls.append(("numbers", numbers["wind"]))
        super().on_progress(numbers)

    def reset(self, **options: Any) -> Any:
        self.calls.append(("reset", None))
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class Weights:
    """One version, changed by the test; its number is the wind."""

    def __init__(self, version: Version | None) -> None:
        self.now = version

    def version(self, n: int | None = None) -> Version | None:
        return self.now if self.now is not None and n in (None, self.now.n) else None

    def read(self, n: int | None = None) -> tuple[Notice, bytes] | None:
        if self.now is None or n not in (None, self.now.n):
            return None
        arrays = {"p.weight": np.ones((3, 3), np.float32), "p.bias": np.zeros(3, np.float32)}
        return Notice(self.now, "k", 0, "", 0, 0, {"wind": float(self.now.n)}), tensors.dump(arrays, {})


class Opening(Sink):
    def open(self, vector_env: int) -> OpenSegment | None:
        shapes = {"obs": ("f8", (5, 1, 3)), "action": ("i8", (4, 1)), "reward": ("f4", (4, 1))}
        shapes.update(dict.fromkeys(("terminated", "truncated", "valid"), ("?", (4, 1))))
        return OpenSegment(SlotRef(0, 1), {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()})

    def seal(self, segment: OpenSegment, id: SegmentId, version: Version, rows: int) -> None:
        Listening.calls.append(("segment", id.index))


def worker_calls(script: Iterator[Assignments], weights: Weights, mode: ModeName, env_id: str = "Listening") -> Calls:
    section = EnvSection(f"{__name__}:{env_id}", 1, segment_steps=4)
    spec = probe(section)
    acting = ActingSpec((LayerSpec("linear", "p", 3, 3),), "categorical", spec.action, spec.observation)
    config = Config(run=RunSection(mode=mode), env=section)
    plan = RunPlan("r", "/tmp", 0.0, config, spec, to_json(acting), (), True, 4, 4, {"local": 1}, 0, "/tmp")
    Listening.calls.clear()
    worker = RolloutWorker(Boot("worker", 0, 0, "local", plan), Opening(script), weights, EventPipe(None))
    worker.run()
    worker.close()
    return list(Listening.calls)


def test_the_first_numbers_come_before_the_first_reset_and_each_version_once() -> None:
    weights = Weights(None)

    def script() -> Iterator[Assignments]:
        given = Assignments((assignment(0),))
        yield given  # nothing is published yet
        assert Listening.calls == []
        for n in (0, 1, 1):
            weights.now = Version(0, n)
            yield given

    expected = [("numbers", 0.0), ("reset", None), ("segment", 0), ("numbers", 1.0), ("segment", 1)]
    assert worker_calls(script(), weights, "sync") == expected


def test_in_pipelined_two_rounds_have_the_numbers_of_version_0() -> None:
    """A call precedes each of them: a successor repeats one call for each segment."""
    script = iter([Assignments((assignment(0),))] * 3)
    calls = [("numbers", 0.0), ("reset", None), ("segment", 0), ("numbers", 0.0), ("segment", 1)]
    assert worker_calls(script, Weights(Version(0, 0)), "pipelined") == calls


def test_after_a_rollback_to_version_0_no_reset_precedes_its_numbers() -> None:
    weights = Weights(Version(2, 7))

    def script() -> Iterator[Assignments]:
        yield Assignments((assignment(0, 2 << RESUMED_SHIFT, 7),))
        yield (again := Assignments((assignment(0, 3 << RESUMED_SHIFT, 0),)))
        yield again
        weights.now = Version(3, 0)
        yield again

    before = [("numbers", 7.0), ("reset", None), ("segment", 7)]
    assert worker_calls(script(), weights, "sync") == [*before, ("numbers", 0.0), ("reset", None), ("segment", 0)]


def test_in_async_a_newer_version_brings_its_numbers_between_two_segments() -> None:
    weights = Weights(Version(0, 3))

    def script() -> Iterator[Assignments]:
        given = Assignments((assignment(0),))
        yield given
        yield given
        weights.now = Version(0, 7)
        yield given

    expected = [("numbers", 3.0), ("reset", None), ("segment", 0), ("segment", 1), ("numbers", 7.0), ("segment", 2)]
    assert worker_calls(script(), weights, "async") == expected


def test_a_successor_repeats_what_was_received_and_not_the_newest_numbers() -> None:
    received = ((AT_RESET, {"wind": 0.25}), (1, {"wind": 0.5}))
    states = (EnvSlotState(2, np.array([0, 1]), numbers=received),)
    script = iter([Assignments((StreamAssignment(0, 1, 6, states),))])
    calls = [("numbers", 0.25), ("reset", None), ("numbers", 0.5), ("numbers", 6.0), ("segment", 6)]
    assert worker_calls(script, Weights(Version(0, 6)), "sync") == calls
