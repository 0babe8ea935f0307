"""When a wait of the learner ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from zmqrl.config.sections import Config, LimitsSection, RunSection
from zmqrl.learner.counters import EndConditions
from zmqrl.planning.plan_run import plan_run


def test_a_stop_after_the_wall_clock_keeps_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher sends one when rounds are longer than its grace: the run is done, not stopped."""
    config = Config(run=RunSection(max_wall_s=10.0), limits=LimitsSection(grace_s=4.0), algorithm={"kind": "ppo"})
    began, now = time.time(), time.monotonic()
    clock = [0.0]
    end = EndConditions(plan_run(config, tmp_path / "run", began))
    monkeypatch.setattr("time.time", lambda: began + clock[0])
    monkeypatch.setattr("time.monotonic", lambda: now + clock[0])
    clock[0] = 8.0
    end.round_ended()
    clock[0] = 14.0
    end.request_stop()
    assert (end.reason, end.overdue) == ("max_wall_s", None)
    clock[0] = 17.0
    assert end.overdue == "max_wall_s"


def test_steps_of_the_wall_clock_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(run=RunSection(max_wall_s=10.0), algorithm={"kind": "ppo"})
    plan, now = plan_run(config, tmp_path / "run", time.time() - 4.0), time.monotonic()
    end = EndConditions(plan)
    monkeypatch.setattr("time.time", lambda: 4e9)
    monkeypatch.setattr("time.monotonic", lambda: now + 5.0)
    assert (end.reason, EndConditions(plan).reason, end.overdue) == (None, None, None)
    monkeypatch.setattr("time.monotonic", lambda: now + 7.0)
    assert (end.reason, EndConditions(plan).reason) == ("max_wall_s", "max_wall_s"), "4 s had passed before"


def test_the_second_stop_abandons_the_round(tmp_path: Path) -> None:
    config = Config(limits=LimitsSection(grace_s=1000.0), algorithm={"kind": "ppo"})
    end = EndConditions(plan_run(config, tmp_path / "run", time.time()))
    end.request_stop()
    assert (end.reason, end.overdue) == ("stop", None)
    end.request_stop()
    assert end.overdue == "stop"
