"""A drill whose run ends unexpectedly: the cause is noted, whatever faults are in progress."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from zmqrl.drill.faults import Action, Fault, Kind
from zmqrl.drill.inject import Scene
from zmqrl.drill.recovery import Recovery
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.drill.session import MOST_ENDS, Session, _Active


@pytest.mark.parametrize("action", [Action.KILL_END, Action.KILL_RESUME, Action.KILL])
def test_a_run_that_ends_during_a_fault_that_ends_runs_is_noted(tmp_path: Path, action: Action) -> None:
    fault = Fault(0, 0.0, "witness", Kind("learner", action))
    ended = SimpleNamespace(exit_code=4, log_tail=lambda: "its last lines", await_gone=lambda _: None)
    session = Session(cast(RunUnderTest, ended), [fault], tmp_path, _ends=MOST_ENDS - 1)
    recovery = cast(Recovery, SimpleNamespace())
    session._active.append(_Active(fault, cast(Scene, None), 0.0, recovery, 0.0, None))
    session._ended_by_itself()
    (failure,) = session.failures
    assert "exit code 4" in failure and str(fault.kind) in failure and "its last lines" in failure
    assert [outcome.fault for outcome in session.outcomes] == [fault]
