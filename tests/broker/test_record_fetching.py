"""What a worker asks for, and when it asks again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from zmqrl.broker.env_records import AGAIN_MAX_S, RecordFetching, pack_record
from zmqrl.broker.events import StreamAssignment
from zmqrl.envs.base import EnvSlotState

ASSIGNMENTS = [StreamAssignment(vector_env, 1, 7, ()) for vector_env in range(2)]
RECORD = pack_record((EnvSlotState(3, np.arange(40)),))
REFUSED: list[str] = []
AWAITED = [(assignment, len(RECORD)) for assignment in ASSIGNMENTS]


@pytest.fixture
def fetching() -> RecordFetching:
    made = RecordFetching(1.0, REFUSED.append)
    made.expect(AWAITED)
    return made


def test_nothing_is_requested_without_assignments() -> None:
    assert RecordFetching(1.0, REFUSED.append).due(0.0) == []


def test_requests_start_at_once_and_back_off(fetching: RecordFetching) -> None:
    times = [now for now in range(200) if fetching.due(float(now))]
    assert times[:6] == [0, 1, 3, 7, 15, 31]
    assert {b - a for a, b in pairwise(times[6:])} == {AGAIN_MAX_S}


def test_a_new_part_brings_the_next_request_at_once(fetching: RecordFetching) -> None:
    assert fetching.due(0.0) == [(0, 1, 0), (1, 1, 0)]
    assert fetching.take([[0, 1, 0, RECORD[:9]]]) == []
    assert fetching.due(0.1) == [(0, 1, 9), (1, 1, 0)]
    assert fetching.take([[0, 1, 0, RECORD[:9]]]) == []
    assert fetching.due(0.2) == [], "that part was there already"


def test_whole_records_become_assignments(fetching: RecordFetching) -> None:
    (assignment,) = fetching.take([[0, 1, 0, RECORD], [1, 1, 0, RECORD[:9]]])
    assert (assignment.vector_env, assignment.incarnation, assignment.next_index) == (0, 1, 7)
    assert assignment.states is not None and np.array_equal(assignment.states[0].actions, np.arange(40))  # type: ignore[arg-type]
    assert fetching.due(0.0) == [(1, 1, 9)]


def test_newer_assignments_drop_what_they_lack_and_keep_what_came(fetching: RecordFetching) -> None:
    fetching.take([[1, 1, 0, RECORD[:9]]])
    fetching.expect([AWAITED[1], (StreamAssignment(0, 2, 8, ()), 5)])
    assert sorted(fetching.due(0.0)) == [(0, 2, 0), (1, 1, 9)]
    assert fetching.take([[0, 1, 0, RECORD]]) == []


def test_an_invalid_record_is_requested_again(fetching: RecordFetching) -> None:
    REFUSED.clear()
    (assignment,) = fetching.take([[0, 1, 0, b"\xc1" * len(RECORD)], [1, 1, 0, RECORD]])
    assert (assignment.vector_env, REFUSED) == (1, ["record"])
    assert fetching.due(0.0) == [(0, 1, 0)]
