"""When a run is solved."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.shared_memory.bus_plans import bus_plan
from zmqrl.config.codec import replace
from zmqrl.learner.counters import Counters, RunProgress
from zmqrl.learner.episodes import WINDOW, EpisodeTracker


def test_steps_of_the_clock_change_no_solved_at_wall_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, now = bus_plan("sync", run_dir=tmp_path), time.monotonic()
    plan = replace(plan, env=replace(plan.env, reward_threshold=1.0), began=now - 4.0)
    episodes = EpisodeTracker(plan.streams, plan.config.env.num_envs)
    episodes.returns.extend([2.0] * WINDOW)
    progress = RunProgress(plan, Counters(env_steps=640), episodes)
    monkeypatch.setattr("time.time", lambda: 4e9)
    monkeypatch.setattr("time.monotonic", lambda: now + 3.0)
    progress.advance_version()
    counters = progress.counters
    assert (counters.solved_at_env_steps, counters.solved_at_wall_s) == (640, pytest.approx(7.0))
