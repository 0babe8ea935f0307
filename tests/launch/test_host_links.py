"""Boots, the table of hosts and what each agent is told, with an orchestrator that only writes down."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.messages.samples import host_event
from tests.shared_memory.bus_plans import bus_plan
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection, LearnerSection, LimitsSection, SecuritySection
from zmqrl.launch.action_runner import ActionRunner
from zmqrl.launch.connection_file import read_connection_file
from zmqrl.launch.requests import FOLDER
from zmqrl.launch.run.boots import boots
from zmqrl.launch.run.hosts import LEAVE_S
from zmqrl.launch.run.machine import RunMachine
from zmqrl.launch.run.problem_reports import AdvisoryWrites
from zmqrl.launch.run.state import RunState
from zmqrl.launch.status import status_of
from zmqrl.messages.command import Command, Join, SetAllowList, SetWorkers
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.admission import digest_of

LISTENING = {"addresses": ["10.0.0.1"], "ports": (1, 2, 3), "token": "t"}
PATIENT = LimitsSection(start_s=1e6)
"""No start is too late."""
JOIN = Join(["10.0.0.1"], (1, 2, 3), "t", "server", None)


class Notebook(Orchestrator):
    """Starts nothing."""

    def __init__(self) -> None:
        self.deployed: list[Mapping[str, Boot]] = []
        self.sent: list[tuple[str | None, Command]] = []

    def refusal(self, host: str, section: HostSection) -> None:
        return None

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        self.deployed.append(boots)

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        return ()

    def command(self, host: str | None, command: Command) -> None:
        self.sent.append((host, command))

    def undeploy(self, grace_s: float) -> Teardown:
        return Teardown(0)

    def commands(self, kind: type[Command]) -> list[tuple[str | None, Command]]:
        return [(host, command) for host, command in self.sent if isinstance(command, kind)]


def plan_of(run_dir: Path, **config: Any) -> RunPlan:
    plan = bus_plan("sync", vector_envs=6, run_dir=run_dir)
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2), "c": HostSection(workers=0)}
    return replace(
        plan,
        config=replace(plan.config, **{"hosts": hosts, "limits": PATIENT, **config}),
        workers={"local": 1, "b": 2, "c": 0},
    )


class Links:
    """What `Launcher` does with an event."""

    clock = staticmethod(datetime.now)

    def __init__(self, plan: RunPlan) -> None:
        run_dir = Path(plan.run_dir)
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        self.state, self.orchestrator = RunState(plan), Notebook()
        self.machine = RunMachine(plan, self.state, self.orchestrator.refusal, now=0.0)
        files = AdvisoryWrites(run_dir, self.state.note)
        self.actions = ActionRunner(
            self.machine, plan, self.orchestrator, files, run_dir / "private", lambda: self.clock()
        )
        self.actions.begin(0.0)

    def tell(self, host: str, name: str, /, **data: Any) -> None:
        self.actions.take(host_event(host, name, **data), 0.0)

    def step(self, now: float) -> None:
        self.actions.tick(now)

    def listen(self) -> None:
        """The broker reports that it follows the newest allow-list."""
        self.tell("local", "listening", **LISTENING, serial=self.allowed().serial)

    def allowed(self) -> AllowList:
        """The newest that the learner's host was sent."""
        sent = [command for host, command in self.orchestrator.commands(SetAllowList) if host == "local"]
        return sent[-1].allowed if sent else AllowList()

    def serve(self, run_dir: Path, text: str, now: float) -> str:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / "1.json").write_text(text)
        self.step(now)
        return (folder / "1.answer").read_text()


def test_a_request_to_an_earlier_attempt_is_not_carried_out(tmp_path: Path) -> None:
    """Its command was killed, or the launcher was, before it was read."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1.json").write_text('{"scale": {"b": 0}}')
    links = Links(plan_of(tmp_path))
    links.step(1.0)
    assert links.orchestrator.commands(SetWorkers) == []
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.fixture
def links(tmp_path: Path) -> Links:
    return Links(plan_of(tmp_path))


def test_each_host_has_its_workers_and_only_the_learners_host_listens(tmp_path: Path) -> None:
    made = boots(plan_of(tmp_path))
    assert list(made) == ["local", "b"], "c holds nothing"
    local, b = made["local"], made["b"]
    assert (local.workers, b.workers) == ((0,), (1, 2))
    assert (local.streams_logs, b.streams_logs) == (False, True)
    assert (local.neighbours, b.neighbours) == ("ignored", "refused")
    plan = plan_of(tmp_path)
    shared = replace(plan.config.hosts["b"], cores=2)
    plan = replace(plan, config=replace(plan.config, hosts={**plan.config.hosts, "b": shared}))
    assert boots(plan)["b"].neighbours == "ignored", "its cores are given"
    assert (local.keys, b.keys) == (None, None), "keys are made where they are used"
    assert local.listen is not None and b.listen is None
    assert b.plan.run_dir == f"runs/{b.plan.run_id}/b"


def test_one_host_needs_neither_ports_nor_a_list(tmp_path: Path) -> None:
    plan = replace(plan_of(tmp_path), workers={"local": 1})
    (local,) = boots(plan).values()
    assert local.listen is None
    links = Links(plan)
    links.tell("local", "agent", public="server")
    assert links.orchestrator.commands(SetAllowList) == []


def test_ports_and_tunnels(tmp_path: Path) -> None:
    hosts = {"local": HostSection(), "b": HostSection(tunnel=True)}
    listen = boots(plan_of(tmp_path, hosts=hosts, learner=LearnerSection(port=7000)))["local"].listen
    assert listen is not None
    assert (listen.address, listen.ports) == ("127.0.0.1", (7000, 7001, 7002))


@pytest.mark.parametrize("first", ["agent", "broker"])
def test_a_host_joins_once_the_broker_has_its_key(links: Links, first: str) -> None:
    links.tell("local", "agent", public="server")
    if first == "broker":
        links.listen()
    links.tell("b", "agent", public="key")
    assert links.allowed() == AllowList(1, {"key": HostKey("b", 1)})
    links.tell("local", "listening", **LISTENING, serial=0)
    assert links.orchestrator.commands(Join) == [], "its broker follows the list before"
    links.listen()
    assert links.orchestrator.commands(Join) == [("b", JOIN)]
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.5, store=False)
    assert (links.state.hosts["b"].state, links.state.hosts["b"].sees_store) == ("ready", False)
    links.listen()
    assert len(links.orchestrator.commands(Join)) == 1, "the broker was started again; b is in already"


def test_where_a_move_would_end_episodes_the_broker_is_sent_the_workers_not_waited_for(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    env = replace(plan.config.env, recovery="restart_episode")
    links = Links(replace(plan, config=replace(plan.config, env=env)))
    links.tell("local", "agent", public="server")
    assert links.allowed() == AllowList(), "b is waited for"
    links.tell("b", "host_failed", cause="no route", fix="plug it in")
    assert links.allowed() == AllowList(1, absent=("b",))
    more = links.serve(tmp_path, '{"scale": {"local": 3}}', 1.0)
    assert "local: 3 workers" in more and "no vector envs until another worker leaves" in more
    fewer = links.serve(tmp_path, '{"scale": {"local": 1}}', 2.0)
    assert "vector envs" not in fewer


def test_a_named_address_takes_the_place_of_those_found(tmp_path: Path) -> None:
    links = Links(plan_of(tmp_path, learner=LearnerSection(address="gpu.lab")))
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.listen()
    ((_, join),) = links.orchestrator.commands(Join)
    assert isinstance(join, Join) and join.addresses == ["gpu.lab"]


def test_the_broker_is_notified_of_a_lost_host_at_once(links: Links) -> None:
    links.tell("b", "agent", public="key")
    assert links.orchestrator.commands(SetAllowList) == [], "nobody is there to take it"
    links.tell("local", "agent", public="server")
    assert links.allowed() == AllowList(1, {"key": HostKey("b", 1)})
    links.tell("b", "agent_exit", code=None, introduced=True)
    assert links.allowed() == AllowList(2)
    assert links.state.hosts["b"].state == "lost"
    (problem,) = links.state.problems
    assert "the host agent exited (exit unknown)" in str(problem)
    assert links.state.no_hosts_reason is None, "local has a worker"


@pytest.mark.parametrize(("event", "data", "state", "texts"), [
    ("unreachable", {"cause": "port 3 is shut"}, "failed", ("port 3 is shut", "tunnel: true")),
    ("host_failed", {"cause": "no route", "fix": "plug it in"}, "failed", ("no route", "plug it in")),
    ("lease_lost", {"source": "broker"}, "lost", ("no broker heartbeat for limits.host_lease_s (60 s)",)),
])  # fmt: skip
def test_a_lost_host_is_reported_once_with_its_cause(
    links: Links, event: str, data: dict[str, Any], state: str, texts: tuple[str, ...]
) -> None:
    links.tell("b", "agent", public="key")
    links.tell("b", event, **data)
    links.tell("local", "host_lost", host="b")
    links.tell("b", "agent_exit", code=0, introduced=True)
    (problem,) = links.state.problems
    assert links.state.hosts["b"].state == state
    for text in (*texts, "the run continues without this host"):
        assert text in str(problem)


@pytest.mark.parametrize("ending", [False, True], ids=["the run continues", "the run ends"])
def test_a_host_that_exited_cleanly_is_lost_only_when_the_run_continues(tmp_path: Path, ending: bool) -> None:
    """At the end of a run the broker ends the other hosts, which may be known before the learner's last event."""
    links = Links(replace(plan_of(tmp_path, rejoin="manual"), workers={"b": 2}))
    links.tell("b", "agent")
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.0, store=True)
    links.tell("b", "agent_exit", code=0, introduced=True)
    links.step(100.0)
    links.step(100.0 + LEAVE_S - 0.1)
    left, problems = links.state.hosts["b"].state, list(links.state.problems)
    assert (left, problems, links.state.no_hosts_reason) == ("leaving", [], None)
    links.state.hosts.ending = ending
    links.step(100.0 + LEAVE_S + 1.0)
    found = (
        links.state.hosts["b"].state,
        [problem.cause for problem in links.state.problems],
        links.state.no_hosts_reason,
    )
    cause = "the host agent exited (exit code 0)"
    assert found == (("leaving", [], None) if ending else ("lost", [cause], f"no usable host left\nb: {cause}"))


def test_a_host_that_has_just_exited_cleanly_is_connected_to_again(links: Links, tmp_path: Path) -> None:
    links.tell("b", "agent", public="key")
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.0, store=True)
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert "reconnecting" in links.serve(tmp_path, '{"scale": {"b": 2}}', 1.0)
    assert links.orchestrator.commands(SetWorkers) == [], "nobody would read it"


def test_the_end_of_a_former_agent_is_not_that_of_its_successor(links: Links, tmp_path: Path) -> None:
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.tell("local", "host_lost", host="b")
    assert "reconnecting" in links.serve(tmp_path, '{"scale": {"b": 2}}', 1.0)
    assert links.orchestrator.deployed[-1]["b"].workers == (3, 4), "the broker has removed 1 and 2"
    links.tell("b", "lease_lost", source="broker")
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert (links.state.hosts["b"].state, len(links.state.problems)) == ("connecting", 1)
    links.tell("b", "agent", public="other")
    assert links.allowed().hosts == {"other": HostKey("b", 2)}


def test_a_host_that_is_connected_to_again_has_another_key(links: Links, tmp_path: Path) -> None:
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.tell("b", "agent_exit", code=None, introduced=True)
    assert links.state.hosts["b"].cause == "the host agent exited (exit unknown)"
    assert "reconnecting" in links.serve(tmp_path, '{"scale": {"b": 2}}', 1.0)
    assert links.allowed().hosts == {}, "connecting: the former key stays out"
    links.tell("b", "agent", public="other")
    assert links.allowed() == AllowList(3, {"other": HostKey("b", 2)})
    assert links.state.hosts["b"].cause == "", "of its former agent"


def test_at_the_end_of_the_run_no_host_is_removed_from_the_list(links: Links) -> None:
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    links.state.hosts.ending = True
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert links.allowed().hosts == {"key": HostKey("b", 1)}


@pytest.fixture
def manual(tmp_path: Path) -> Links:
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2, manual=True)}
    links = Links(replace(plan_of(tmp_path, hosts=hosts), workers={"local": 1, "b": 2}))
    links.tell("local", "agent", public="server")
    return links


def invitation(tmp_path: Path) -> tuple[Boot, Join]:
    return read_connection_file(tmp_path / "private" / "b.connect")


def test_a_connection_file_has_a_token_of_which_the_list_has_the_digest_and_no_key_of_the_host(
    manual: Links, tmp_path: Path
) -> None:
    manual.listen()
    boot, join = invitation(tmp_path)
    assert (boot.host, boot.workers, boot.keys, join.server) == ("b", (1, 2), None, "server")
    assert join.enrolment is not None and len(base64.urlsafe_b64decode(join.enrolment + "=")) == 32
    assert manual.allowed() == AllowList(1, {}, {hashlib.sha256(join.enrolment.encode()).hexdigest(): "b"})
    manual.listen()
    assert invitation(tmp_path) == (boot, join), "the broker was started again; the file may be on its way"


def test_a_token_admits_the_first_key_that_is_shown_with_it(manual: Links, tmp_path: Path) -> None:
    manual.listen()
    token = digest_of(str(invitation(tmp_path)[1].enrolment))
    manual.tell("local", "enrolled", role="broker", index=0, token="unknown", public="stranger")
    assert manual.allowed().hosts == {}
    for key in ("key", "key", "another"):
        manual.tell("local", "enrolled", role="broker", index=0, token=token, public=key)
        assert manual.allowed() == AllowList(2, {"key": HostKey("b", 1)}, {token: None})
    assert not (tmp_path / "private" / "b.connect").exists()
    manual.tell("local", "host_here", role="broker", index=0, host="b", workers=[1, 2])
    assert manual.state.hosts["b"].state == "ready"


@pytest.mark.parametrize(("event", "more", "state"), [
    ("host_lost", {}, "lost"),
    ("host_here", {"workers": []}, "drained"),
], ids=["lost", "left"])  # fmt: skip
def test_a_host_that_joined_by_a_file_and_left_needs_another_file(
    manual: Links, tmp_path: Path, event: str, more: dict[str, Any], state: str
) -> None:
    manual.listen()
    first = str(invitation(tmp_path)[1].enrolment)
    manual.tell("local", "enrolled", role="broker", index=0, token=digest_of(first), public="key")
    manual.tell("local", "host_here", role="broker", index=0, host="b", workers=[1, 2])
    manual.tell("local", event, role="broker", index=0, host="b", **more)
    assert manual.state.hosts["b"].state == state
    assert manual.allowed().hosts == {}
    assert "once it joins with its new connection file" in manual.serve(tmp_path, '{"scale": {"b": 1}}', 1.0)
    boot, join = invitation(tmp_path)
    assert boot.workers == (3,), "the broker has removed the workers of before"
    second = str(join.enrolment)
    assert manual.allowed().tokens == {digest_of(first): None, digest_of(second): "b"}
    assert len(manual.orchestrator.deployed) == 1, "nothing is started over SSH"
    manual.tell("local", "enrolled", role="broker", index=0, token=digest_of(second), public="other")
    assert manual.allowed().hosts == {"other": HostKey("b", 2)}
    manual.tell("local", "host_here", role="broker", index=0, host="b", workers=[3])
    assert list(manual.state.hosts.workers) == [3]
    noted = manual.state.noted
    manual.tell("local", "host_lost", role="broker", index=0, host="b")
    assert manual.state.noted == noted + 1, "it was ready since the same cause was reported"


@pytest.mark.parametrize("shown", [False, True], ids=["not used", "used without a join"])
def test_a_host_that_has_not_joined_is_given_another_file(manual: Links, tmp_path: Path, shown: bool) -> None:
    manual.listen()
    first = digest_of(str(invitation(tmp_path)[1].enrolment))
    if shown:
        manual.tell("local", "enrolled", role="broker", index=0, token=first, public="key")
        assert manual.state.hosts["b"].state == "joining"
    assert "once it joins with its new connection file" in manual.serve(tmp_path, '{"scale": {"b": 1}}', 1.0)
    boot, join = invitation(tmp_path)
    second = digest_of(str(join.enrolment))
    assert boot.workers == ((3,) if shown else (1,))
    assert (manual.allowed().hosts, manual.allowed().tokens[second]) == ({}, "b")
    assert manual.allowed().tokens.get(first) is None and manual.orchestrator.commands(SetWorkers) == []
    manual.tell("local", "enrolled", role="broker", index=0, token=second, public="other")
    assert list(manual.allowed().hosts) == ["other"]


def test_a_host_that_has_joined_by_a_file_is_drained_and_not_scaled(manual: Links, tmp_path: Path) -> None:
    manual.listen()
    token = digest_of(str(invitation(tmp_path)[1].enrolment))
    manual.tell("local", "enrolled", role="broker", index=0, token=token, public="key")
    manual.tell("local", "host_here", role="broker", index=0, host="b", workers=[1, 2])
    assert "run `zmqrl drain b`, then `zmqrl scale b=3`" in manual.serve(
        tmp_path, '{"scale": {"local": 2, "b": 3}}', 1.0
    )
    assert (manual.state.hosts["b"].state, manual.orchestrator.commands(SetWorkers)) == ("ready", [])
    assert "b: removed from the run" in manual.serve(tmp_path, '{"scale": {"b": 0}}', 3.0)
    assert (manual.state.hosts["b"].state, manual.allowed().hosts) == ("drained", {})
    assert {manual.state.hosts.workers[index].state for index in (1, 2)} == {"ended"}
    manual.tell("local", "host_here", role="broker", index=0, host="b", workers=[1, 2])
    assert manual.allowed().hosts == {}, "a report of before"
    assert "new connection file" in manual.serve(tmp_path, '{"scale": {"b": 1}}', 5.0)
    assert invitation(tmp_path)[0].workers == (3,)


def test_a_host_no_longer_listed_is_refused(manual: Links, tmp_path: Path) -> None:
    manual.listen()
    token = digest_of(str(invitation(tmp_path)[1].enrolment))
    assert "b: removed from the run" in manual.serve(tmp_path, '{"scale": {"b": 0}}', 1.0)
    assert not (tmp_path / "private" / "b.connect").exists()
    manual.tell("local", "enrolled", role="broker", index=0, token=token, public="key")
    assert (manual.allowed().hosts, manual.allowed().tokens) == ({}, {})


def test_a_connection_file_that_cannot_be_written_is_written_by_the_next_scale(manual: Links, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("in the way")
    manual.listen()
    (problem,) = manual.state.problems
    assert manual.state.hosts["b"].state == "failed"
    assert "the connection file cannot be written" in str(problem) and "zmqrl scale b=N" in str(problem)
    assert "cannot be written" in manual.serve(tmp_path, '{"scale": {"b": 2}}', 1.0)
    (tmp_path / "private").unlink()
    assert "new connection file" in manual.serve(tmp_path, '{"scale": {"b": 2}}', 3.0)
    assert invitation(tmp_path)[0].workers == (1, 2)


def test_without_encryption_a_host_joins_without_keys(tmp_path: Path) -> None:
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2, manual=True)}
    plan = plan_of(tmp_path, hosts=hosts, security=SecuritySection(curve="off"))
    links = Links(replace(plan, workers={"local": 1, "b": 2}))
    links.tell("local", "agent", public="server")
    links.listen()
    join = invitation(tmp_path)[1]
    assert (join.server, join.enrolment) == (None, None)
    links.tell("local", "host_here", role="broker", index=0, host="b", workers=[1, 2])
    assert "the launcher cannot remove a manual host; press Ctrl-C in `zmqrl worker` on b" in links.serve(
        tmp_path, '{"scale": {"b": 0}}', 1.0
    )


def test_without_any_host_left_the_run_reports_why(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path), workers={"b": 2}))
    assert links.state.no_hosts_reason is None
    links.tell("b", "host_failed", cause="no route", fix="plug it in")
    assert links.state.no_hosts_reason == "no usable host left\nb: no route"


def test_what_to_do_about_the_learners_host_is_part_of_the_reason(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path, learner=LearnerSection(host="b")), workers={"b": 2}))
    links.tell("b", "host_failed", cause="no route", fix="plug it in")
    assert not links.state.problems
    assert links.state.no_hosts_reason == "no usable host left\nb: no route\nplug it in"


def test_other_hosts_are_unusable_when_none_of_those_of_the_start_was_reached(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path), workers={"local": 1, "b": 2}))
    assert not links.state.hosts.unusable_others
    links.tell("b", "host_failed", cause="no route", fix="plug it in")
    assert [row.host for row in links.state.hosts.unusable_others] == ["b"]
    assert "no other host can be used" in str(links.state.problems[-1])
    joined = Links(replace(plan_of(tmp_path / "2"), workers={"local": 1, "b": 2}))
    joined.tell("b", "agent", public="key")
    joined.tell("b", "agent_exit", code=None, introduced=True)
    assert not joined.state.hosts.unusable_others
    alone = Links(replace(plan_of(tmp_path / "3"), workers={"local": 1}))
    assert not alone.state.hosts.unusable_others


def test_requests_are_served(links: Links, tmp_path: Path) -> None:
    links.tell("b", "agent", public="key")
    assert "local: 2 workers" in links.serve(tmp_path, '{"scale": {"local": 2}}', 1.0)
    assert links.orchestrator.commands(SetWorkers) == [("local", SetWorkers([0, 3]))]
    assert "unknown host 'x'" in links.serve(tmp_path, '{"scale": {"x": 2}}', 3.0)
    for number, text in enumerate(('{"scale": 7}', '{"scale": {"b": "many"}}', "{}")):
        assert "refused" in links.serve(tmp_path, text, 5.0 + 2 * number)
    assert "leave at the end" in links.serve(tmp_path, '{"scale": {"b": 0}}', 20.0)
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert links.state.hosts["b"].state == "drained"
    causes = [problem.cause for problem in links.state.problems]
    assert causes == ["rejected 1 x value", "rejected 1 x fields"], "once per reason, and the end of b is no problem"
    assert links.state.refused_messages == {"value": 2, "fields": 1}
    assert "reconnecting" in links.serve(tmp_path, '{"scale": {"b": 1}}', 22.0)
    assert links.orchestrator.deployed[-1]["b"].workers == (4,)
    assert links.state.hosts["b"].state == "connecting"


def test_a_run_of_one_host_keeps_the_worker_that_did_not_fail(tmp_path: Path) -> None:
    """Its agent fails the run with the last worker that it has; of a worker that leaves it is not the last."""
    links = Links(replace(plan_of(tmp_path), workers={"local": 2}))
    links.tell("local", "restart_limit_reached", role="worker", index=0, cause="exit code 1")
    assert "local: 1 worker" in links.serve(tmp_path, '{"scale": {"local": 1}}', 1.0)
    assert links.orchestrator.commands(SetWorkers) == [("local", SetWorkers([1]))]
    assert links.state.hosts.remaining_workers == 1


def test_a_run_of_one_host_takes_no_other_and_refuses_all_that_was_requested_with_it(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path), workers={"local": 1, "b": 0, "c": 0}))
    before = status_of(links.state, 0.0, 0.0)
    answer = links.serve(tmp_path, '{"scale": {"local": 2, "c": 1}}', 1.0)
    assert "refused" in answer and "c cannot join this run: the run was started on one host" in answer
    assert (len(links.orchestrator.deployed), links.orchestrator.commands(SetWorkers)) == (1, [])
    assert "c: not part of this run" in links.serve(tmp_path, '{"scale": {"c": 0}}', 3.0)
    assert status_of(links.state, 0.0, 0.0) == before


def stored_hosts(tmp_path: Path) -> list[str]:
    return list(json.loads((tmp_path / "config.json").read_text())["config"]["hosts"])


@pytest.mark.parametrize(("host", "request_"), [
    ("c", '{"scale": {"c": 2}}'),
    ("x", '{"scale": {"x": 2}, "hosts": {"x": {"workers": 2, "ssh": "10.0.0.9"}}}'),
], ids=["listed without workers", "not listed"])  # fmt: skip
def test_a_host_joins_the_live_run(links: Links, tmp_path: Path, host: str, request_: str) -> None:
    links.tell("local", "agent", public="server")
    assert f"{host}: connecting, 2 workers" in links.serve(tmp_path, request_, 1.0)
    assert host in stored_hosts(tmp_path), "before it is deployed: `down` finds it there"
    boot = links.orchestrator.deployed[-1][host]
    assert (boot.workers, boot.plan.config.hosts[host].workers, boot.listen) == ((3, 4), 2, None)
    assert boot.plan.run_dir == f"runs/{boot.plan.run_id}/{host}"
    links.tell(host, "agent", public="key")
    assert links.allowed().hosts == {"key": HostKey(host, 1)}
    links.listen()
    assert [to for to, _ in links.orchestrator.commands(Join)] == [host]
    links.tell(host, "joined", address="10.0.0.1", milliseconds=1.5, store=False)
    links.tell(host, "agent_exit", code=None, introduced=True)
    links.step(10.0)
    links.step(20.0)
    assert len(links.orchestrator.deployed) == 3, "it is taken back as a host of the start"


def test_a_host_that_never_joined_is_not_connected_to_again(links: Links, tmp_path: Path) -> None:
    links.serve(tmp_path, '{"scale": {"x": 2}, "hosts": {"x": {}}}', 1.0)
    links.tell("x", "host_failed", cause="no route", fix="plug it in")
    links.step(100.0)
    assert (len(links.orchestrator.deployed), links.state.hosts["x"].cause) == (2, "no route")
    again = '{"scale": {"x": 1}, "hosts": {"x": {"ssh": "10.0.0.9"}}}'
    assert "x: connecting, 1 worker" in links.serve(tmp_path, again, 102.0)
    assert links.orchestrator.deployed[-1]["x"].plan.config.hosts["x"].ssh == "10.0.0.9"


def test_a_host_with_another_section_keeps_counting_its_agents(links: Links, tmp_path: Path) -> None:
    links.tell("local", "agent", public="server")
    links.tell("b", "agent", public="key")
    assert "b is part of this run already (joining)" in links.serve(
        tmp_path, '{"scale": {"b": 1}, "hosts": {"b": {}}}', 1.0
    )
    links.tell("b", "agent_exit", code=None, introduced=True)
    links.serve(tmp_path, '{"scale": {"b": 1}, "hosts": {"b": {"nice": 5}}}', 3.0)
    assert links.orchestrator.deployed[-1]["b"].plan.config.hosts["b"].nice == 5
    links.tell("b", "agent", public="other")
    assert links.allowed().hosts == {"other": HostKey("b", 2)}


@pytest.mark.parametrize(("request_", "why"), [
    ('{"scale": {"b": 1}, "hosts": {"x": {}}}', "states its number of workers"),
    ('{"scale": {"x": 1}, "hosts": {"x": {"workdir": "relative"}}}', "hosts.x.workdir"),
    ('{"scale": {"x": 9}, "hosts": {"x": {}}}', "x=9 gives 12 workers for 6 vector envs"),
])  # fmt: skip
def test_a_host_that_cannot_join_changes_nothing(links: Links, tmp_path: Path, request_: str, why: str) -> None:
    answer = links.serve(tmp_path, request_, 1.0)
    assert "refused" in answer and why in answer
    assert (len(links.orchestrator.deployed), (tmp_path / "config.json").exists()) == (1, False)
    assert "x" not in {row.host for row in links.state.hosts}


def test_a_broker_that_listens_to_tunnels_only_needs_one(tmp_path: Path) -> None:
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2, tunnel=True)}
    links = Links(replace(plan_of(tmp_path, hosts=hosts), workers={"local": 1, "b": 2}))
    answer = links.serve(tmp_path, '{"scale": {"x": 1}, "hosts": {"x": {}}}', 1.0)
    assert "the broker listens only on 127.0.0.1" in answer and "hosts.x.tunnel: true" in answer
    assert "connecting" in links.serve(tmp_path, '{"scale": {"x": 1}, "hosts": {"x": {"tunnel": true}}}', 3.0)


def test_a_manual_host_joins_by_a_new_connection_file(links: Links, tmp_path: Path) -> None:
    links.tell("local", "agent", public="server")
    links.listen()
    answer = links.serve(tmp_path, '{"scale": {"x": 1}, "hosts": {"x": {"manual": true}}}', 1.0)
    assert "once it joins with its new connection file" in answer
    assert read_connection_file(tmp_path / "private" / "x.connect")[0].workers == (3,)
    assert len(links.orchestrator.deployed) == 1


REMOTE_LOG = """
import locale, sys
from pathlib import Path
from tests.launch.test_host_links import Links, plan_of

assert locale.getpreferredencoding(False) != "UTF-8"
links = Links(plan_of(Path(sys.argv[1])))
links.tell("b", "log", name="b-worker-1", text="one\\n")
links.tell("b", "log", name="b-worker-1", text="tw\\xf6 \\U0001f642\\n")
"""


@pytest.mark.whole
def test_a_remote_log_is_kept_as_utf_8_in_every_locale(tmp_path: Path) -> None:
    """The characters come from another host; an error of their encoding is no OSError, and ended the run."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", REMOTE_LOG, tmp_path], env={**os.environ, **ascii_only}, check=True)
    assert (tmp_path / "logs" / "b-worker-1.log").read_text(encoding="utf-8") == "one\ntw\xf6 \U0001f642\n"


def test_a_folder_that_could_not_be_listed_at_the_start_serves_no_earlier_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: Path) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1.json").write_text('{"scale": {"b": 0}}')
    with monkeypatch.context() as away:
        away.setattr(Path, "iterdir", stale)
        links = Links(plan_of(tmp_path))
    links.step(1.0)
    assert links.orchestrator.commands(SetWorkers) == []
