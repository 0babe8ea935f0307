"""Seconds per segment, from what the workers count."""

from __future__ import annotations

import pytest

from zmqrl.broker.workers import LEAST_S, LEAST_SEGMENTS, WINDOW_S, SegmentTimes


def of(*reports: tuple[float, int, float], spawn: int = 0) -> float | None:
    """`reports`: when, segments and busy seconds since the start of worker 0."""
    times = SegmentTimes()
    for at, segments, busy_s in reports:
        times.report(0, spawn, segments, busy_s, at)
    return times.of(0)


def test_what_is_older_than_the_window_does_not_count() -> None:
    assert of((0.0, 10, 0.0), (WINDOW_S, 20, 10.0), (2 * WINDOW_S, 30, 60.0)) == 5.0
    assert of((0.0, 10, 0.0), (WINDOW_S - 1.0, 20, 10.0), (WINDOW_S, 30, 60.0)) == 3.0


@pytest.mark.parametrize(
    ("at", "segments", "is_known"),
    [
        (LEAST_S, LEAST_SEGMENTS, True),
        (LEAST_S - 0.1, LEAST_SEGMENTS, False),
        (LEAST_S, LEAST_SEGMENTS - 1, False),
    ],
)
def test_little_is_not_enough(at: float, segments: int, is_known: bool) -> None:
    assert of((0.0, 1, 0.0)) is None, "what an env loads does not count"
    found = of((99.0, 0, 0.0), (99.0, 1, 5.0), (99.0 + at, 1 + segments, 5.0 + segments))
    assert found == (1.0 if is_known else None)


def test_a_slow_worker_is_measured_over_more_than_the_window() -> None:
    """Over so many segments at least."""
    assert of(*((30.0 * n, n, 30.0 * n) for n in range(1, 9))) == 30.0


def test_each_process_is_measured_from_its_own_beginning() -> None:
    times = SegmentTimes()
    for spawn, segment_s in ((0, 1.0), (1, 3.0)):
        for n in (1, 5, 9):
            times.report(0, spawn, n, n * segment_s, 100.0 * spawn + n)
        assert times.of(0) == segment_s
        times.report(0, spawn, 9, 99.0, 100.0 * spawn + 50.0)
        assert times.of(0) == segment_s, "nothing new"
