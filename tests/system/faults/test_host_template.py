"""The template of a host dies in a run: processes are replaced as before, by exec, and nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs.references import References
from tests.support.runs.system_plans import SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, assert_same
from tests.support.waiting import WAIT_S
from zmqrl.config.plan import RunPlan
from zmqrl.supervision.process_table import await_gone

Begin = Callable[[RunPlan], PlanRun]
STEPS, ENDLESS = 12_000, 10**8


def _plan(run_dir: Path, steps: int = STEPS) -> RunPlan:
    return system_plan(run_dir, "sync", 2, SLOW_TALLY, steps=steps, schedule_steps=STEPS)


def test_the_run_continues_without_its_template(tmp_path: Path, begin: Begin, reference: References) -> None:
    run = begin(_plan(tmp_path / "run"))
    run.wait_for_updates(4)
    of_template = [run.processes()["worker-0"]]
    os.kill(of_template[0].pid, signal.SIGKILL)
    run.wait_for_successor("worker-0", of_template[0])
    run.kill("template-0")
    for version, victim in ((12, "worker-0"), (20, "broker-0"), (28, "learner-0")):
        run.wait_for_updates(version)
        before = run.processes()[victim]
        os.kill(before.pid, signal.SIGKILL)
        run.wait_for_successor(victim, before)
    assert "template-0" not in run.processes()
    summary = run.done()
    assert summary["restarts"] == 4
    assert_same(summary, reference(_plan(tmp_path / "undisturbed")))
    log = (run.run_dir / "logs" / "local-agent-0.log").read_text()
    assert log.count("the template of this host is lost") == 1


@pytest.mark.parametrize("victims", [["agent-0"], ["template-0", "agent-0"]])
def test_nothing_is_left_of_an_agent_that_dies(tmp_path: Path, begin: Begin, victims: list[str]) -> None:
    run = begin(_plan(tmp_path / "run", ENDLESS))
    run.wait_for_updates(3)
    processes = run.processes()
    for victim in victims:
        os.kill(processes[victim].pid, signal.SIGKILL)
    assert not await_gone(processes.values(), WAIT_S)
    assert run.end()[0] == 4
    assert "host agent of local exited unexpectedly" in run.summary()["error"]
