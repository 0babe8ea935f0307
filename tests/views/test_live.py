"""The live view on a terminal, as its bytes."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.agent.plans import stand_in_plan
from tests.launch.test_run_state import tell
from zmqrl.launch.run.state import RunState
from zmqrl.launch.status import status_of
from zmqrl.types import Severity
from zmqrl.views import live
from zmqrl.views.base import LastingView, Status, View
from zmqrl.views.plain import PlainView


def test_the_cursor_is_on_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a full line the terminal's echo of Ctrl-C would begin another, and the first line of the view stays."""
    screen = io.StringIO()
    monkeypatch.setattr(live, "Console", lambda: Console(file=screen, force_terminal=True, width=80, height=24))
    state = RunState(stand_in_plan(tmp_path / "run"))
    tell(state, "ready", role="worker", index=0)
    view = live.LiveView()
    for at in range(2):
        view.update(lambda: status_of(state, time.time(), 2.0), float(at))
        assert screen.getvalue().rpartition("\n")[2].strip() == ""
        view.message("a message")
    tell(state, "worker", role="worker", index=0, env_steps=4321, env_steps_per_s=1.0, wait_fraction=0.0, episodes=2)
    view.close(lambda: status_of(state, time.time(), 2.0))
    assert "4,321" in screen.getvalue().rpartition("a message")[2], "the last frame is that of the end"


@pytest.mark.parametrize(
    ("phase", "has_hint"), [("starting", True), ("running", True), ("paused", True), ("ending", False)]
)
def test_the_key_that_stops_a_run_is_shown_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, has_hint: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(live, "Console", lambda: Console(file=screen, force_terminal=True, width=120, height=24))
    status = {**status_of(RunState(stand_in_plan(tmp_path / "run")), time.time(), 2.0), "phase": phase}
    view = live.LiveView()
    view.update(lambda: status, 0.0)
    view.close(lambda: status)
    assert ("Ctrl-C: stop" in screen.getvalue()) is has_hint


def test_the_first_of_the_plain_lines_names_the_run_and_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = stand_in_plan(tmp_path / "run")
    status = status_of(RunState(plan), time.time(), 2.0)
    view = PlainView()
    view.update(lambda: status, 1.0)
    assert capsys.readouterr().out == "", "before the first metrics"
    for now in (2.0, 3.0, 12.5):
        view.update(lambda: {**status, "metrics": {"env_steps_per_s": 10.0}}, now)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"run {plan.run_id}: {plan.config.run.mode}, in {plan.run_dir}"
    assert len(lines) == 2 and all("10/s" in line for line in lines)


class Broken(View):
    """Shows nothing, and is closed."""

    is_closed = False

    def update(self, status: Status, now: float) -> None:
        raise ValueError("a terminal that is not there")

    def message(self, text: str, severity: Severity = "note") -> None:
        raise ValueError("a terminal that is not there")

    def close(self, status: Status) -> None:
        self.is_closed = True
        raise ValueError("a terminal that is not there")


@pytest.mark.parametrize("first", ["update", "message", "close"])
def test_a_view_that_fails_is_replaced_by_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str
) -> None:
    current = {
        **status_of(RunState(stand_in_plan(tmp_path / "run")), time.time(), 2.0),
        "metrics": {"updates_per_s": 1.0},
    }
    broken = Broken()
    view = LastingView(broken)
    calls = {
        "update": lambda: view.update(lambda: current, 1.0),
        "message": lambda: view.message("a message"),
        "close": lambda: view.close(lambda: current),
    }
    calls[first]()
    assert broken.is_closed, "the terminal is as it was"
    for call in calls.values():
        call()
    out, err = capsys.readouterr()
    assert "/run" in out and err.count("a terminal that is not there") == 1
    assert err.count("a message") == (2 if first == "message" else 1)


def test_plain_lines_to_a_stream_that_is_closed_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    monkeypatch.setattr("sys.stderr", closed)
    view = PlainView()
    view.message("a message")
    view.close(dict)
