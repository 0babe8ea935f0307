"""A part is stopped for a while (SIGSTOP): memory stays bounded, nothing is lost, nobody is declared dead."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.runs.references import References
from tests.support.runs.system_plans import IDLE_DQN, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import SAME, PlanRun
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import LimitsSection
from zmqrl.supervision.process_table import ProcessId
from zmqrl.types import ModeName

Begin = Callable[[RunPlan], PlanRun]
STOPPED_S = 3.0
"""Many heartbeats, and less than what makes somebody lost."""
LIMITS = LimitsSection(heartbeat_s=0.1, lost_after_s=30.0, stalled_after_s=60.0, grace_s=5.0)
MOST_GROWTH_MB = 24.0
KINDS: Mapping[str, tuple[ModeName, Mapping[str, Any], int]] = {
    "async-dqn": ("async", IDLE_DQN, 20_000),
    "sync": ("sync", SLOW_TALLY, 8_000),
}


def _rss_mb(process: ProcessId) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _stop_for_a_while(run: PlanRun, place: str) -> None:
    """And look at the memory of the others, while they wait and once everything goes on."""
    processes = run.processes()
    stopped = processes[place]
    before_mb = {name: _rss_mb(process) for name, process in processes.items()}
    os.kill(stopped.pid, signal.SIGSTOP)
    until = time.monotonic() + STOPPED_S
    try:
        while time.monotonic() < until:
            assert run.process.poll() is None, "the run ended"
            time.sleep(0.1)
        during_mb = {name: _rss_mb(process) for name, process in processes.items()}
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    grown = {name: during_mb[name] - before_mb[name] for name in before_mb}
    assert max(grown.values()) < MOST_GROWTH_MB, grown


@pytest.mark.parametrize(
    ("kind", "place"),
    [long("async-dqn", "learner-0"), ("sync", "broker-0"), long("async-dqn", "broker-0"), long("sync", "learner-0")],
)
def test_a_part_that_is_stopped_and_continued(
    tmp_path: Path, begin: Begin, reference: References, kind: str, place: str
) -> None:
    mode, algorithm, steps = KINDS[kind]
    run = begin(system_plan(tmp_path / "run", mode, 2, algorithm, steps=steps, limits=LIMITS))
    run.wait_for_updates(8)
    _stop_for_a_while(run, place)
    summary = run.done()
    ledger = summary["ledger"]
    assert ledger["balanced"], ledger
    assert sum(ledger["dropped"].values()) - ledger["dropped"]["unsealed"] == 0
    assert ledger["stored"] == summary["env_steps"]
    assert summary["restarts"] == 0
    assert summary["updates_lost"] == 0
    if mode == "sync":
        straight = reference(run.plan)
        assert {n: summary[n] for n in SAME} == {n: straight[n] for n in SAME}
