"""Each scenario and each fault that it strains, on real witness runs; and planted defects, which must be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drill.witness_drills import drilled
from tests.support.marks import long
from tests.support.raising import raises
from zmqrl.drill.report import DrillReport
from zmqrl.drill.run_report import Threshold
from zmqrl.drill.scenarios import SCENARIOS, scenario_named
from zmqrl.errors import ConfigError

pytestmark = pytest.mark.whole
FAULTS: dict[str, list[tuple[str, str]]] = {
    "ppo-sync": [("run", "store-away"), ("agent", "kill-end")],
    "dqn-sync": [
        ("worker+broker+learner", "kill"),
        ("learner", "kill-start"),
        ("agent", "kill-resume"),
        ("learner", "kill-end"),
    ],
    "dqn-async-0.02": [("worker+broker", "pause"), ("learner", "kill-resume")],
    "dqn-async-0.25": [("broker+learner", "kill"), ("run", "no-space"), ("broker", "kill-end")],
    "ppo-async": [("worker", "kill-start"), ("agent", "kill-resume")],
    "one-vector-env": [("worker", "kill"), ("broker+learner", "pause"), ("worker", "kill-end")],
    "short-segments": [("broker", "kill-start"), ("run", "pause"), ("launcher", "kill-end")],
    "ppo-pipelined": [("worker+broker+learner", "kill"), ("run", "store-away"), ("agent", "kill-end")],
    "dqn-pipelined": [("worker+broker", "pause"), ("learner", "kill-start"), ("agent", "kill-resume")],
}
STORE_THEN_LEARNER = [("run", "store-away"), ("learner", "kill")]
KILL_AWAY = [("learner", "kill-away")]
LEARNER_THEN_STORE = [("learner", "kill"), ("run", "store-away")]


@pytest.mark.long
@pytest.mark.parametrize("scenario", FAULTS)
def test_nothing_is_lost_and_nothing_doubled(tmp_path: Path, scenario: str) -> None:
    run, outcomes, outside = drilled(tmp_path / "d", scenario, FAULTS[scenario])
    assert not run.faults, run
    assert [(o.fault.kind.role, o.fault.kind.action.value) for o in outcomes] == FAULTS[scenario]
    assert all(o.recovered_s is not None and o.injected for o in outcomes), outcomes
    assert outside.holds and outside.rows > 100, outside
    assert all(o.spread_s > 0 for o in outcomes if "+" in o.fault.kind.role), outcomes


@pytest.mark.parametrize(
    ("scenario", "kinds"),
    [
        long("dqn-sync", STORE_THEN_LEARNER),
        long("dqn-async-0.25", LEARNER_THEN_STORE),
        ("dqn-sync", KILL_AWAY),
        long("dqn-async-0.25", STORE_THEN_LEARNER),
        long("dqn-sync", LEARNER_THEN_STORE),
        long("dqn-async-0.25", KILL_AWAY),
    ],
)
def test_a_learner_that_dies_while_the_store_is_away_loses_nothing(
    tmp_path: Path, scenario: str, kinds: list[tuple[str, str]]
) -> None:
    run, outcomes, outside = drilled(tmp_path / "d", scenario, kinds, after_s=1.0, apart_s=0.0)
    assert not run.faults, run
    assert len(outcomes) == len(kinds)
    assert all(o.recovered_s is not None and o.injected for o in outcomes), outcomes
    assert all(o.overlapped for o in outcomes) == (len(kinds) == 2), outcomes
    assert outside.holds and outside.rows > 100, outside


def test_every_scenario_is_drilled_here() -> None:
    assert FAULTS.keys() == SCENARIOS.keys()
    with raises(ConfigError, key=("--scenario",), value="'ppo-snyc'", what="unknown"):
        scenario_named("ppo-snyc")


@pytest.mark.parametrize(
    ("plant", "scenario"), [("lose", "ppo-sync"), long("double", "dqn-async-0.25"), long("tear", "dqn-sync")]
)
def test_a_planted_defect_is_found_and_named(tmp_path: Path, plant: str, scenario: str) -> None:
    run, outcomes, outside = drilled(tmp_path / "d", scenario, [("worker", "pause")], plant, after_s=1.5)
    threshold = Threshold(None, None, 0, 0)
    report = DrillReport(
        "cartpole-ppo", run.mode, 1, 60.0, 3.0, outcomes, (run,), outside, None, threshold, plant=plant
    )
    assert report.exit_code == 1
    assert [fault for fault in report.faults if fault.startswith("outside check: ")], report
    assert {"lose": outside.lost, "double": outside.doubled, "tear": outside.lost}[plant] > 0
    assert outside.findings
