"""In async an on-policy learner that takes over holds what its predecessor held, and trains on the rest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learner.test_kill_points import ALGORITHMS, ROUNDS_HELD, _plan, _run
from zmqrl.config.codec import replace
from zmqrl.learner.reporting import Reporter

ENV_STEPS = 400


@pytest.mark.whole
def test_a_successor_in_async_trains_on_no_segment_that_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed as it publishes version 4; the newest FULL is of version 2, after two batches."""
    held: list[float] = []
    monkeypatch.setattr(Reporter, "observe", lambda _, metrics: held.append(metrics["held"]))
    plan = _plan(tmp_path / "run", ALGORITHMS["held"], "async")
    config = replace(plan.config, run=replace(plan.config.run, total_env_steps=ENV_STEPS))
    plan, batch = replace(plan, config=config), plan.batch_segments
    assert plan.held_segments == ROUNDS_HELD * batch
    names, _ = _run(plan, None, monkeypatch)
    assert names.index("FULL 0-2") < names.index("version 0-4") < names.index("FULL 0-5")
    assert held == [batch * min(n, ROUNDS_HELD) for n in range(1, len(held) + 1)]
    held.clear()
    _run(plan, names.index("version 0-4"), monkeypatch)
    # Of the batches 2, 3 and 4, which are in the arena, FULL has counted the first.
    assert held[:4] == [batch, 2 * batch, 3 * batch, 3 * batch]
    assert held[4:6] == [2 * batch, 3 * batch]
