from __future__ import annotations

from zmqrl.replay.limiter import updates_due


def due(env_steps: int, updates: int, ratio: float = 0.1, most: int = 10**9) -> int:
    return updates_due(env_steps, updates, learning_starts=1000, ratio=ratio, most=most)


def test_nothing_is_due_before_learning_starts() -> None:
    assert due(999, 0) == due(1000, 0) == due(1009, 0) == 0
    assert due(1010, 0) == 1


def test_what_was_done_is_taken_off_and_never_below_zero() -> None:
    assert due(1100, 4) == 6
    assert due(1100, 11) == 0


def test_decimal_ratios_are_exact() -> None:
    assert all(due(1000 + 10 * k, 0) == k for k in range(20_000))
    assert due(1100, 0, ratio=0.29) == 29  # 0.29 * 100 is 28.999999999999996


def test_a_call_may_be_bounded() -> None:
    assert due(100_000, 0, most=16) == 16
