from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.replay.own_samplers import Recent, RecentSpec
from tests.replay.reference import Acted
from zmqrl.replay.base import AnySample
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import Array, SlotRef

ALPHA, EPSILON, SHARE = 0.7, 1e-3, 0.6
SETTINGS = Prioritised(ALPHA, epsilon=EPSILON, max_share=SHARE)
SPECS = {
    "rows": ReplaySpec(prioritised=SETTINGS),
    "rows-first": ReplaySpec(prioritised=SETTINGS, first_priority="td"),
    "sequences": ReplaySpec(prioritised=SETTINGS, length=4, stride=2, burn_in=2),
    "sequences-first": ReplaySpec(prioritised=SETTINGS, length=4, stride=2, burn_in=2, first_priority="td"),
}


def drawn(replay: SegmentReplay, spec: ReplaySpec, count: int, key: int) -> AnySample:
    return replay.sample_sequences(count, key) if spec.length else replay.sample(count, 1, 0.9, key)


def mass_of(priority: float) -> float:
    return float((abs(priority) + EPSILON) ** ALPHA)


class Reference:
    """Masses by (segment ever added, number of the item)."""

    def __init__(self, acted: Acted, spec: ReplaySpec) -> None:
        self.acted, self.spec, self.largest = acted, spec, 1.0
        self.held: dict[int, list[float]] = {}

    def add(self, number: int, slot: int, places: int) -> None:
        if len(self.held) == places:
            del self.held[min(self.held)]
        c, acted = self.acted.columns, self.acted
        if self.spec.length:
            rows = [(acted.learned(self.spec, slot, t, env), env) for t, env in acted.sequences(self.spec)]
        else:
            pairs = [(t, env) for t in range(acted.steps) for env in range(acted.envs)]
            rows = [([t] if c["valid"][slot, t, env] else [], env) for t, env in pairs]
        self.held[number] = [self.first(slot, learned, env) for learned, env in rows]

    def first(self, slot: int, learned: list[int], env: int) -> float:
        if not learned:
            return 0.0
        if self.spec.first_priority is None:
            return self.largest
        delta = [abs(float(self.acted.columns["td"][slot, t, env])) for t in learned]
        return mass_of(SHARE * max(delta) + (1 - SHARE) * sum(delta) / len(delta))

    def set(self, sample: AnySample, priorities: Array, per_place: int) -> None:
        for row, number, priority in zip(sample.rows, sample.generations, priorities, strict=True):
            if int(number) in self.held:
                self.held[int(number)][row % per_place] = mass_of(float(priority))
                self.largest = max(self.largest, mass_of(float(priority)))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(3))
def test_masses_are_those_of_a_table(name: str, seed: int) -> None:
    spec, rng, places = SPECS[name], np.random.default_rng(seed), 3
    acted = Acted(20, 8, 2, seed)
    replay, reference = acted.replay(spec, places, []), Reference(acted, spec)
    per_place = len(acted.sequences(spec)) if spec.length else acted.steps * acted.envs
    late: list[AnySample] = []
    for slot in range(acted.slots):
        replay.add(SlotRef(slot, 1), acted.meta(slot))
        reference.add(slot, slot, places)
        late.append(drawn(replay, spec, 16, slot))
        for sample in (late[-1], late[int(rng.integers(len(late)))]):  # the second may be of released segments
            priorities = rng.normal(size=16) * 3
            replay.set_priorities(sample, priorities)
            reference.set(sample, priorities, per_place)
        table = np.array([reference.held[number] for number in sorted(reference.held)])
        np.testing.assert_allclose(replay.state()["replay.mass"], table, rtol=1e-5)
    assert replay.state()["replay.largest"] == pytest.approx(reference.largest)


@pytest.mark.parametrize("name", [*SPECS, "uniform", "uniform-sequences", "own"])
def test_state_continues_bit_for_bit(name: str) -> None:
    others = {"uniform": ReplaySpec(), "uniform-sequences": ReplaySpec(length=4), "own": RecentSpec(length=4)}
    spec, rng = (SPECS | others)[name], np.random.default_rng(4)
    acted = Acted(8, 8, 2, 5)
    replay = acted.replay(spec, 3, range(6))
    for key in range(5):
        sample = drawn(replay, spec, 32, key)
        replay.set_priorities(sample, rng.random(32))
    successor = acted.replay(spec, 3, [])
    successor.load_state({key: array.copy() for key, array in replay.state().items()})
    for slot in (3, 4, 5):
        successor.add(SlotRef(slot, 1), acted.meta(slot))
    for new in ([], [6], [7]):
        for each in (replay, successor):
            for slot in new:
                each.add(SlotRef(slot, 1), acted.meta(slot))
        one, other = drawn(replay, spec, 32, 9), drawn(successor, spec, 32, 9)
        same(dataclasses.asdict(one), dataclasses.asdict(other))
        for each, sample in ((replay, one), (successor, other)):
            each.set_priorities(sample, np.linspace(0, 4, 32))
        same(replay.state(), successor.state())


def same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            same(value, other[name])
        else:
            assert value.tobytes() == other[name].tobytes(), name


def test_a_first_priority_that_is_not_finite_is_refused() -> None:
    acted = Acted(1, 8, 2, 5)
    acted.columns["td"][0, 3] = np.nan
    with pytest.raises(ValueError, match=r"first_priority: column 'td' has a value that is not finite"):
        acted.replay(SPECS["sequences-first"], 1, [0])


def test_an_own_sampler_by_dotted_path_is_notified_of_everything() -> None:
    acted, spec = Acted(5, 8, 2, 5), RecentSpec(recent=1)
    replay = acted.replay(spec, 3, range(5))
    sampler = replay._sampler
    assert isinstance(sampler, Recent) and list(sampler.places) == [2, 0, 1]
    for slot, segment in enumerate(sampler.added_segments):
        assert (segment.place, segment.meta) == (slot % 3, acted.meta(slot)) and segment.priorities is None
        assert np.array_equal(segment.columns["reward"], acted.columns["reward"][slot])
        local = np.flatnonzero(acted.columns["valid"][slot])
        assert np.array_equal(segment.items, local + segment.place * 16)
    sample = replay.sample(64, 1, 0.9, 1)
    assert (sample.rows // 16 == 1).all() and (sample.weight == 0.5).all()
    replay.set_priorities(sample, np.ones(64))
    replay.add(SlotRef(0, 1), acted.meta(0))
    replay.release_oldest()
    replay.set_priorities(sample, np.ones(64))  # still held
    replay.release_oldest()
    replay.set_priorities(sample, np.ones(64))  # not any more
    assert sampler.calls.tolist() == [128, 128]
    replay.anneal(0.7)
    assert sampler.beta == 0.7


def test_first_priorities_reach_an_own_sampler() -> None:
    acted = Acted(1, 8, 2, 5)
    replay = acted.replay(RecentSpec(first_priority="td"), 1, [0])
    (segment,) = replay._sampler.added_segments  # type: ignore[attr-defined]
    assert np.array_equal(segment.priorities, np.abs(acted.columns["td"][0][acted.columns["valid"][0]]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Released", r"Released.draw: item 3 is not held"),
        ("Invalid", r"Invalid.draw: item 7 is not held, or not a valid row; 1 of 2"),
        ("Outside", r"Outside.draw: item -1 is not held"),
        ("Float", r"Float.draw: items must be int64 \[2\], got float64"),
        ("Few", r"Few.draw: items must be int64 \[2\], got int64 \[1\]"),
        ("Doubles", r"Doubles.draw: weights must be float32"),
        ("Infinite", r"Infinite.draw: a weight is not finite"),
    ],
)
def test_what_an_own_sampler_draws_is_verified(name: str, message: str) -> None:
    acted = Acted(2, 6, 1, 5)
    acted.columns["valid"][:] = True
    acted.columns["valid"][1, 1] = False
    replay = acted.replay(ReplaySpec(sampler=f"tests.replay.own_samplers:{name}"), 2, [0, 1])
    replay.release_oldest()
    with pytest.raises(ValueError, match=message):
        replay.sample(2, 1, 0.9, 0)


def test_a_table_in_the_state_has_a_row_for_each_segment() -> None:
    replay = Acted(2, 6, 1, 5).replay(ReplaySpec(sampler="tests.replay.own_samplers:OddState"), 2, [0, 1])
    with pytest.raises(ValueError, match=r"OddState.state: table \(3, 2\): .* the 2 held segments"):
        replay.state()


def test_priorities_of_another_shape_are_refused() -> None:
    replay = Acted(1, 6, 1, 5).replay(ReplaySpec(), 1, [0])
    with pytest.raises(ValueError, match=r"priorities must be \(4,\)"):
        replay.set_priorities(replay.sample(4, 1, 0.9, 0), np.ones((4, 1)))
