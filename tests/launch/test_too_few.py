"""A run below `min_workers`: paused, reported with who is missing, continued, or over its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.test_host_links import Links, plan_of
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection
from zmqrl.launch.run.end_policy import SETTLE_S, TooFew
from zmqrl.launch.run.reports import LEFT
from zmqrl.launch.status import status_of
from zmqrl.messages.command import SetAllowList

LIMIT_S = 60.0


def links_of(tmp_path: Path, least: int = 3) -> Links:
    """A run with a worker on this machine and two on b, all of them ready."""
    links = Links(plan_of(tmp_path, min_workers=least))
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.0, store=True)
    return links


def ready(links: Links, *indexes: int) -> None:
    for index in indexes:
        links.tell("local" if index == 0 else "b", "ready", role="worker", index=index)


def test_below_min_workers_the_run_pauses_and_continues(tmp_path: Path) -> None:
    links, too_few = links_of(tmp_path), TooFew(LIMIT_S)
    assert too_few.check(links.state, 0.0) is None and too_few.check(links.state, 100.0) is None, "it has not begun"
    ready(links, 0, 1, 2)
    assert too_few.check(links.state, 101.0) is None
    links.tell("b", "agent_exit", code=None, introduced=True)
    assert too_few.check(links.state, 102.0) is None
    assert too_few.check(links.state, 102.0 + SETTLE_S - 0.1) is None, "a worker that is restarted is back by then"
    assert not links.state.paused
    problem = too_few.check(links.state, 102.0 + SETTLE_S)
    assert links.state.paused and status_of(links.state, 0.0, 0.0)["phase"] == "paused"
    for text in ("1 worker is ready, min_workers is 3: b is lost", "for at most limits.too_few_s (60 s)"):
        assert text in str(problem)
    assert too_few.check(links.state, 150.0) is None, "once"
    assert (too_few.is_over(102.0 + LIMIT_S - 1), too_few.is_over(102.0 + LIMIT_S)) == (False, True)
    assert links.state.hosts.assign("b", 2) == (3, 4)
    links.tell("b", "agent", public="other")
    ready(links, 3, 4)
    assert "3 workers are ready again after 48 s" in str(too_few.check(links.state, 150.0))
    assert not links.state.paused and not too_few.is_over(1000.0)


def test_the_broker_is_notified_with_the_list(tmp_path: Path) -> None:
    links = links_of(tmp_path)
    assert not links.allowed().paused
    serial, links.state.pause_cause = links.allowed().serial, "no worker is ready"
    links.step(1.0)
    links.step(2.5)
    assert (links.allowed().paused, links.allowed().serial) == (True, serial + 1)
    links.state.pause_cause = ""
    links.step(4.0)
    assert not links.allowed().paused
    assert len({command.allowed.serial for _, command in links.orchestrator.commands(SetAllowList)}) == serial + 2  # type: ignore[attr-defined]


def test_a_run_that_ends_does_not_pause(tmp_path: Path) -> None:
    links, too_few = links_of(tmp_path), TooFew(LIMIT_S)
    ready(links, 0, 1, 2)
    too_few.check(links.state, 1.0)
    links.state.hosts.ending = True
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert too_few.check(links.state, 10.0) is None and too_few.check(links.state, 20.0) is None


def test_a_run_that_failed_does_not_pause(tmp_path: Path) -> None:
    links, too_few = links_of(tmp_path), TooFew(LIMIT_S)
    ready(links, 0, 1, 2)
    too_few.check(links.state, 1.0)
    links.state.failure = "all rollout workers failed"
    links.tell("b", "agent_exit", code=None, introduced=True)
    assert too_few.check(links.state, 10.0) is None and too_few.check(links.state, 20.0) is None


def test_hosts_that_are_away_are_not_missed(tmp_path: Path) -> None:
    links, too_few = links_of(tmp_path), TooFew(LIMIT_S)
    ready(links, 0, 1, 2)
    too_few.check(links.state, 1.0)
    links.state.hosts["b"].away = "outside its window"
    links.state.hosts.assign("b", 0)
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert too_few.check(links.state, 10.0) is None and too_few.check(links.state, 20.0) is None


@pytest.mark.parametrize(("rejoin", "goes_on"), [("auto", True), ("manual", False)])
def test_the_last_host_is_waited_for_where_it_is_connected_to_again(tmp_path: Path, rejoin: str, goes_on: bool) -> None:
    links = Links(replace(plan_of(tmp_path, rejoin=rejoin), workers={"b": 2}))
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.tell("b", "agent_exit", code=None, introduced=True)
    (problem,) = links.state.problems
    assert (links.state.no_hosts_reason is None) == goes_on
    assert ("the run waits for its return" in str(problem)) == goes_on


@pytest.mark.parametrize(("rejoin", "goes_on"), [("auto", True), ("manual", False)])
def test_a_worker_that_is_not_restarted_is_no_reason_to_stop_waiting_for_a_host(
    tmp_path: Path, rejoin: str, goes_on: bool
) -> None:
    links, too_few = Links(plan_of(tmp_path, rejoin=rejoin)), TooFew(LIMIT_S)
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    ready(links, 0, 1, 2)
    too_few.check(links.state, 0.0)
    died = {"role": "worker", "index": 0, "cause": "exit code 1"}
    links.tell("local", "exit", **died, code=1, expected=False, detail={}, log="", log_tail=[])
    links.tell("local", "restart_limit_reached", **died)
    assert "its vector envs move to the other workers" in str(links.state.problems[-1])
    assert links.state.no_hosts_reason is None
    links.tell("b", "agent_exit", code=None, introduced=True)
    (_, lost) = links.state.problems
    assert ("no host with workers remains" in str(lost), "the run waits for its return" in str(lost)) == (True, goes_on)
    reason = f"all rollout workers failed, the last was local/worker-0: exit code 1\nb: {lost.cause}"
    assert links.state.no_hosts_reason == (None if goes_on else reason)
    too_few.check(links.state, 1.0)
    too_few.check(links.state, 1.0 + SETTLE_S)
    assert links.state.paused


def test_a_run_ends_with_the_last_worker_of_several_hosts(tmp_path: Path) -> None:
    """The agent of one host does not know of the others."""
    links = links_of(tmp_path)
    for index, host in enumerate(("local", "b", "b")):
        assert links.state.no_hosts_reason is None
        links.tell(host, "restart_limit_reached", role="worker", index=index, cause=f"exit code {index}")
    assert "no rollout worker remains; the run ends" in str(links.state.problems[-1])
    assert links.state.no_hosts_reason == "all rollout workers failed, the last was b/worker-2: exit code 2"


def test_where_the_events_of_the_last_host_do_not_come_its_output_is_named(tmp_path: Path) -> None:
    """A host that joined by a connection file; the launcher cannot separate a failure from Ctrl-C there."""
    hosts = {"local": HostSection(workers=0), "b": HostSection(workers=2, manual=True)}
    links = Links(replace(plan_of(tmp_path, hosts=hosts), workers={"b": 2}))
    links.tell("local", "agent", public="server")
    links.tell("local", "host_here", role="broker", index=0, host="b", workers=[0, 1])
    assert links.state.no_hosts_reason is None
    links.tell("local", "host_here", role="broker", index=0, host="b", workers=[])
    assert links.state.no_hosts_reason == f"no usable host left\nb: {LEFT}"


def test_the_loss_of_the_learners_host_is_the_only_reason_while_others_have_workers(tmp_path: Path) -> None:
    links = links_of(tmp_path)
    links.tell("local", "host_failed", cause="no memory", fix="add some")
    assert links.state.no_hosts_reason == "no usable host left\nlocal: no memory\nadd some"


def test_a_run_on_one_host_is_ended_by_its_agent(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path), workers={"local": 1}))
    links.tell("local", "agent", public="server")
    links.tell("local", "restart_limit_reached", role="worker", index=0, cause="exit code 1")
    assert links.state.no_hosts_reason is None
    links.tell("local", "failed", cause="all rollout workers failed")
    assert links.state.failure is not None


def test_a_request_does_not_go_below_min_workers(tmp_path: Path) -> None:
    links = links_of(tmp_path, least=2)
    answer = links.serve(tmp_path, '{"scale": {"b": 0}}', 1.0)
    assert "b=0 is refused: 1 worker would remain, and min_workers is 2. To end the run: zmqrl stop" in answer
    assert '"b: 1 worker"' in links.serve(tmp_path, '{"scale": {"b": 1}}', 3.0)
