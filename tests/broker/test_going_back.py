"""Learners that die one after the other while vector envs are taken back: the next one knows, and no row is lost."""

from __future__ import annotations

import pytest

from tests.broker.simulated_ends import Source
from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.broker.ledger import StreamLedger
from zmqrl.shared_memory.arena import Arena, LearnerRecord
from zmqrl.types import Version

FIRST, SECOND, THIRD = (n << RESUMED_SHIFT for n in (1, 2, 3))


class Table:
    """Two vector envs, each with its incarnation and next index."""

    def __init__(self, *at: tuple[int, int]) -> None:
        self.arena = Arena.private(bus_plan())
        self.streams = StreamLedger(self.arena, ROWS)
        for vector_env, (incarnation, next_index) in enumerate(at):
            self.streams.hand_over(vector_env, incarnation, next_index)

    def oldest_of_the_third(self, record: LearnerRecord, n: int) -> int:
        """What the third learner takes no segment below of; its FULL is of version `n`."""
        self.arena.write_learner(record)
        return Source(self.arena).reattach(Version(3, n), (), {}).oldest_incarnation


@pytest.mark.parametrize(("followed", "oldest"), [(SECOND + 1, SECOND), (FIRST + 1, THIRD)])
def test_a_vector_env_that_has_not_followed_the_second_makes_the_third_go_back_too(followed: int, oldest: int) -> None:
    """Else it would take segments that the broker is about to give up, or gave up for the second."""
    table = Table((SECOND + 1, 0), (followed, 0))
    assert table.oldest_of_the_third(LearnerRecord(Version(2, 0), 0, 0, SECOND), 0) == oldest


def test_one_that_finds_a_newer_full_than_its_predecessor_goes_forward_to_it() -> None:
    """The predecessor could not read it, and went back to an older one."""
    table = Table((SECOND + 1, 4), (SECOND + 1, 4))
    assert table.oldest_of_the_third(LearnerRecord(Version(2, 4), 0, 0, SECOND), 5) == THIRD


def test_discarded_rows_count_again_with_the_full_that_has_them() -> None:
    table = Table((0, 5), (0, 5))
    record = table.streams.records[0]
    record.stored = record.completed = 40
    assert table.streams.roll_back(0, SECOND, 4, 32)
    assert table.streams.roll_back(0, THIRD, 5, 40)
    ledger = table.arena.ledger()
    assert (ledger.produced, ledger.stored, ledger.dropped["rolled_back"], ledger.balanced) == (40, 40, 0, True)
    assert not table.streams.roll_back(0, THIRD + SECOND, 6, 41), "so many were never stored"
