"""Each check of the orchestrators' suite fails over an orchestrator with the defect that the check is about."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.testing import defective_orchestrators as defects
from zmqrl.errors import ZmqrlError
from zmqrl.testing import deployed, expect, orchestrator
from zmqrl.testing.deployed import Hosts, Machines
from zmqrl.testing.expect import IDLE_S
from zmqrl.testing.orchestrator import ORCHESTRATOR
from zmqrl.wire.runtime_folder import remove_left_folder

pytestmark = pytest.mark.whole
CASES: dict[Callable[..., None], type[Any]] = {
    orchestrator.config_is_a_frozen_dataclass: defects.OtherConfig,
    orchestrator.construction_starts_nothing: defects.StartsEarly,
    orchestrator.no_call_waits_for_a_host: defects.Waits,
    orchestrator.an_early_end_leaves_nothing: defects.EndsLate,
    orchestrator.events_come_in_order: defects.Unordered,
    orchestrator.a_stop_command_ends_the_run: defects.IgnoresStop,
    orchestrator.undeploy_ends_a_running_run: defects.Impatient,
    orchestrator.undeploy_names_what_it_had_to_kill: defects.Secretive,
    orchestrator.undeploy_verifies_after_an_agent_was_killed: defects.Forgetful,
    orchestrator.a_killed_worker_is_started_again: defects.Deaf,
    orchestrator.a_lost_host_is_deployed_again: defects.DeploysOnce,
    orchestrator.a_refusal_is_a_sentence: defects.Wordless,
    orchestrator.cores_answer_for_every_host: defects.Uncounted,
    orchestrator.doctor_examines_every_host: defects.Closed,
    orchestrator.down_ends_a_run_and_reports_it: defects.FindsNothing,
    orchestrator.the_bits_are_those_of_one_machine: defects.OtherSeed,
    orchestrator.nothing_outlives_a_killed_launcher: defects.LeavesOne,
}

OF_OTHERS = (
    orchestrator.a_lost_host_is_deployed_again,
    orchestrator.a_refusal_is_a_sentence,
    orchestrator.cores_answer_for_every_host,
    orchestrator.doctor_examines_every_host,
    orchestrator.down_ends_a_run_and_reports_it,
)
"""Checks of hosts that only the kind reaches."""
FURTHER = (
    orchestrator.an_early_end_leaves_nothing,
    orchestrator.a_stop_command_ends_the_run,
    orchestrator.down_ends_a_run_and_reports_it,
    orchestrator.undeploy_ends_a_running_run,
    orchestrator.undeploy_verifies_after_an_agent_was_killed,
    orchestrator.a_killed_worker_is_started_again,
    orchestrator.a_lost_host_is_deployed_again,
    orchestrator.the_bits_are_those_of_one_machine,
)


class Recording(Machines):
    """Remembers what it was asked about, and ends it."""

    def __init__(self) -> None:
        self.marks: set[str] = set()

    def processes(self, marks: Any) -> Any:
        self.marks |= set(marks)
        return super().processes(marks)

    def end(self) -> None:
        for text in super().processes(self.marks) if self.marks else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text.partition(":")[0]), signal.SIGKILL)
        while defects.LEFT:
            defects.LEFT.pop().wait()
        for run_id in self.marks:
            remove_left_folder(run_id)


@pytest.mark.parametrize(
    "check", [long(check) if check in FURTHER else check for check in CASES], ids=lambda check: check.__name__
)
def test_of_an_orchestrator(check: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = (orchestrator.a_stop_command_ends_the_run, orchestrator.a_killed_worker_is_started_again)
    if check in (*waits, orchestrator.a_lost_host_is_deployed_again, orchestrator.down_ends_a_run_and_reports_it):
        for module in (deployed, orchestrator):
            monkeypatch.setattr(module, "START_S", 6.0)
    monkeypatch.setattr(deployed, "GONE_S", 2.0)
    monkeypatch.setattr(expect, "processes_s", lambda: IDLE_S)  # the defects wait no longer on a busy machine
    kind, machines = f"{defects.__name__}:{CASES[check].__name__}", Recording()
    others = {"node1": {"workers": 1}} if check in OF_OTHERS else {}
    hosts = Hosts(tmp_path, {"orchestrator": {"kind": kind}, "hosts": {"local": {"workers": 1}, **others}}, machines)
    try:
        with pytest.raises((AssertionError, ZmqrlError)):
            check(lambda: hosts)
    finally:
        machines.end()


@pytest.mark.long
def test_a_down_that_reports_nothing_is_found_too(tmp_path: Path) -> None:
    kind, machines = f"{defects.__name__}:{defects.FindsAndReportsNothing.__name__}", Recording()
    workers = {name: {"workers": 1} for name in ("local", "node1")}
    hosts = Hosts(tmp_path, {"orchestrator": {"kind": kind}, "hosts": workers}, machines)
    try:
        with pytest.raises(AssertionError):
            orchestrator.down_ends_a_run_and_reports_it(lambda: hosts)
    finally:
        machines.end()


def test_every_check_has_a_defect_and_a_promise() -> None:
    assert set(ORCHESTRATOR) == set(CASES)
    assert all(check.__doc__ for check in ORCHESTRATOR)
