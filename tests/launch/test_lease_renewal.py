"""The leases of hosts while the launcher waits for a file or a terminal."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import START, stand_in_plan
from tests.launch.test_host_links import Notebook
from tests.support.waiting import until
from zmqrl.config.codec import replace
from zmqrl.launch.launcher import Launcher
from zmqrl.launch.lease_renewal import BLOCKED_S, LeaseRenewal
from zmqrl.messages.command import Command, Lease
from zmqrl.orchestrators.local import LocalOrchestrator
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.views.problem import Problem

LEASE_S = 2.0


def test_leases_are_renewed_every_second_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.launch.lease_renewal.LEASE_EVERY_S", 0.01)
    orchestrator = Notebook()
    leases = LeaseRenewal(orchestrator, 60.0)
    leases.end()
    leases = LeaseRenewal(orchestrator, 60.0)
    leases.start()
    until(lambda: len(orchestrator.sent) > 2, "leases")
    leases.end()
    sent = list(orchestrator.sent)
    assert set(sent) == {(None, Lease())}
    time.sleep(0.05)
    leases.end()
    assert orchestrator.sent == sent


def test_a_launcher_that_does_not_continue_is_reported_once_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = LeaseRenewal(Notebook(), 60.0)
    leases.start()
    begun = time.monotonic()
    assert leases.confirm(begun + BLOCKED_S / 2) is None
    problem = leases.confirm(begun + BLOCKED_S / 2 + 90.0)
    assert problem is not None and "for 90 s" in problem.cause
    assert leases.confirm(begun + BLOCKED_S / 2 + 90.1) is None
    leases.end()


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    leases = LeaseRenewal(Notebook(), 60.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        leases.start()
    leases.end()


def test_an_error_of_the_orchestrator_is_reported_once_and_ends_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.launch.lease_renewal.LEASE_EVERY_S", 0.01)

    class Failing(Notebook):
        def command(self, host: str | None, command: Command) -> None:
            super().command(host, command)
            if len(self.sent) < 4:
                raise KeyError("gpu1")

    orchestrator, problems = Failing(), list[Problem | None]()
    leases = LeaseRenewal(orchestrator, 60.0)
    leases.start()

    def more_leases() -> bool:
        problems.append(leases.confirm(time.monotonic()))
        return len(orchestrator.sent) > 6

    until(more_leases, "leases")
    leases.end()
    (problem,) = filter(None, problems)
    assert problem.cause == "the leases of the hosts cannot be sent: KeyError: 'gpu1'"


def ended(folder: Path, monkeypatch: pytest.MonkeyPatch, blocked_s: float, wait_s: float) -> tuple[int, dict[str, Any]]:
    """Exit code and summary of a run whose file server is away for `blocked_s` once it trains."""
    plan = stand_in_plan(folder / "run", train_s="6")
    limits = replace(plan.config.limits, heartbeat_s=0.2, host_lease_s=LEASE_S)
    store = replace(plan.config.store, wait_s=wait_s)
    plan = replace(plan, config=replace(plan.config, limits=limits, store=store))
    real, is_away = RunDirectory.write, True

    def write(directory: RunDirectory, name: str, data: Mapping[str, Any], durable: bool = False) -> None:
        nonlocal is_away
        if is_away and name == "status.json" and data["phase"] == "running":
            is_away = False
            time.sleep(blocked_s)  # not interrupted, as a hard mount
        real(directory, name, data, durable)

    monkeypatch.setattr(RunDirectory, "write", write)
    launcher = Launcher(
        plan, LocalOrchestrator(agent_command=(sys.executable, START)), RunDirectory.own(plan), plain=True
    )
    code = launcher.run()
    assert not is_away
    return code, json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.whole
def test_a_file_server_that_is_away_for_longer_than_the_lease_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.launch.lease_renewal.BLOCKED_S", 2.0)
    code, summary = ended(tmp_path, monkeypatch, 2 * LEASE_S, wait_s=60.0)
    assert (code, summary["status"], summary["error"]) == (0, "done", None)
    problems = str(json.loads((tmp_path / "run" / "status.json").read_text())["problems"])
    found = re.search(r"it did not continue for (\d+) s", problems)
    assert found is not None and int(found[1]) >= 2 * LEASE_S


@pytest.mark.whole
def test_a_launcher_that_hangs_loses_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, summary = ended(tmp_path, monkeypatch, 3 * LEASE_S, wait_s=1.0)
    assert code == 4 and "no launcher heartbeat for limits.host_lease_s (2 s)" in summary["error"]
