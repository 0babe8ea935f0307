from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.replay.reference import DECAY, Acted, check_transitions
from tests.support.raising import fields, raises
from zmqrl.errors import ConfigError
from zmqrl.replay.columns import check_columns
from zmqrl.replay.spec import Prioritised, ReplaySpec

SHAPES = [
    # slots, steps, envs, state_every, spec
    (4, 12, 3, 1, {"length": 4}),
    (5, 12, 2, 2, {"length": 4, "burn_in": 2, "stride": 2}),
    (4, 15, 3, 5, {"length": 5, "stride": 5, "burn_in": 5}),
    (6, 9, 1, 3, {"length": 6, "stride": 3}),
    (4, 8, 2, 8, {"length": 8}),
    (4, 7, 2, 1, {"length": 1, "burn_in": 3, "stride": 1}),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("slots", "steps", "envs", "state_every", "fields"), SHAPES)
@pytest.mark.parametrize("prioritised", [None, Prioritised()])
def test_sequences_are_those_of_walking_the_segments(
    slots: int, steps: int, envs: int, state_every: int, fields: dict[str, Any], prioritised: Any, seed: int
) -> None:
    acted, spec = Acted(slots, steps, envs, seed, state_every), ReplaySpec(prioritised=prioritised, **fields)
    replay = acted.replay(spec, slots - 1, range(slots))  # the first is released
    held, c, rows = [slots - 1, *range(1, slots - 1)], acted.columns, spec.burn_in + spec.length
    numbered = acted.sequences(spec)
    drawable = {
        place * len(numbered) + number: (slot, start, env)
        for place, slot in enumerate(held)
        for number, (start, env) in enumerate(numbered)
        if acted.learned(spec, slot, start, env)
    }
    assert replay.size == len(drawable)
    sample = replay.sample_sequences(300, key=seed)
    assert sample.obs.shape == (rows + 1, 300, 2) and sample.mask.shape == (rows, 300)
    for i, name in enumerate(sample.rows.tolist()):
        slot, start, env = drawable[name]
        for row in range(rows):
            at = slot, start + row, env
            for field in ("action", "reward", "terminated", "truncated", "valid"):
                assert getattr(sample, field)[row, i] == c[field][at]
            assert np.array_equal(sample.obs[row, i], c["obs"][at])
            assert np.array_equal(sample.extras["acted"][row, i], c["acted"][at])
            assert sample.mask[row, i] == (start + row in acted.learned(spec, slot, start, env))
            begins = start + row > 0 and not c["valid"][slot, start + row - 1, env]
            assert sample.reset[row, i] == begins
        assert np.array_equal(sample.obs[rows, i], c["obs"][slot, start + rows, env])
        assert sample.reset[rows, i] == (not c["valid"][slot, start + rows - 1, env])
        assert np.array_equal(sample.state["core"][i], c["state.core"][slot, start // state_every, env])
    assert set(sample.rows.tolist()) == set(drawable)


@pytest.mark.parametrize(("slots", "steps", "envs", "state_every", "fields"), SHAPES)
def test_the_stored_state_unrolled_is_the_state_that_acted(
    slots: int, steps: int, envs: int, state_every: int, fields: dict[str, Any]
) -> None:
    acted, spec = Acted(slots, steps, envs, 7, state_every, end_share=0.3), ReplaySpec(**fields)
    sample = acted.replay(spec, slots, range(slots)).sample_sequences(200, key=1)
    state = sample.state["core"]
    for row in range(len(sample.action)):
        state = np.where(sample.reset[row][:, None], 0.0, state)
        assert np.array_equal(state, sample.extras["acted"][row])
        state = (state * DECAY + sample.obs[row]).astype(np.float32)
    assert sample.reset.any() and not sample.valid.all()


def test_uniform_draws_each_sequence_as_often() -> None:
    acted, spec = Acted(3, 12, 2, 1), ReplaySpec(length=4, stride=2)
    replay = acted.replay(spec, 3, range(3))
    counts = np.bincount(replay.sample_sequences(60_000, key=1).rows)
    counts = counts[counts > 0]
    mean, degrees = counts.mean(), len(counts) - 1
    assert len(counts) == replay.size
    assert ((counts - mean) ** 2 / mean).sum() < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_have_the_extras_of_their_rows(n_step: int) -> None:
    acted = Acted(5, 7, 3, 2)
    replay = acted.replay(ReplaySpec(n_step=n_step), 4, range(5))
    check_transitions(acted, replay.sample(300, n_step, 0.9, 1), [4, 1, 2, 3], n_step, 0.9)


def test_without_extra_columns_samples_have_none() -> None:
    acted = Acted(2, 4, 1, 2)
    for name in ("td", "acted", "state.core"):
        del acted.columns[name]
    acted.columns["env_state"] = np.zeros((2, 1, 1, 9), np.uint8)
    assert acted.replay(ReplaySpec(), 2, [0]).sample(3, 1, 0.9, 0).extras == {}
    sequences = acted.replay(ReplaySpec(length=2), 2, [0]).sample_sequences(3, 0)
    assert sequences.extras == {} and sequences.state == {}


def test_rows_that_are_not_learned_from_make_no_sequence() -> None:
    acted, spec = Acted(1, 6, 1, 2), ReplaySpec(length=2)
    acted.columns["valid"][0, 2:4] = False
    replay = acted.replay(spec, 1, [0])
    assert replay.size == 2 and set(replay.sample_sequences(50, 0).rows.tolist()) == {0, 2}


def test_what_is_not_held_cannot_be_sampled() -> None:
    acted = Acted(1, 6, 1, 2)
    with pytest.raises(ValueError, match="call sample_sequences"):
        acted.replay(ReplaySpec(length=2), 1, [0]).sample(1, 1, 0.9, 0)
    with pytest.raises(ValueError, match=re.escape("set ReplaySpec.length")):
        acted.replay(ReplaySpec(), 1, [0]).sample_sequences(1, 0)
    with pytest.raises(ValueError, match="empty"):
        acted.replay(ReplaySpec(length=2), 1, []).sample_sequences(1, 0)


STATE = {"reward": (12, 2), "state.core": (3, 2, 8), "td": (12, 2), "features": (12, 2, 4)}


@pytest.mark.parametrize(
    ("fields", "shapes", "fault"),
    [
        (
            {"length": 10, "burn_in": 4},
            STATE,
            fields("env.segment_steps", "12", what="is too short for sequences of 14 rows (burn_in 4 + length 10)"),
        ),
        ({"n_step": 13}, STATE, fields("env.segment_steps", "12", fix="it must be at least 13")),
        ({"length": 5}, {"reward": (12, 2)}, fields("env.segment_steps", "12", fix="write 10 or 15")),
        (
            {"length": 6},
            STATE,
            fields(
                "ReplaySpec.stride",
                "6",
                what="must be a multiple of 4, the rows between two states of column state.core",
            ),
        ),
        (
            {"length": 4},
            STATE | {"state.core": (5, 2, 8)},
            fields(what="column state.core: (5, 2, 8): must be (T / k, N, size) with T 12 and N 2"),
        ),
        (
            {"length": 4},
            STATE | {"state.core": (0, 2, 8)},
            fields(what="column state.core: (0, 2, 8): must be (T / k, N, size) with T 12 and N 2"),
        ),
        (
            {"length": 4},
            STATE | {"state.core": (3, 1, 8)},
            fields(what="column state.core: (3, 1, 8): must be (T / k, N, size) with T 12 and N 2"),
        ),
        (
            {"first_priority": "tp"},
            STATE,
            fields("ReplaySpec.first_priority", "'tp'", what="must be an extra column [T, N] of acting(): td"),
        ),
        (
            {"first_priority": "features"},
            STATE,
            fields("ReplaySpec.first_priority", "'features'", what="must be an extra column [T, N] of acting(): td"),
        ),
        (
            {},
            STATE | {"weight": (12, 2)},
            fields("acting", what="extra 'weight' has the name of a field of replay's samples; use another name"),
        ),
        (
            {"length": 4},
            STATE | {"mask": (12, 2)},
            fields("acting", what="extra 'mask' has the name of a field of replay's samples; use another name"),
        ),
        (
            {},
            STATE | {"state.previous": (1, 2, 5)},
            fields("ReplaySpec.length", "0", what="transitions have no previous action and reward"),
        ),
        (
            {"first_priority": "reward"},
            {"reward": (12, 2)},
            fields("ReplaySpec.first_priority", "'reward'", what="must be an extra column [T, N] of acting(): none"),
        ),
    ],
)
def test_what_does_not_fit_a_segment_is_refused(fields: Any, shapes: Any, fault: dict[str, Any]) -> None:
    settings = Prioritised() if "first_priority" in fields else None
    with raises(ConfigError, **fault):
        check_columns(ReplaySpec(prioritised=settings, **fields), shapes)
