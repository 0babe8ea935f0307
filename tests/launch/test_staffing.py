"""Windows and other users of hosts: when their workers leave and return."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_host_links import Links, plan_of
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection, YieldSection
from zmqrl.launch.status import host_status
from zmqrl.messages.command import SetWorkers

YIELDS = YieldSection(load=2.0, user_active=True, quiet_s=300.0)


class Run(Links):
    """The launcher's clock is set by the test; b has 2 workers."""

    def __init__(self, folder: Path, time: str, local: int = 1, **config: Any) -> None:
        b = {name: config.pop(name) for name in ("only", "yield_when") if name in config}
        hosts = {"local": HostSection(workers=local), "b": HostSection(workers=2, **b)}
        self.folder, self.now, self.keys = folder, 1000.0, 0
        self.wall = datetime.fromisoformat(f"2026-01-05 {time}")
        plan = replace(plan_of(folder, hosts=hosts, **config), workers={"local": local, "b": 2})
        self.clock = lambda: self.wall
        super().__init__(plan)
        self.tell("local", "agent", public="server")
        self.listen()

    @property
    def b(self) -> dict[str, Any]:
        return host_status(self.state.hosts["b"], 0.0)

    def come(self) -> None:
        self.keys += 1
        self.tell("b", "agent", public=f"key{self.keys}")
        self.listen()
        self.tell("b", "joined", address="a", milliseconds=1.0, store=True)

    def pass_time(self, seconds: float = 1.0, to: str | None = None) -> None:
        self.now += seconds
        self.wall = self.wall + timedelta(seconds=seconds) if to is None else datetime.fromisoformat(f"2026-01-05 {to}")
        self.step(self.now)

    def leave(self) -> None:
        self.tell("b", "agent_exit", code=0, introduced=True)

    def request(self, workers: int) -> str:
        self.now += 1.0
        return self.serve(self.folder, f'{{"scale": {{"b": {workers}}}}}', self.now)

    def workers(self) -> list[tuple[int, bool]]:
        """How many b was to have, and whether its agent was to stay, by every command."""
        sent = [command for host, command in self.orchestrator.commands(SetWorkers) if host == "b"]
        return [(len(command.workers), command.stays) for command in sent if isinstance(command, SetWorkers)]

    def deployed(self) -> list[tuple[int, ...]]:
        """Indexes of b's workers at each of its starts."""
        return [tuple(boots["b"].workers) for boots in self.orchestrator.deployed if "b" in boots]

    def problems(self, text: str) -> int:
        return sum(text in str(problem) for problem in self.state.problems)


def test_a_window_closes_and_opens(tmp_path: Path) -> None:
    run = Run(tmp_path, "06:59:58", only="20:00-07:00")
    run.come()
    run.pass_time()
    assert (run.deployed(), run.workers()) == ([(1, 2)], [])
    run.pass_time()
    run.pass_time()
    assert run.workers() == [(0, False)]
    run.leave()
    reason = "outside its window until 20:00 (hosts.b.only: 20:00-07:00)"
    assert (run.b["state"], run.b["cause"]) == ("away", reason)
    assert run.problems("its workers leave at the end of their segments") == 1
    run.pass_time(to="19:59:59")
    assert len(run.deployed()) == 1
    run.pass_time()
    assert run.deployed() == [(1, 2), (3, 4)]
    run.come()
    assert (run.b["state"], run.b["cause"], run.b["workers"]) == ("ready", "", 2)
    assert run.problems("back with 2 workers") == 1
    run.pass_time()
    assert (len(run.deployed()), run.state.hosts.missing) == (2, [])


def test_a_host_outside_its_window_at_the_start_is_not_connected_to(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", only="20:00-07:00")
    assert run.deployed() == []
    assert (run.b["state"], run.b["workers"], run.state.hosts.missing) == ("away", 0, [])
    assert (run.state.hosts.expected_workers, run.problems("it is not waited for")) == (1, 1)
    run.pass_time(to="20:00")
    assert run.deployed() == [(3, 4)]


def test_a_run_with_all_hosts_outside_of_their_windows_waits(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", local=0, only="20:00-07:00")
    assert run.state.no_hosts_reason is None
    assert (run.state.required_workers, run.state.hosts.expected_workers) == (0, 0)


def test_the_last_host_with_workers_leaves_too(tmp_path: Path) -> None:
    run = Run(tmp_path, "06:59:59", only="20:00-07:00")
    run.come()
    run.state.hosts.assign("local", 0)
    run.pass_time()
    assert run.workers() == [(0, False)]
    run.leave()
    assert run.state.no_hosts_reason is None


def test_a_run_whose_other_workers_are_not_restarted_waits_for_the_window(tmp_path: Path) -> None:
    """As one that has workers on hosts with windows alone."""
    run = Run(tmp_path, "06:59:59", only="20:00-07:00")
    run.come()
    run.tell("local", "restart_limit_reached", role="worker", index=0, cause="exit code 1")
    run.pass_time()
    assert run.workers() == [(0, False)]
    run.leave()
    assert (run.state.no_hosts_reason, run.state.required_workers) == (None, 0)
    run.pass_time(to="20:00")
    assert run.state.required_workers == 1


def test_a_command_counts_until_the_next_edge(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", only="20:00-07:00")
    assert "b: connecting, 1 worker" in run.request(1)
    run.come()
    run.pass_time()
    assert (run.b["state"], run.b["workers"], run.workers()) == ("ready", 1, [])
    run.pass_time(to="20:00")
    assert run.workers() == [(2, False)]
    assert "workers leave" in run.request(0)
    run.leave()
    run.pass_time()
    assert run.b["state"] == "drained"
    run.pass_time(to="07:00")
    run.pass_time(to="20:00")
    assert len(run.deployed()) == 2, "its window has opened again"


def test_a_lost_host_is_not_connected_to_outside_its_window(tmp_path: Path) -> None:
    run = Run(tmp_path, "06:59:00", only="20:00-07:00")
    run.come()
    run.tell("b", "agent_exit", code=None, introduced=True)
    run.pass_time(to="07:00")
    for _ in range(30):
        run.pass_time()
    assert len(run.deployed()) == 1


def test_an_opening_waits_for_the_former_agent_to_end(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:59:59", only="12:00-13:00, 13:00:05-14:00")
    run.come()
    run.pass_time()
    run.pass_time(5)
    assert (run.workers(), len(run.deployed())) == ([(0, False)], 1)
    run.leave()
    run.pass_time()
    assert len(run.deployed()) == 2


def use(run: Run, load: float = 0.0, input_idle_s: float | None = None) -> None:
    run.tell("b", "other_use", load=load, input_idle_s=input_idle_s)
    run.pass_time(5)


@pytest.mark.parametrize("used", [{"load": 2.1}, {"input_idle_s": 3.0}], ids=["load", "input"])
def test_a_host_yields_and_returns(tmp_path: Path, used: dict[str, float]) -> None:
    run = Run(tmp_path, "12:00", yield_when=YIELDS)
    run.come()
    use(run, 2.0, 300.0)
    assert run.workers() == []
    use(run, **used)
    assert run.workers() == [(0, True)]
    assert run.b["state"] == "away" and run.b["cause"].startswith("in use by others: ")
    for _ in range(58):
        use(run)
    assert len(run.workers()) == 1
    use(run)
    use(run)
    assert run.workers() == [(0, True), (2, False)]
    assert (run.b["state"], run.problems("not in use by others for 300 s")) == ("ready", 1)
    assert len(run.deployed()) == 1, "its agent has stayed"


def test_a_host_that_yields_again_and_again_leaves_no_rows_of_workers_that_left(tmp_path: Path) -> None:
    """Its agent stays, and each return has other workers."""
    run, rounds = Run(tmp_path, "12:00", yield_when=YIELDS), 50
    run.come()
    for _ in range(rounds):
        first, second = run.state.hosts["b"].assigned
        for index in (first, second):
            run.tell("b", "started", role="worker", index=index, pid=1, start_time=1, spawn=0)
            run.tell("b", "ready", role="worker", index=index)
        died = {"role": "worker", "index": second, "cause": "exit code 1", "detail": {}, "log": "", "log_tail": []}
        run.tell("b", "exit", **died, code=1, expected=False)
        run.tell("b", "restart", role="worker", index=second, in_s=5.0)
        workers = run.state.hosts.workers
        assert {index: worker.state for index, worker in workers.items()} == {first: "ready", second: "down"}
        use(run, 9.0)
        run.pass_time()
        assert [row.index for row in run.state.hosts.workers.values()] == [first], (
            "the other has no process to wait for"
        )
        run.tell("local", "worker_state", role="worker", index=second, spawn=0, state="lost")
        run.tell("b", "exit", **{**died, "index": first, "cause": "exit code 0"}, code=0, expected=True)
        run.pass_time()
        assert run.state.hosts["b"].processes == {}
        run.pass_time(300.0)
        use(run)
    assert run.workers() == [(0, True), (2, False)] * rounds
    assert run.b["restarts"] == run.state.restarts == rounds


def test_what_is_still_on_its_way_of_a_worker_that_was_removed_makes_no_row(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", yield_when=YIELDS)
    run.come()
    use(run, 9.0)
    for name, data in (("started", {"pid": 1, "start_time": 1, "spawn": 1}), ("ready", {})):
        run.tell("b", name, role="worker", index=1, **data)
    run.tell("b", "restart_limit_reached", role="worker", index=2, cause="exit code 1")
    assert run.state.hosts["b"].processes == {}


def test_a_measurement_counts_once(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", yield_when=YIELDS)
    run.come()
    use(run, 9.0)
    run.pass_time(200.0)
    assert run.workers() == [(0, True)]
    run.pass_time(100.0)
    assert run.workers() == [(0, True), (2, False)]


def test_only_what_is_configured_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", yield_when=YieldSection(load=2.0))
    run.come()
    use(run, 1.0, 0.0)
    assert run.workers() == []


def test_the_agent_of_a_host_in_use_is_connected_to_again_without_workers(tmp_path: Path) -> None:
    run = Run(tmp_path, "12:00", yield_when=YIELDS)
    run.come()
    use(run, 9.0)
    run.leave()  # as at a reboot
    for _ in range(20):
        run.pass_time()
    assert run.deployed() == [(1, 2), ()]
    run.come()
    use(run, 9.0)
    assert (run.b["state"], run.workers()) == ("away", [(0, True)])


def test_a_window_that_closes_ends_the_agent_of_a_host_in_use(tmp_path: Path) -> None:
    run = Run(tmp_path, "06:59:50", yield_when=YIELDS, only="20:00-07:00")
    run.come()
    use(run, 9.0)
    use(run, 9.0)
    assert run.workers() == [(0, True), (0, False)]
    assert "until 20:00" in run.b["cause"]


@pytest.mark.parametrize("rejoin", ["auto", "manual"])
def test_a_host_that_is_lost_while_in_use_returns_once_its_next_agent_has_measured(tmp_path: Path, rejoin: str) -> None:
    run = Run(tmp_path, "12:00", yield_when=YIELDS, rejoin=rejoin)
    run.come()
    use(run, 9.0)
    run.tell("b", "agent_exit", code=None, introduced=True)  # its user has switched it off
    for _ in range(400):
        run.pass_time()
        if run.state.hosts["b"].state == "connecting":
            run.tell("b", "host_failed", cause="no route", fix="wait")
    agents = run.deployed()[1:]
    assert set(agents) <= {()} and bool(agents) == (rejoin == "auto"), "without workers"
    assert run.b["state"] == "away" and run.b["cause"].startswith("not measured since its use by others: load 9")
    assert (run.state.required_workers, run.problems("not in use by others")) == (1, 0)
    run.come()
    run.pass_time()
    assert run.workers() == [(0, True)]
    use(run)
    assert run.workers() == [(0, True), (2, False)]
    assert (run.b["state"], run.problems("back with 2 workers")) == ("ready", 1)


def test_a_host_that_is_drained_while_in_use_stays_drained(tmp_path: Path) -> None:
    """Nobody measures there."""
    run = Run(tmp_path, "12:00", yield_when=YIELDS)
    run.come()
    use(run, 9.0)
    run.request(0)
    run.leave()
    run.pass_time(400.0)
    run.pass_time()
    assert (run.b["state"], len(run.deployed())) == ("drained", 1)
