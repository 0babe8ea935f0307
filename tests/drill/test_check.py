"""The outside check finds a lost row, a doubled row and a foreign one, wherever they are, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.config.codec import replace
from zmqrl.drill.check import Expected, Given, OutsideCheck, check
from zmqrl.drill.witness import ROW, episode_steps, next_digest
from zmqrl.random_streams import episode_seed
from zmqrl.types import Array

SYNC = Expected(seed=3, keyed_by_incarnation=False, vector_envs=2, num_envs=2, segment_steps=16)
ASYNC = replace(SYNC, keyed_by_incarnation=True)
STREAM_ROWS = 200
"""Rows of each env slot: some episodes, cut into segments."""


def _stream(expected: Expected, vector_env: int, env: int, incarnation: int = 0, rows: int = STREAM_ROWS) -> Array:
    """What a faultless run stores of one env slot, with segments of `segment_steps` rows."""
    made = np.zeros(rows, ROW)
    episode = t = digest = 0
    dice = np.random.default_rng(vector_env * 10 + env)
    for i in range(rows):
        keyed = incarnation if expected.keyed_by_incarnation else 0
        seed = episode_seed(expected.seed, vector_env, env, episode, keyed)
        action = int(dice.integers(4))
        made[i] = (vector_env, env, incarnation, i // expected.segment_steps, seed, t, digest, action)
        digest, t = next_digest(digest, action), t + 1
        if t == episode_steps(seed):
            episode, t, digest = episode + 1, 0, 0
    return made


def _run(expected: Expected, incarnation: int = 0) -> Array:
    streams = [_stream(expected, v, e, incarnation) for v in range(2) for e in range(2)]
    rows = np.concatenate(streams)
    return rows[np.argsort(rows["index"], kind="stable")]


def _stepped(parts: Sequence[Array], more: int = 0) -> dict[int, int]:
    """As the envs would say, the last episode of each `more` steps further."""
    found: dict[int, int] = {}
    for row in np.concatenate(parts):
        found[int(row["seed"])] = max(found.get(int(row["seed"]), 0), int(row["t"]) + 1)
    return {seed: min(steps + more, episode_steps(seed)) for seed, steps in found.items()}


def _judge(rows: Array, expected: Expected) -> OutsideCheck:
    return check([Given(rows)], _stepped([_run(expected)]), expected)


@pytest.mark.parametrize("expected", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_faultless_run_holds(expected: Expected) -> None:
    found = _judge(_run(expected), expected)
    assert found.holds and not found.findings
    assert (found.rows, found.streams, found.unstored) == (4 * STREAM_ROWS, 4, 0)


@pytest.mark.parametrize("expected", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("at", [0, 1, 77, 300, 650])
def test_one_lost_row_is_found(expected: Expected, at: int) -> None:
    found = _judge(np.delete(_run(expected), at), expected)
    assert (found.lost, found.doubled) == (1, 0)
    assert "missing" in found.findings[0]


@pytest.mark.parametrize("expected", [SYNC, ASYNC], ids=["sync", "async"])
def test_one_doubled_row_is_found_under_the_same_segment(expected: Expected) -> None:
    rows = _run(expected)
    found = _judge(np.concatenate([rows, rows[100:101]]), expected)
    assert (found.lost, found.doubled, found.foreign) == (0, 1, 0)


@pytest.mark.parametrize("expected", [SYNC, ASYNC], ids=["sync", "async"])
def test_one_doubled_row_is_found_under_another_segment(expected: Expected) -> None:
    rows = _run(expected)
    again = rows[100:101].copy()
    again["index"] += 1
    found = _judge(np.concatenate([rows, again]), expected)
    assert (found.lost, found.doubled) == (0, 1)


def test_a_segment_that_two_incarnations_filled_is_found_in_sync() -> None:
    rows = _run(SYNC)
    again = rows[rows["index"] == 3].copy()
    again["incarnation"] = 1
    found = _judge(np.concatenate([rows, again]), SYNC)
    assert (found.lost, found.doubled) == (0, len(again))


def test_an_action_that_was_not_taken_is_found() -> None:
    rows = _run(SYNC)
    rows["action"][5] = (rows["action"][5] + 1) % 4
    assert _judge(rows, SYNC).foreign == 1


def test_rows_of_another_stream_are_foreign_and_missing_there() -> None:
    rows = _run(SYNC)
    mine = (rows["vector_env"] == 0) & (rows["env"] == 0)
    rows["env"][np.flatnonzero(mine)[40:44]] = 1
    found = _judge(rows, SYNC)
    assert (found.foreign, found.lost) == (4, 4)


def test_a_last_segment_that_is_gone_is_found_by_what_the_envs_stepped() -> None:
    rows = _run(ASYNC)
    cut = rows[rows["index"] < 10]  # of 12 and a half: 40 rows of each env are gone
    found = _judge(cut, ASYNC)
    assert found.lost == 4 * (40 - 16)
    assert found.unstored == 4 * 40


def test_an_open_segment_is_not_a_loss() -> None:
    rows = _run(ASYNC)
    found = check([Given(rows[rows["index"] < 12])], _stepped([rows]), ASYNC)
    assert found.holds and found.unstored == 4 * 8


def test_a_successor_that_repeats_unreleased_leases_is_not_a_duplicate() -> None:
    rows = _run(ASYNC)
    half = rows[rows["index"] <= 6]
    rest = rows[rows["index"] >= 5]
    found = check([Given(half), Given(rest)], _stepped([rows]), ASYNC)
    assert found.holds and found.rows == len(rows)


def test_a_learner_rollback_undoes_the_later_rounds() -> None:
    rows = _run(SYNC)
    first, second = rows[rows["index"] <= 8].copy(), rows[rows["index"] >= 6].copy()
    second["incarnation"] = 1
    found = check([Given(first), Given(second)], _stepped([rows]), SYNC)
    assert found.holds and found.rows == len(rows)


def test_a_learner_that_leaves_a_round_out_is_found() -> None:
    rows = _run(SYNC)
    found = check([Given(rows[rows["index"] <= 5]), Given(rows[rows["index"] >= 7])], _stepped([rows]), SYNC)
    assert found.lost == 4 * 16


@pytest.mark.parametrize("expected", [SYNC, ASYNC], ids=["sync", "async"])
def test_what_the_arena_left_over_counts_once(expected: Expected) -> None:
    rows = _run(expected)
    given, left = rows[rows["index"] <= 11], rows[rows["index"] >= 11]
    found = check([Given(given), Given(left, left_over=True)], _stepped([rows]), expected)
    assert found.holds and found.rows == len(rows)


def test_rounds_that_workers_acted_ahead_of_the_learner_do_not_count() -> None:
    rows, pipelined = _run(SYNC), replace(SYNC, rounds_ahead=1)
    parts = [Given(rows[rows["index"] <= 9]), Given(rows[rows["index"] == 10], left_over=True)]
    found = check(parts, _stepped([rows[rows["index"] <= 11]]), pipelined)
    assert found.holds and found.rows == len(parts[0].rows)
    assert check(parts, _stepped([rows]), pipelined).lost == 4 * 8


def test_incarnations_are_streams_of_their_own_in_async() -> None:
    first, second = _run(ASYNC), _run(ASYNC, incarnation=1)
    found = check([Given(np.concatenate([first, second]))], _stepped([first, second]), ASYNC)
    assert found.holds and found.streams == 8
    lost = check([Given(np.concatenate([first, second[4:]]))], _stepped([first, second]), ASYNC)
    assert lost.lost == 4


def test_an_incarnation_that_stored_nothing_of_what_it_sealed_is_found() -> None:
    first, second = _run(ASYNC), _run(ASYNC, incarnation=1)
    found = check([Given(first)], _stepped([first, second]), ASYNC)
    assert found.lost == 4 * (STREAM_ROWS - 16)


def test_an_attempt_of_which_nothing_was_stored_is_found() -> None:
    first, resumed = _run(ASYNC), _run(ASYNC, incarnation=1 << RESUMED_SHIFT)
    found = check([Given(first)], _stepped([first, resumed]), ASYNC)
    assert found.lost == 4 * (STREAM_ROWS - 16)
