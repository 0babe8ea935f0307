"""How many updates async does between two versions."""

from __future__ import annotations

import pytest

from zmqrl.learner.async_loop import PUBLISH_EVERY_UPDATES, Pace


@pytest.mark.parametrize(
    ("update_s", "publish_s", "most"),
    [
        (0.0005, 0.0005, PUBLISH_EVERY_UPDATES),  # 16 updates take 8 ms
        (0.003, 0.0005, PUBLISH_EVERY_UPDATES),
        (0.01, 0.0005, 5),  # 0.05 s
        (0.01, 0.002, 10),  # 0.1 s, of which 2 ms are 2 %
        (0.04, 0.03, PUBLISH_EVERY_UPDATES),  # a large network, whose version takes 30 ms
        (0.2, 0.0005, 1),
    ],
)
def test_slow_updates_are_published_by_time_and_never_for_more_than_a_small_share_of_it(
    update_s: float, publish_s: float, most: int
) -> None:
    pace = Pace()
    for done in (PUBLISH_EVERY_UPDATES, 1, 3):  # whatever the last version had
        pace.observe(done, done * update_s * 0.999999, publish_s)
        assert pace.most == most


def test_the_pace_recovers_after_a_long_update() -> None:
    """As the first one, which may be compiled."""
    pace = Pace()
    pace.observe(PUBLISH_EVERY_UPDATES, 30.0, 0.001)
    assert pace.most == 1
    pace.observe(1, 0.001, 0.001)
    assert pace.most == PUBLISH_EVERY_UPDATES
