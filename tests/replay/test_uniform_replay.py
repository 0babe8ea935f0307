from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from zmqrl.errors import ArenaError
from zmqrl.replay.base import SegmentMeta
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import Array, SegmentId, SlotRef, Version

MakeColumns = Callable[[int], dict[str, Array]]
META = SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 12)


def filled(columns: dict[str, Array], slots: list[int], places: int = 4) -> SegmentReplay:
    replay = SegmentReplay(columns, places, 1, ReplaySpec())
    for slot in slots:
        replay.add(SlotRef(slot, 1), META)
    return replay


def test_every_valid_row_of_held_slots_is_equally_likely(make_columns: MakeColumns) -> None:
    columns = make_columns(7)
    replay = filled(columns, [6, 0, 3, 5, 2, 4])
    held = [3, 5, 2, 4]
    assert replay.size == columns["valid"][held].sum() and replay.segments == 4
    drawn = np.concatenate([replay.sample(1000, 1, 0.9, key).obs[:, 0] for key in range(60)])
    names, counts = np.unique(drawn, return_counts=True)
    expected = columns["obs"][:, :-1][np.isin(np.arange(7), held)][columns["valid"][sorted(held)]][:, 0]
    np.testing.assert_array_equal(names, np.sort(expected))
    mean = len(drawn) / len(names)
    # Chi-square: mean k - 1, deviation sqrt(2 (k - 1)).
    degrees = len(names) - 1
    assert ((counts - mean) ** 2 / mean).sum() < degrees + 5 * np.sqrt(2 * degrees)


def test_a_full_replay_hands_back_the_oldest_slot(make_columns: MakeColumns) -> None:
    replay = filled(make_columns(5), [4, 1])
    assert replay.add(SlotRef(0, 1), META) is None and replay.add(SlotRef(2, 1), META) is None
    assert replay.add(SlotRef(3, 9), META) == SlotRef(4, 1)
    assert replay.release_oldest() == SlotRef(1, 1)


def test_targets_agree_with_walking_the_segment(make_columns: MakeColumns) -> None:
    columns = make_columns(4)
    replay, n, gamma = filled(columns, [0, 1, 2, 3]), 3, 0.9
    sample = replay.sample(400, n, gamma, key=7)
    assert (sample.discount == 0).any() and (sample.weight == 1).all()
    for i, name in enumerate(sample.obs[:, 0].astype(int)):
        slot, t, env = name // 100, name // 10 % 10, name % 10
        total, length, ended = 0.0, 0, False
        while length < n and t + length < 6:
            total += gamma**length * columns["reward"][slot, t + length, env]
            length += 1
            ended = columns["terminated"][slot, t + length - 1, env]
            if ended or columns["truncated"][slot, t + length - 1, env]:
                break
        assert sample.n_step_return[i] == pytest.approx(total, abs=1e-5)
        assert sample.next_obs[i, 0] == name + 10 * length
        assert sample.discount[i] == pytest.approx(0.0 if ended else gamma**length)
        assert sample.action[i] == columns["action"][slot, t, env]


def test_draws_depend_on_the_key_and_not_on_slot_numbers(make_columns: MakeColumns) -> None:
    columns = make_columns(8)
    moved = {name: np.roll(value, 3, axis=0) for name, value in columns.items()}
    one = filled(columns, [0, 1, 2, 3, 4])
    other = filled(moved, [3, 4, 5, 6, 7])
    first, again, later = one.sample(50, 2, 0.9, 1), other.sample(50, 2, 0.9, 1), one.sample(50, 2, 0.9, 2)
    np.testing.assert_array_equal(first.obs, again.obs)
    np.testing.assert_array_equal(first.rows, again.rows)
    assert not np.array_equal(first.obs, later.obs)


def test_state_continues_with_the_same_draws(make_columns: MakeColumns) -> None:
    columns = make_columns(6)
    replay = filled(columns, [0, 1, 2, 3, 4, 5])
    successor = SegmentReplay(columns, 4, 1, ReplaySpec())
    successor.load_state(replay.state())
    for slot in (2, 3, 4, 5):
        successor.add(SlotRef(slot, 1), META)
    a, b = replay.sample(64, 1, 0.9, 5), successor.sample(64, 1, 0.9, 5)
    np.testing.assert_array_equal(a.obs, b.obs)
    np.testing.assert_array_equal(a.rows, b.rows)
    np.testing.assert_array_equal(a.generations, b.generations)


def test_empty_and_overfull_are_refused(make_columns: MakeColumns) -> None:
    replay = SegmentReplay(make_columns(2), 2, 1, ReplaySpec())
    with pytest.raises(ValueError, match="empty"):
        replay.sample(1, 1, 0.9, 0)
    with pytest.raises(ArenaError, match="no segment"):
        replay.release_oldest()
