"""One version at a time is asked for, and again when nothing comes of it."""

from __future__ import annotations

from zmqrl.agent.remote_data_plane import AGAIN_MAX_S, AGAIN_S, Fetching
from zmqrl.types import Version

ONE, TWO, THREE = (Version(0, n) for n in (1, 2, 3))


def test_a_newer_version_is_requested_after_the_older_arrived() -> None:
    fetching = Fetching()
    fetching.require(ONE)
    assert fetching.due(1, 0.0) == ONE
    fetching.require(TWO)
    fetching.require(THREE)
    assert fetching.due(1, 0.1) is None
    fetching.received(ONE)
    assert fetching.due(1, 0.2) == THREE
    fetching.received(THREE)
    assert fetching.due(1, 9.0) is None


def test_a_newer_one_than_requested_counts() -> None:
    fetching = Fetching()
    fetching.require(ONE)
    assert fetching.due(1, 0.0) == ONE
    fetching.require(TWO)
    fetching.received(THREE)
    assert fetching.due(1, 9.0) is None


def test_the_version_before_is_requested_first() -> None:
    """pipelined: a round may still be acted with it."""
    fetching = Fetching()
    fetching.require(ONE, TWO)
    assert fetching.due(1, 0.0) == ONE
    fetching.received(ONE)
    assert fetching.due(1, 0.1) == TWO
    fetching.received(TWO)
    assert fetching.due(1, 9.0) is None


def test_a_missing_part_is_requested_again_with_back_off() -> None:
    fetching = Fetching()
    fetching.require(ONE)
    asked = [now for now in range(100) if fetching.due(1, float(now)) is not None]
    assert asked == [0, AGAIN_S, 3 * AGAIN_S, 7 * AGAIN_S, 15 * AGAIN_S, 15 * AGAIN_S + AGAIN_MAX_S, 90]


def test_another_broker_is_queried_at_once() -> None:
    fetching = Fetching()
    fetching.require(ONE)
    assert fetching.due(None, 0.0) == ONE
    assert fetching.due(1, 0.1) is None, "who was asked is only now known"
    assert fetching.due(2, 0.2) == ONE
    assert fetching.due(2, 0.3) is None
