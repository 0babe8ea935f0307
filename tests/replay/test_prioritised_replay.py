from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zmqrl.replay.base import SegmentMeta
from zmqrl.replay.segment_replay import SegmentReplay, build_replay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import Array, SegmentId, SlotRef, Version

MakeColumns = Callable[[int], dict[str, Array]]
ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "prioritised.json").read_text())
META = SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 12)


def filled(columns: dict[str, Array], slots: list[int], settings: Prioritised) -> SegmentReplay:
    replay = SegmentReplay(columns, 4, 1, ReplaySpec(prioritised=settings))
    for slot in slots:
        replay.add(SlotRef(slot, 1), META)
    return replay


def oracle_replay(make_columns: MakeColumns, **options: float) -> tuple[SegmentReplay, Array]:
    """One segment with as many valid rows as the oracle has, and the oracle's priorities."""
    columns = make_columns(1)
    for name in ("terminated", "truncated", "valid"):
        columns[name][:] = False
    columns["valid"][0, :3] = True
    settings = Prioritised(ORACLE["alpha"], ORACLE["beta"], ORACLE["epsilon"], **options)
    replay = filled(columns, [0], settings)
    sample = replay.sample(6, 1, 0.9, 0)
    rows = np.arange(6)
    sample = dataclasses.replace(sample, rows=rows, generations=np.zeros(6, dtype=np.int64))
    replay.set_priorities(sample, np.array(ORACLE["delta"]))
    return replay, rows


def test_distribution_and_weights_are_the_papers(make_columns: MakeColumns) -> None:
    replay, _ = oracle_replay(make_columns)
    sample = replay.sample(200_000, 1, 0.9, 3)
    counts = np.bincount(sample.rows, minlength=6) / len(sample.rows)
    expected = np.array(ORACLE["probability"])
    assert np.abs(counts - expected).max() < 5 * np.sqrt(0.25 / len(sample.rows))
    # All rows are in so large a minibatch, so its largest weight is that of all rows.
    np.testing.assert_allclose(sample.weight, np.array(ORACLE["weight"])[sample.rows], rtol=1e-5)


def test_uniform_mix_reaches_rows_of_hardly_any_priority(make_columns: MakeColumns) -> None:
    replay, _ = oracle_replay(make_columns, uniform_mix=0.5)
    sample = replay.sample(100_000, 1, 0.9, 3)
    counts = np.bincount(sample.rows, minlength=6) / len(sample.rows)
    expected = 0.5 * np.array(ORACLE["probability"]) + 0.5 / 6
    assert np.abs(counts - expected).max() < 5 * np.sqrt(0.25 / len(sample.rows))
    weight = (6 * expected) ** -ORACLE["beta"]
    np.testing.assert_allclose(sample.weight, (weight / weight.max())[sample.rows], rtol=1e-5)


def test_released_and_invalid_rows_are_never_drawn(make_columns: MakeColumns) -> None:
    columns = make_columns(6)
    replay = filled(columns, [0, 1, 2, 3, 4, 5], Prioritised())
    replay.release_oldest()
    names = replay.sample(5000, 1, 0.9, 1).obs[:, 0].astype(int)
    assert set(names // 100) == {3, 4, 5}
    assert columns["valid"][names // 100, names // 10 % 10, names % 10].all()


def test_late_priorities_of_a_refilled_place_are_ignored(make_columns: MakeColumns) -> None:
    replay = filled(make_columns(8), [0, 1, 2, 3], Prioritised())
    sample = replay.sample(64, 1, 0.9, 1)
    for slot in (4, 5, 6, 7):
        replay.add(SlotRef(slot, 1), META)
    before = replay.state()["replay.mass"].copy()
    replay.set_priorities(sample, np.full(64, 1e6))
    np.testing.assert_array_equal(replay.state()["replay.mass"], before)


def test_new_rows_have_the_largest_priority_so_far(make_columns: MakeColumns) -> None:
    replay = filled(make_columns(3), [0], Prioritised(alpha=1.0, epsilon=1e-6))
    replay.set_priorities(replay.sample(1, 1, 0.9, 1), np.array([50.0]))
    replay.add(SlotRef(1, 1), META)
    assert replay.state()["replay.mass"][1].max() == 50.000001


def test_state_continues_with_the_same_draws(make_columns: MakeColumns) -> None:
    columns, settings = make_columns(6), Prioritised()
    replay = filled(columns, [0, 1, 2, 3, 4, 5], settings)
    replay.set_priorities(replay.sample(64, 1, 0.9, 1), np.linspace(0, 5, 64))
    successor = SegmentReplay(columns, 4, 1, ReplaySpec(prioritised=settings))
    successor.load_state(replay.state())
    for slot in (2, 3, 4, 5):
        successor.add(SlotRef(slot, 1), META)
    a, b = replay.sample(64, 3, 0.9, 5), successor.sample(64, 3, 0.9, 5)
    np.testing.assert_array_equal(a.rows, b.rows)
    np.testing.assert_array_equal(a.weight, b.weight)


def test_capacity_is_rounded_up_to_segments(make_columns: MakeColumns) -> None:
    replay = build_replay(make_columns(3), 13, 1, ReplaySpec())
    assert [replay.add(SlotRef(slot, 1), META) for slot in range(3)] == [None, None, SlotRef(0, 1)]
