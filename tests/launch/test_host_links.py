"""Boots, the table of hosts and what each agent is told, with an orchestrator that only writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.messages.samples import host_event
from tests.shared_memory.bus_plans import bus_plan
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import HostSection, LearnerSection, SecuritySection
from zmqrl.launch.boots import boots
from zmqrl.launch.host_links import HostLinks
from zmqrl.launch.requests import FOLDER
from zmqrl.launch.run_state import RunState
from zmqrl.launch.status import status_of
from zmqrl.messages.agent import Command, Gone, Hold, Join, Lease
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown

LISTENING = {"addresses": ["10.0.0.1"], "ports": (1, 2, 3), "token": "t"}


class Notebook(Orchestrator):
    """Starts nothing."""

    def __init__(self) -> None:
        self.deployed: list[Mapping[str, Boot]] = []
        self.told: list[tuple[str | None, Command]] = []

    def deploy(self, boots: Mapping[str, Boot]) -> None:
        self.deployed.append(boots)

    def monitor(self, timeout_s: float) -> Sequence[HostEvent]:
        return ()

    def command(self, host: str | None, command: Command) -> None:
        self.told.append((host, command))

    def undeploy(self, grace_s: float) -> Teardown:
        return Teardown(0)

    def commands(self, kind: type[Command]) -> list[tuple[str | None, Command]]:
        return [(host, command) for host, command in self.told if isinstance(command, kind)]


def plan_of(run_dir: Path, **config: Any) -> RunPlan:
    plan = bus_plan("sync", vector_envs=6, run_dir=run_dir)
    hosts = {"local": HostSection(workers=1), "b": HostSection(workers=2), "c": HostSection(workers=0)}
    return replace(
        plan, config=replace(plan.config, **{"hosts": hosts, **config}), workers={"local": 1, "b": 2, "c": 0}
    )


class Links:
    """What `Launcher` does with an event."""

    def __init__(self, plan: RunPlan) -> None:
        (Path(plan.run_dir) / "logs").mkdir(parents=True)
        self.state, self.orchestrator = RunState(plan), Notebook()
        self.links = HostLinks(plan, self.state, self.orchestrator, Path(plan.run_dir) / "private")
        self.links.deploy()

    def tell(self, host: str, name: str, /, **data: Any) -> None:
        event = host_event(host, name, **data)
        self.state.handle(event)
        self.links.take(event)

    def serve(self, run_dir: Path, text: str, now: float) -> str:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / "1.json").write_text(text)
        self.links.renew(now)
        return (folder / "1.answer").read_text()


@pytest.fixture
def links(tmp_path: Path) -> Links:
    return Links(plan_of(tmp_path))


def test_each_host_is_told_its_own_keys_and_only_the_learners_host_listens(tmp_path: Path) -> None:
    made = boots(plan_of(tmp_path))
    assert list(made) == ["local", "b"], "c holds nothing"
    local, b = made["local"], made["b"]
    assert (local.workers, b.workers) == ((0,), (1, 2))
    assert (local.streams_logs, b.streams_logs) == (False, True)
    assert (local.neighbours, b.neighbours) == ("ignored", "refused")
    assert local.keys is not None and b.keys is not None
    assert b.keys.server_secret == "" and b.keys.secret and not b.keys.allowed
    assert local.keys.allowed == {b.keys.public: "b"} and local.keys.server_secret
    assert local.listen is not None and b.listen is None
    assert b.plan.run_dir == f"runs/{b.plan.run_id}/b"
    assert b.keys.secret not in repr(b) and local.keys.server_secret not in repr(local)


def test_one_host_needs_neither_keys_nor_ports(tmp_path: Path) -> None:
    plan = replace(plan_of(tmp_path), workers={"local": 1})
    (local,) = boots(plan).values()
    assert (local.keys, local.listen) == (None, None)


def test_ports_and_tunnels(tmp_path: Path) -> None:
    hosts = {"local": HostSection(), "b": HostSection(tunnel=True)}
    listen = boots(plan_of(tmp_path, hosts=hosts, learner=LearnerSection(port=7000)))["local"].listen
    assert listen is not None
    assert (listen.address, listen.ports) == ("127.0.0.1", (7000, 7001, 7002))
    assert boots(plan_of(tmp_path, security=SecuritySection(curve="off")))["b"].keys is None


@pytest.mark.parametrize("first", ["agent", "broker"])
def test_both_orders_lead_to_one_join(links: Links, first: str) -> None:
    said = [lambda: links.tell("b", "agent"), lambda: links.tell("local", "listening", **LISTENING)]
    for tell in said if first == "agent" else reversed(said):
        assert links.orchestrator.commands(Join) == []
        tell()
    join = Join(["10.0.0.1"], (1, 2, 3), "t")
    assert links.orchestrator.commands(Join) == [("b", join)]
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.5, store=False)
    assert (links.state.hosts["b"].state, links.state.hosts["b"].sees_store) == ("ready", False)
    links.tell("local", "listening", **LISTENING)
    assert len(links.orchestrator.commands(Join)) == 1, "the broker was started again; b is in already"


def test_a_named_address_takes_the_place_of_those_found(tmp_path: Path) -> None:
    links = Links(plan_of(tmp_path, learner=LearnerSection(address="gpu.lab")))
    links.tell("local", "listening", **LISTENING)
    links.tell("b", "agent")
    ((_, join),) = links.orchestrator.commands(Join)
    assert isinstance(join, Join) and join.addresses == ["gpu.lab"]


def test_who_has_gone_the_broker_is_told_at_once(links: Links) -> None:
    links.tell("b", "agent")
    for index in (1, 2):
        links.tell("b", "started", role="worker", index=index, pid=1, start_time=1, spawn=0)
    links.tell("b", "agent_exit", code=None, introduced=True)
    gone = Gone("b", [1, 2])
    assert links.orchestrator.commands(Gone) == [("local", gone)]
    assert links.state.hosts["b"].state == "lost"
    (problem,) = links.state.problems
    assert "the host agent exited (exit unknown)" in str(problem)
    assert links.links.nobody() is None, "local has a worker"


@pytest.mark.parametrize(("event", "data", "state", "words"), [
    ("unreachable", {"cause": "port 3 is shut"}, "failed", ("port 3 is shut", "tunnel: true")),
    ("host_failed", {"cause": "no route", "mend": "plug it in"}, "failed", ("no route", "plug it in")),
    ("lease_lost", {"source": "broker"}, "lost", ("no broker heartbeat for limits.host_lease_s (60 s)",)),
])  # fmt: skip
def test_a_lost_host_is_told_once_and_with_its_cause(
    links: Links, event: str, data: dict[str, Any], state: str, words: tuple[str, ...]
) -> None:
    links.tell("b", event, **data)
    links.tell("local", "host_lost", host="b")
    links.tell("b", "agent_exit", code=0, introduced=True)
    (problem,) = links.state.problems
    assert links.state.hosts["b"].state == state
    for word in (*words, "the run continues without this host"):
        assert word in str(problem)


def test_a_host_that_ended_in_order_is_lost_only_when_the_broker_misses_it(links: Links) -> None:
    """At the end of a run the broker ends the other hosts, which may be known before the learner's last event."""
    links.tell("b", "agent")
    links.tell("b", "joined", address="10.0.0.1", milliseconds=1.0, store=True)
    links.tell("b", "agent_exit", code=0, introduced=True)
    left, problems = links.state.hosts["b"].state, list(links.state.problems)
    assert (left, problems, links.links.nobody()) == ("leaving", [], None)
    links.tell("local", "host_lost", host="b")
    (problem,) = links.state.problems
    assert links.state.hosts["b"].state == "lost"
    assert "the broker received no message from it for limits.host_lease_s" in str(problem)


def test_without_any_host_left_the_run_says_why(tmp_path: Path) -> None:
    links = Links(replace(plan_of(tmp_path), workers={"b": 2}))
    assert links.links.nobody() is None
    links.tell("b", "host_failed", cause="no route", mend="plug it in")
    assert links.links.nobody() == "no usable host left\nb: no route"


def test_leases_are_renewed_about_every_second(links: Links) -> None:
    for now in (10.0, 10.1, 10.9, 11.0, 11.5):
        links.links.renew(now)
    assert links.orchestrator.commands(Lease) == [(None, Lease())] * 2


def test_requests_are_served(links: Links, tmp_path: Path) -> None:
    assert "local: 2 workers" in links.serve(tmp_path, '{"scale": {"local": 2}}', 1.0)
    assert links.orchestrator.commands(Hold) == [("local", Hold([0, 3]))]
    assert "unknown host 'x'" in links.serve(tmp_path, '{"scale": {"x": 2}}', 3.0)
    for number, text in enumerate(('{"scale": 7}', '{"scale": {"b": "many"}}', "{}")):
        assert "refused" in links.serve(tmp_path, text, 5.0 + 2 * number)
    assert "leave at the end" in links.serve(tmp_path, '{"scale": {"b": 0}}', 20.0)
    links.tell("b", "agent_exit", code=0, introduced=True)
    assert links.state.hosts["b"].state == "drained"
    told = [problem.cause for problem in links.state.problems]
    assert told == ["rejected 1 x value", "rejected 1 x fields"], "once per reason, and the end of b is no problem"
    assert links.state.refused_messages == {"value": 2, "fields": 1}
    assert "reconnecting" in links.serve(tmp_path, '{"scale": {"b": 1}}', 22.0)
    assert links.orchestrator.deployed[-1]["b"].workers == (4,)
    assert links.state.hosts["b"].state == "connecting"


@pytest.mark.parametrize("workers", [{"local": 1, "b": 2, "c": 0}, {"local": 1, "b": 0, "c": 0}])
def test_a_host_that_took_no_part_is_refused_with_all_that_was_asked(tmp_path: Path, workers: dict[str, int]) -> None:
    links = Links(replace(plan_of(tmp_path), workers=workers))
    before = status_of(links.state, 0.0)
    answer = links.serve(tmp_path, '{"scale": {"local": 2, "c": 1}}', 1.0)
    assert "refused" in answer and "c=1: c was not part of the run at its start" in answer
    assert (len(links.orchestrator.deployed), links.orchestrator.commands(Hold)) == (1, [])
    assert "c: not part of this run" in links.serve(tmp_path, '{"scale": {"c": 0}}', 3.0)
    assert status_of(links.state, 0.0) == before


def test_a_far_log_is_kept_and_no_path_is_taken_from_its_name(links: Links, tmp_path: Path) -> None:
    links.tell("b", "log", name="b-worker-1", text="one\n")
    links.tell("b", "log", name="../../b-worker-1", text="two\n")
    assert (tmp_path / "logs" / "b-worker-1.log").read_text() == "one\ntwo\n"
