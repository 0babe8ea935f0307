"""What the async loop of on-policy algorithms leaves in its last full checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.algorithms.base import OnPolicyLearner
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.config.codec import replace
from zmqrl.learner.async_loop import run_async_on_policy
from zmqrl.learner.counters import Counters, RunProgress
from zmqrl.learner.episodes import EpisodeTracker
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version


def test_segments_that_are_fewer_than_a_batch_are_recorded_and_counted(tmp_path: Path) -> None:
    """A resume continues from both numbers."""
    plan = replace(bus_plan("async", run_dir=tmp_path), batch_segments=4)
    counters = Counters(env_steps=640, rows=[0] * plan.streams, positions=[(-1, 0)] * plan.streams)
    progress = RunProgress(plan, counters, EpisodeTracker(plan.streams, plan.config.env.num_envs))
    taken = [TakenSegment(SlotRef(k, 1), SegmentMeta(SegmentId(k, 0, 0), Version(0, 0), ROWS)) for k in range(2)]
    recorded: list[TakenSegment] = []
    written: list[int] = []
    session: Any = MagicMock(plan=plan, progress=progress, end=SimpleNamespace(reason="stopped"))
    session.source.take.return_value = taken
    session.record.side_effect = recorded.extend
    session.checkpoints.write.side_effect = lambda *_, **__: written.append(counters.env_steps)
    assert run_async_on_policy(session, MagicMock(OnPolicyLearner), None) == "stopped"
    assert (recorded, written) == (taken, [640 + 2 * ROWS])
