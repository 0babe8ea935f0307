"""How long a launcher waits for a learner that is writing: once asked to stop, and at `run.max_wall_s`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from tests.agent.plans import stand_in_plan
from tests.messages.samples import host_event
from zmqrl.config.codec import replace
from zmqrl.launch.launcher import Launcher
from zmqrl.metrics.recorder import Recorder
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.views.base import View

WRITING = host_event("local", "writing", role="learner", index=0)


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(stand_in_plan(tmp_path / "run"), create_autospec(Orchestrator, instance=True))


def _end_by(launcher: Launcher) -> float | None:
    launcher._take(WRITING, create_autospec(Recorder, instance=True))
    return launcher._deadlines.end_by


def test_each_report_begins_the_time_again(launcher: Launcher) -> None:
    assert _end_by(launcher) is None, "nobody asked it to stop"
    launcher._signals.note(signal.SIGUSR1)
    launcher._pass_requests(create_autospec(View, instance=True), time.monotonic() - 1000.0)
    end_by = _end_by(launcher)
    assert end_by is not None and end_by > time.monotonic()


def test_a_kill_waits_for_nobody(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in (0.0, 10.0):
        monkeypatch.setattr(launcher._signals, "_clock", lambda at=at: at)
        launcher._signals.note(signal.SIGINT)
    launcher._pass_requests(create_autospec(View, instance=True), 5.0)
    before = launcher._deadlines.end_by
    assert before is not None and _end_by(launcher) == before


def test_the_wall_limit_waits_for_a_learner_that_is_writing(launcher: Launcher) -> None:
    """As its host does: its grace begins again with each report."""
    limited = replace(launcher._plan.config.run, max_wall_s=5.0)
    config = replace(launcher._plan.config, run=limited)
    launcher._plan = replace(launcher._plan, config=config, began=time.monotonic() - 100.0)
    _end_by(launcher)
    reported_at = time.monotonic()
    launcher._check_wall_limit(reported_at)
    launcher._check_wall_limit(reported_at + 0.9 * config.limits.grace_s)
    assert launcher._deadlines.end_by is None and not launcher._state.problems
    launcher._check_wall_limit(reported_at + 1.1 * config.limits.grace_s)
    assert launcher._deadlines.end_by is not None
    assert ["max_wall_s" in str(problem) for problem in launcher._state.problems] == [True]
