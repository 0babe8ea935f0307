"""A drill whose run ends unexpectedly, and how long the run of the preset continues after the faults."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from zmqrl.drill.faults import FaultAction, Kind, PlannedFault
from zmqrl.drill.inject import Scene
from zmqrl.drill.recovery import Recovery
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.drill.session import MOST_ENDS, DrillClock, DrillSession, _Active


@pytest.mark.parametrize("action", [FaultAction.KILL_END, FaultAction.KILL_RESUME, FaultAction.KILL])
def test_a_run_that_ends_during_a_fault_that_ends_runs_is_noted(tmp_path: Path, action: FaultAction) -> None:
    fault = PlannedFault(0, 0.0, "witness", Kind("learner", action))
    ended = SimpleNamespace(exit_code=4, log_tail=lambda: "its last lines", await_gone=lambda _: None)
    session = DrillSession(cast(RunUnderTest, ended), [fault], tmp_path, _ends=MOST_ENDS - 1)
    recovery = cast(Recovery, SimpleNamespace())
    session._active.append(_Active(fault, cast(Scene, None), 0.0, recovery, 0.0, None))
    session._ended_by_itself()
    (failure,) = session.failures
    assert "exit code 4" in failure and str(fault.kind) in failure and "its last lines" in failure
    assert [outcome.fault for outcome in session.outcomes] == [fault]


@pytest.mark.parametrize(
    ("threshold", "rows", "waits"),
    [
        (475.0, [(None, 100), (300.0, 200), (475.0, 300), (500.0, 400)], 2),
        (475.0, [(None, 100), (300.0, 1000), (310.0, 1100)], 1),
        (None, [(None, 100)], 0),
    ],
    ids=["threshold", "budget", "none"],
)
def test_a_run_continues_without_faults_to_its_threshold_or_its_budget(
    tmp_path: Path, threshold: float | None, rows: list[tuple[float | None, int]], waits: int
) -> None:
    waited = 0

    def wait(_: float) -> bool:
        nonlocal waited
        waited += 1
        write()
        return False

    def write() -> None:
        mean, env_steps = rows[waited]
        metrics = {} if mean is None else {"train_return_mean_100": mean}
        (tmp_path / "status.json").write_text(json.dumps({"metrics": metrics, "env_steps": env_steps}))

    write()
    run = cast(RunUnderTest, SimpleNamespace(exit_code=None, run_dir=tmp_path))
    session = DrillSession(run, [], tmp_path, threshold, budget_env_steps=1000)
    session._reach_threshold(DrillClock(1.0, threading.Barrier(1), cast(threading.Event, SimpleNamespace(wait=wait))))
    assert waited == waits
