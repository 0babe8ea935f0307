"""The verdict: what makes a drill fail, and that nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zmqrl.config.codec import replace
from zmqrl.drill.check import OutsideCheck
from zmqrl.drill.faults import FaultAction, Kind, PlannedFault, minimums_named
from zmqrl.drill.report import DrillReport, Times
from zmqrl.drill.run_report import RunReport, Threshold
from zmqrl.drill.series import DrillSeries
from zmqrl.drill.session import FaultOutcome
from zmqrl.types import Ledger

LEDGER = {"produced": 9, "stored": 8, "in_flight": 0, "dropped": {"unsealed": 1}, "balanced": True}
RUN = RunReport("learning", "sync", 0, 8, 1, 1, LEDGER, (), ())
OUTSIDE = OutsideCheck(rows=8, streams=1, lost=0, doubled=0, foreign=0, unstored=1)


def _outcome(number: int, role: str, recovered_s: float | None, gone_s: float | None = None) -> FaultOutcome:
    return FaultOutcome(PlannedFault(number, 1.0, "learning", Kind(role, FaultAction.KILL)), 1.0, recovered_s, gone_s)


WHOLE = Ledger(9, 9, 0, {}, 0)
GOOD = DrillReport(
    preset="cartpole-ppo",
    mode="sync",
    seed=1,
    for_s=60.0,
    faults_s=61.0,
    outcomes=(_outcome(0, "broker", 1.0), _outcome(1, "broker", 3.0), _outcome(2, "agent", 5.0, 0.3)),
    runs=(RUN, replace(RUN, name="witness")),
    outside=OUTSIDE,
    ledger_rows=(8, 8),
    threshold=Threshold(475.0, 100, 200, 1000),
)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not recovered": ({"outcomes": (_outcome(0, "broker", None),)}, "broker kill of broker-0 did not recover"),
    "lost": ({"outside": replace(OUTSIDE, lost=1)}, "1 rows lost"),
    "doubled": ({"outside": replace(OUTSIDE, doubled=1)}, "1 doubled"),
    "foreign": ({"outside": replace(OUTSIDE, foreign=1)}, "1 foreign"),
    "ledger rows": ({"ledger_rows": (9, 9)}, "9 to 9 rows are recorded as stored"),
    "no check": ({"outside": None}, "the outside check is missing"),
    "left": ({"runs": (replace(RUN, left=("learning/worker-0 (pid 7)",)),)}, "left behind: learning/worker-0"),
    "ended": ({"runs": (replace(RUN, failures=("the run ended by itself",)),)}, "learning: the run ended by itself"),
    "exit code": ({"runs": (replace(RUN, exit_code=3),)}, "exit code 3"),
    "ledger": ({"runs": (replace(RUN, ledger={**LEDGER, "balanced": False}),)}, "does not balance"),
    "unknown": (
        {"runs": (replace(RUN, ledger={**LEDGER, "dropped": {"unsealed": 0, "unknown": 1}}),)},
        "1 rows are in dropped.unknown",
    ),
    "an attempt's unknown": (
        {"runs": (replace(RUN, ledgers=(Ledger(9, 7, 0, {"unknown": 2}, 0), WHOLE)),)},
        "2 rows are in dropped.unknown",
    ),
    "an attempt's ledger": (
        {"runs": (replace(RUN, ledgers=(Ledger(9, 7, 0, {}, 0), WHOLE)),)},
        "the ledger of an attempt does not balance",
    ),
    "too few": ({"at_least": minimums_named(["broker:kill=3"])}, "2 faults broker:kill, and --at-least requires 3"),
    "not injected": (
        {"at_least": minimums_named(["agent:kill=1"]), "outcomes": (replace(GOOD.outcomes[2], injected=False),)},
        "0 faults agent:kill",
    ),
    "no ledger": ({"runs": (replace(RUN, ledger=None),)}, "the ledger is missing"),
    "threshold": ({"threshold": Threshold(475.0, None, 1000, 1000)}, "threshold was not reached"),
}


def test_a_good_drill_passes() -> None:
    assert (GOOD.exit_code, GOOD.faults) == (0, ())
    assert "no row lost, no row stored twice" in str(GOOD)


@pytest.mark.parametrize(("change", "says"), BAD.values(), ids=BAD)
def test_each_fault_fails_the_drill_and_is_named(change: dict[str, Any], says: str) -> None:
    report = replace(GOOD, **change)
    assert report.exit_code == 1
    assert len(report.faults) == 1 and says in report.faults[0]
    assert says in str(report)


@pytest.mark.parametrize("threshold", [Threshold(None, None, 1000, 1000), Threshold(475.0, None, 999, 1000)])
def test_a_threshold_that_could_not_be_reached_fails_nothing(threshold: Threshold) -> None:
    assert replace(GOOD, threshold=threshold).exit_code == 0


def test_a_run_without_a_summary_is_described() -> None:
    report = replace(GOOD, runs=(replace(RUN, exit_code=None, env_steps=None, restarts=None, ledger=None),))
    assert "learning: sync, 1 attempt, the last one without a summary" in str(report).splitlines()
    assert report.exit_code == 1


def test_the_table_has_each_kind_and_each_role() -> None:
    lines = {(line.role, line.kind): line for line in GOOD.lines()}
    assert set(lines) == {("agent", "kill"), ("agent", None), ("broker", "kill"), ("broker", None)}
    broker = lines["broker", None]
    assert (broker.injected, broker.recovered, broker.gone_max_s) == (2, 2, None)
    assert (broker.alone, broker.overlapping) == (Times(2, 2.0, 3.0), Times(0, None, None))
    assert lines["agent", "kill"].gone_max_s == 0.3


def test_a_kill_of_several_roles_counts_for_each_and_reports_the_spread() -> None:
    both = FaultOutcome(
        PlannedFault(3, 1.0, "witness", Kind("broker+learner", FaultAction.KILL)), 1.0, 2.0, spread_s=0.00012
    )
    report = replace(GOOD, outcomes=(*GOOD.outcomes, both), at_least=minimums_named(["broker:kill=3"]))
    assert report.exit_code == 0
    assert "at least 3 broker:kill: 3" in str(report)
    assert "several processes at once: within 0.12 ms (p50), 0.12 ms (max)" in str(report)


def test_overlapped_faults_are_separate_and_what_ends_the_attempt_is_no_part_of_a_role_as_a_whole() -> None:
    slow = replace(_outcome(3, "broker", 9.0), overlapped=True)
    ended = FaultOutcome(PlannedFault(4, 1.0, "witness", Kind("broker", FaultAction.KILL_END)), 1.0, 30.0)
    report = replace(GOOD, outcomes=(*GOOD.outcomes, slow, ended))
    lines = {(line.role, line.kind): line for line in report.lines()}
    kills = lines["broker", "kill"]
    assert (kills.recovered, kills.alone, kills.overlapping) == (3, Times(2, 2.0, 3.0), Times(1, 9.0, 9.0))
    assert lines["broker", None].overlapping.max_s == 9.0
    assert lines["broker", "kill-end"].alone.max_s == 30.0
    row = next(row for row in str(report).splitlines() if row.startswith("broker") and " kill " in row)
    assert row.split() == ["broker", "kill", "3", "3", "2", "2.00", "3.00", "1", "9.00", "9.00", "-"]
    data = next(line for line in report.data()["table"] if (line["role"], line["kind"]) == ("broker", "kill"))
    assert (data["recovered"], data["alone"]["p50_s"], data["overlapping"]["p50_s"]) == (3, 2.0, 9.0)


def test_a_series_has_a_row_for_each_scenario_and_fails_with_any_of_them() -> None:
    good = DrillSeries({"ppo-sync": GOOD, "dqn-sync": GOOD})
    assert good.exit_code == 0 and good.kills("broker") == 4
    bad = DrillSeries({"ppo-sync": GOOD, "dqn-sync": replace(GOOD, outside=replace(OUTSIDE, lost=7))})
    assert bad.exit_code == 1
    rows = str(bad).splitlines()
    assert any(row.startswith("dqn-sync") and row.endswith("FAIL") for row in rows)
    assert any(row.startswith("ppo-sync") and row.endswith("pass") for row in rows)
    assert any(row.startswith("FAULT: dqn-sync: outside check: 7 rows lost") for row in rows)
    assert json.loads(json.dumps(bad.data()))["kills"] == {"worker": 0, "broker": 4, "learner": 0, "agent": 2}


def test_the_json_holds_all_of_it() -> None:
    data = json.loads(json.dumps(GOOD.data()))
    assert data["verdict"] == "pass" and data["faults"] == []
    assert [o["recovered_s"] for o in data["outcomes"]] == [1.0, 3.0, 5.0]
    assert data["outside"]["holds"] is True
    assert data["threshold"]["reached"] is True
    assert {line["role"] for line in data["table"]} == {"agent", "broker"}
    assert [run["name"] for run in data["runs"]] == ["learning", "witness"]
