"""A drill of the witness run alone: real processes and faults, half the work of a whole drill."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zmqrl.drill.check import OutsideCheck
from zmqrl.drill.drill import outside_check, run_report
from zmqrl.drill.faults import FaultAction, Kind, PlannedFault
from zmqrl.drill.run_report import RunReport
from zmqrl.drill.runs import WITNESS, DrillRequest, learning_run, record_folder, witness_run
from zmqrl.drill.scenarios import SCENARIOS, Scenario
from zmqrl.drill.session import DrillClock, DrillSession, FaultOutcome


class Drilled(NamedTuple):
    """What came of it."""

    report: RunReport
    outcomes: tuple[FaultOutcome, ...]
    outside: OutsideCheck


def drilled(
    folder: Path,
    scenario: str | Scenario,
    kinds: Sequence[tuple[str, str]],
    plant: str | None = None,
    after_s: float = 0.0,
    apart_s: float = 0.3,
) -> Drilled:
    """`kinds` (role, action) `apart_s` after each other, the first `after_s` after the first version."""
    chosen = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
    request = DrillRequest(chosen, 1, 60.0, folder, len(kinds), plant=plant)
    learning, _ = learning_run(request)
    folder.mkdir(exist_ok=True)
    run = witness_run(request, learning.plan)
    faults = [
        PlannedFault(i, after_s + apart_s * i, WITNESS, Kind(role, FaultAction(action)), hold_s=_hold_s(action))
        for i, (role, action) in enumerate(kinds)
    ]
    session = DrillSession(run, faults, record_folder(folder))
    try:
        session.run(DrillClock(0.1, threading.Barrier(1), threading.Event()))
        return Drilled(run_report(session), tuple(session.outcomes), outside_check(run, record_folder(folder)))
    finally:
        run.kill()


def _hold_s(action: str) -> float:
    if action == "kill-end":
        return 0.02  # a learner without torch has ended 0.1 s after the stop
    return 0.1 if "kill" in action else 1.0
