"""Random lives of a run's hosts: they join, yield, are lost, return, are scaled; whatever happens, the run ends."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.launch.test_host_links import LISTENING, plan_of
from tests.messages.samples import host_event
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection, LearnerSection, LimitsSection, YieldSection
from zmqrl.launch.run import actions as act
from zmqrl.launch.run.end_policy import KILL_GRACE_S, TEARDOWN_SLACK_S
from zmqrl.launch.run.events import HANDLERS
from zmqrl.launch.run.host_records import HostRecord
from zmqrl.launch.run.machine import STEP_EVERY_S, RunMachine
from zmqrl.launch.run.state import RunState
from zmqrl.launch.stop_signals import StopRequest
from zmqrl.messages.command import Join, SetAllowList, SetWorkers
from zmqrl.messages.files import ScaleRequest
from zmqrl.messages.orchestrator import AgentExited, Event, Handshake
from zmqrl.orchestrators.base import HostEvent, Teardown
from zmqrl.wire.admission import digest_of

NOON = datetime(2026, 1, 5, 12)
LIMITS = LimitsSection(start_s=120.0, too_few_s=600.0, grace_s=15.0)
SECTIONS = {
    "local": HostSection(workers=1),
    "b": HostSection(workers=2),
    "c": HostSection(workers=1, yield_when=YieldSection(load=2.0, quiet_s=60.0)),
    "m": HostSection(workers=1, manual=True),
}
HOSTS = st.sampled_from(["local", "b", "b", "c", "x"])
TIMES = st.sampled_from([0.1, 1.0, 3.0, 61.0, 700.0])
CLEAN, LEFT = Teardown(1), Teardown(1, left=("b/worker-1 (pid 7)",))


@dataclass
class Agent:
    """The agent of one host, as it is in truth."""

    key: str
    workers: set[int]
    """That it is to have."""
    given: set[int]
    """That it ever was to have."""
    running: set[int] = field(default_factory=set)
    """Workers with a process."""
    has_shown_key: bool = False
    was_sent_to_broker: bool = False


class World(RuleBasedStateMachine):
    """A machine, and the hosts that it decides about."""

    @initialize(learner=st.sampled_from(["local", "b"]), least=st.integers(1, 3), runs=st.integers(0, 3))
    def begin(self, learner: str, least: int, runs: int) -> None:
        """`runs`: 0: the agents are being started; else all hosts have joined, and all workers are ready."""
        run_dir = Path(tempfile.gettempdir()) / "zmqrl-never-made"
        workers = {host: int(section.workers) for host, section in SECTIONS.items()}
        plan = plan_of(run_dir, hosts=SECTIONS, limits=LIMITS, learner=LearnerSection(host=learner), min_workers=least)
        self.plan, self.learner, self.now = replace(plan, workers=workers, began=1000.0), learner, 1000.0
        self.state, self.tokens = RunState(self.plan), 0
        self.machine = RunMachine(self.plan, self.state, lambda host, section: None, self.now, self.new_token)
        self.agents: dict[str, Agent] = {}
        self.keys = self.requests = self.answers = 0
        self.owner: dict[int, str] = {}
        self.retired: set[int] = set()
        self.allowed: SetAllowList | None = None
        self.followed: set[str] = set()
        """Keys on the list that the broker follows."""
        self.invited: dict[str, act.WriteInvitation] = {}
        self.request, self.is_left, self.writes_fail = StopRequest.NONE, False, False
        self.handle(act.Begin(NOON))
        if runs:
            for host in (learner, "local", "b", "c"):
                self.an_agent_starts(host)
            self.the_broker_listens()
            self.the_broker_listens()
            for host in ("local", "b", "c"):
                self.a_host_joins(host)
                self.workers_start(host)
            self.a_manual_host_joins(used_before=False)
            self.the_learner_is_ready()
            self.time_passes(1.0)

    def new_token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    @property
    def is_over(self) -> bool:
        """The loop has ended."""
        return self.is_left or self.state.agent_exit is not None

    def handle(self, received: act.Input) -> None:
        for action in () if self.is_over else self.machine.handle(received, self.now):
            self.perform(action)

    def perform(self, action: act.Action) -> None:
        match action:
            case act.Deploy():
                for host, boot in action.boots.items():
                    self.keys += 1
                    self.give(host, set(boot.workers))
                    self.agents[host] = Agent(f"key-{self.keys}", set(boot.workers), set(boot.workers))
            case act.Send(host, SetWorkers() as command) if host in self.agents:
                self.give(str(host), set(command.workers))
                self.agents[str(host)].workers = set(command.workers)
                self.agents[str(host)].given |= set(command.workers)
            case act.Send(_, SetAllowList() as allow):
                before = {} if self.allowed is None else self.allowed.allowed.hosts
                for gone in {key.host for key in before.values()} - {key.host for key in allow.allowed.hosts.values()}:
                    self.retired |= {index for index, host in self.owner.items() if host == gone}
                self.allowed = allow
            case act.Send(_, Join()) if action.host in self.agents:
                assert self.agents[action.host].key in self.followed, "the broker would refuse it"
                self.agents[action.host].was_sent_to_broker = True
            case act.WriteInvitation():
                self.give(action.boot.host, set(action.boot.workers))
                self.invited[action.boot.host] = action
                error = "the disk is full" if self.writes_fail else None
                place = None if self.writes_fail else Path("b.connect")
                self.handle(act.Performed(action, error, place))
            case act.RecordConfig():
                self.handle(act.Performed(action, "the disk is full" if self.writes_fail else None))
            case act.Respond():
                self.answers += 1
            case act.Leave():
                self.is_left = True

    def give(self, host: str, workers: set[int]) -> None:
        """An index is used once: by one host, and never again after it was taken from it."""
        assert not workers & self.retired, (host, workers)
        assert {self.owner.get(index, host) for index in workers} <= {host}
        self.retired |= {index for index, owner in self.owner.items() if owner == host} - workers
        self.owner |= dict.fromkeys(workers, host)

    def tell(self, host: str, name: str, /, **data: object) -> None:
        self.handle(host_event(host, name, **data))  # type: ignore[arg-type]

    def record(self, host: str) -> HostRecord | None:
        return self.state.hosts.get(host)

    # agents

    @rule(host=HOSTS)
    def an_agent_starts(self, host: str) -> None:
        found = self.agents.get(host)
        if found is not None and not found.has_shown_key:
            found.has_shown_key = True
            self.tell(host, "agent", public=found.key)

    @rule(host=HOSTS)
    def a_host_joins(self, host: str) -> None:
        found = self.agents.get(host)
        if found is not None and found.was_sent_to_broker:
            self.tell(host, "joined", address="a", milliseconds=1.0, store=True)

    @rule()
    def the_broker_listens(self) -> None:
        """With the list that it was sent last."""
        if self.learner in self.agents and self.agents[self.learner].has_shown_key:
            serial = 0 if self.allowed is None else self.allowed.allowed.serial
            self.followed = set() if self.allowed is None else set(self.allowed.allowed.hosts)
            self.tell(self.learner, "listening", **LISTENING, serial=serial)

    @rule(used_before=st.booleans())
    def a_manual_host_joins(self, used_before: bool) -> None:
        invitation = self.invited.get("m")
        if invitation is None or self.learner not in self.agents:
            return
        self.keys += 1
        token = digest_of("unknown" if used_before else str(invitation.join.enrolment))
        self.tell(self.learner, "enrolled", role="broker", index=0, token=token, public=f"key-{self.keys}")
        record = self.record("m")
        if record is not None and record.state == "joining":
            workers = list(invitation.boot.workers)
            self.tell(self.learner, "host_here", role="broker", index=0, host="m", workers=workers)

    @rule()
    def a_manual_host_leaves(self) -> None:
        if self.learner in self.agents:
            self.tell(self.learner, "host_here", role="broker", index=0, host="m", workers=[])

    @rule(host=HOSTS, code=st.sampled_from([None, 0, 1]))
    def an_agent_ends(self, host: str, code: int | None) -> None:
        """One of the learner's host ends the run, with all of its processes."""
        found = self.agents.get(host)
        if found is not None:
            for index in list(found.running) if code == 0 else ():  # in order: it has reaped all of its processes
                self.ends(host, index, expected=True)
            del self.agents[host]
            self.tell(host, "agent_exit", code=code, introduced=found.has_shown_key)

    @rule(host=HOSTS, how=st.sampled_from(["host_failed", "unreachable", "lease_lost", "host_lost"]))
    def a_host_is_lost(self, host: str, how: str) -> None:
        if how == "host_failed":
            self.agents.pop(host, None)
            self.tell(host, how, cause="no answer", fix="wait")
        elif how == "host_lost":
            if host != self.learner and self.learner in self.agents:
                self.tell(self.learner, how, role="broker", index=0, host=host)
        elif host in self.agents:
            self.tell(host, how)

    @rule(host=st.sampled_from(["c", "local"]), load=st.sampled_from([0.0, 9.0]))
    def others_use_a_host(self, host: str, load: float) -> None:
        if host in self.agents:
            self.tell(host, "other_use", load=load, input_idle_s=None)

    # processes

    @rule(host=HOSTS)
    def workers_start(self, host: str) -> None:
        found = self.agents.get(host)
        if found is not None and found.has_shown_key:
            for index in found.workers - found.running:
                self.tell(host, "started", role="worker", index=index, pid=1, start_time=1, spawn=0)
                self.tell(host, "ready", role="worker", index=index)
            found.running |= found.workers

    @rule(host=HOSTS)
    def workers_that_were_removed_end(self, host: str) -> None:
        found = self.agents.get(host)
        for index in set() if found is None else found.running - found.workers:
            self.ends(host, index, expected=True)

    @rule(host=HOSTS, pick=st.integers(0, 9), restarts=st.booleans())
    def a_worker_dies(self, host: str, pick: int, restarts: bool) -> None:
        found = self.agents.get(host)
        if found is not None and found.running:
            index = sorted(found.running)[pick % len(found.running)]
            self.ends(host, index, expected=False)
            name, more = ("restart", {"in_s": 0.5}) if restarts else ("restart_limit_reached", {"cause": "exit code 1"})
            self.tell(host, name, role="worker", index=index, **more)

    def ends(self, host: str, index: int, expected: bool) -> None:
        self.agents[host].running.discard(index)
        self.tell(host, "exit", role="worker", index=index, code=1, expected=expected, cause="exit code 1", log_tail=[])

    @rule(host=HOSTS, index=st.integers(0, 20), name=st.sampled_from(["ready", "started", "restart", "exit"]))
    def a_late_or_false_event(self, host: str, index: int, name: str) -> None:
        """Of a worker that this host has not, or has no more."""
        found = self.agents.get(host)
        if found is None or index not in found.workers | found.running:
            self.tell(host, name, role="worker", index=index)

    @rule()
    def the_learner_is_ready(self) -> None:
        if self.learner in self.agents and self.agents[self.learner].has_shown_key:
            self.tell(self.learner, "ready", role="learner", index=0)

    @rule(name=st.sampled_from(["metrics", "writing", "ended", "failed", "finished"]))
    def the_learner_reports(self, name: str) -> None:
        if self.learner in self.agents and self.agents[self.learner].has_shown_key:
            is_of_learner = name not in ("failed", "finished")
            process = {"role": "learner", "index": 0} if is_of_learner else {}
            self.tell(self.learner, name, **process)

    # the user

    @rule(host=st.sampled_from(["local", "b", "c", "m", "x", "y"]), workers=st.integers(0, 3), fails=st.booleans())
    def a_request(self, host: str, workers: int, fails: bool) -> None:
        sections = {"x": HostSection()} if host == "x" and self.record("x") is None else {}
        self.requests += not self.is_over
        self.writes_fail = fails
        self.handle(act.RequestReceived(Path("1.json"), ScaleRequest({host: workers}, sections)))
        self.writes_fail = False

    @rule(request=st.sampled_from([StopRequest.STOP, StopRequest.INTERRUPT, StopRequest.KILL]))
    @precondition(lambda self: self.now > 1200.0)
    def the_user_ends_the_run(self, request: StopRequest) -> None:
        self.request = max(self.request, request)

    @rule(seconds=TIMES)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.handle(act.TimePassed(NOON, self.request))
        if self.is_over:
            return
        paused = self.state.paused
        assert not paused or any(problem.cause == self.state.pause_cause for problem in self.state.problems)
        if self.allowed is not None and not self.state.hosts.ending:
            assert self.allowed.allowed.paused == paused, "the broker has what the launcher has decided"
        for record in self.state.hosts:
            left = [worker for worker in record.worker_records if worker.index not in record.assigned]
            gone = [worker for worker in left if worker.state in ("ended", "down", "failed")]
            assert not gone or seconds < STEP_EVERY_S, "no record of a worker that was removed"

    # what always holds

    @invariant()
    def records_are_those_of_the_present_agents(self) -> None:
        if not hasattr(self, "state") or self.is_over:
            return
        for record in self.state.hosts:
            indexes = {worker.index for worker in record.worker_records}
            assert {self.owner.get(index, record.host) for index in indexes | set(record.assigned)} <= {record.host}
            ready = {worker.index for worker in record.worker_records if worker.is_ready}
            assert not (ready and record.is_missing), "a host that is lost has no ready workers"
            found = self.agents.get(record.host)
            if found is not None and found.has_shown_key and not record.is_gone:
                assert indexes <= found.given, "no record of a worker of a former agent"
            leaving = set() if found is None else found.running - found.workers
            assert ready <= set(record.assigned) | leaving or self.state.ended is not None
        assert self.state.hosts.remaining_workers <= self.state.hosts.expected_workers
        assert self.requests == self.answers, "each request is answered once"

    @invariant()
    def the_broker_admits_the_present_agents_alone(self) -> None:
        if not hasattr(self, "state") or self.allowed is None or self.state.hosts.ending:
            return
        for key, host in self.allowed.allowed.hosts.items():
            record = self.record(host.host)
            assert record is not None and (record.public, record.incarnation) == (key, host.incarnation)
            assert record.state in ("joining", "ready")

    @invariant()
    def every_end_has_an_outcome(self) -> None:
        if not hasattr(self, "state"):
            return
        for teardown in (CLEAN, LEFT):
            found = self.machine.end_policy.outcome(self.state, self.request, teardown, False)
            assert found.exit_code in ({0, 1, 2, 4, 130} if teardown is CLEAN else {1, 2, 3, 4})
            assert (found.error is None) == (found.exit_code in (0, 130)), found

    def teardown(self) -> None:
        """After a stop, and after a second interrupt, the run ends within its bound in every state."""
        if not hasattr(self, "state") or self.is_over:
            return
        before = self.request
        self.request = max(before, StopRequest.INTERRUPT)
        has_learner = self.state.hosts.learner.has_agent
        was_ending = self.machine.end_policy.end_by is not None
        self.handle(act.TimePassed(NOON, self.request))
        if not has_learner and not was_ending:
            assert self.is_left, "a run whose learner's host has not started is not waited for"
            assert self.machine.end_policy.outcome(self.state, self.request, CLEAN, False).exit_code in (1, 4, 130)
        bound_s = 3 * LIMITS.grace_s + self.plan.config.evaluator.final_limit_s + TEARDOWN_SLACK_S
        self.now += KILL_GRACE_S if self.request is StopRequest.KILL else bound_s
        self.handle(act.TimePassed(NOON, self.request))
        assert self.is_left or self.state.agent_exit is not None


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWorld = World.TestCase


def test_each_event_of_an_agent_has_one_handler_or_changes_nothing() -> None:
    unhandled = {kind.__name__ for kind in set(get_args(Event)) - HANDLERS.keys()}
    assert unhandled == {"ProcessReport", "Left", "Alive", "LogText"}


@pytest.mark.parametrize("kind", ["deploy", "second deploy"])
def test_a_machine_does_nothing_but_return_actions(kind: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "never made")
    machine = RunMachine(plan, RunState(plan), lambda host, section: None, 0.0)
    (deploy,) = machine.handle(act.Begin(NOON), 0.0)
    assert isinstance(deploy, act.Deploy) and list(deploy.boots) == ["local", "b"]
    if kind == "second deploy":
        machine.handle(HostEvent("b", Handshake({}, 1, 1.0, "key")), 0.0)
        machine.handle(HostEvent("b", AgentExited(None, True)), 0.0)
        found = [action for second in range(4) for action in machine.handle(act.TimePassed(NOON), second)]
        assert [list(action.boots) for action in found if isinstance(action, act.Deploy)] == [["b"]]
    assert list(tmp_path.iterdir()) == []


class Table:
    """A run with one worker on this machine and two on b, and the actions of each input by their types."""

    def __init__(self, folder: Path) -> None:
        plan = plan_of(folder)
        self.machine = RunMachine(plan, RunState(plan), lambda host, section: None, 0.0)

    def tell(self, host: str, name: str, /, **data: Any) -> list[act.Action]:
        return self.machine.handle(host_event(host, name, **data), 0.0)

    def request(self, scale: dict[str, int], **sections: HostSection) -> list[act.Action]:
        return self.machine.handle(act.RequestReceived(Path("1.json"), ScaleRequest(scale, sections)), 0.0)

    def perform(self, action: act.Action, error: str | None) -> list[act.Action]:
        assert isinstance(action, act.WriteInvitation | act.RecordConfig)
        return self.machine.handle(act.Performed(action, error, None if error else Path("b.connect")), 0.0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def types(actions: list[act.Action]) -> list[str]:
    """Names of the actions, and of the commands that are sent."""
    sent = [action.command if isinstance(action, act.Send) else action for action in actions]
    return [type(action).__name__ for action in sent]


def test_the_first_env_step_counts_by_the_time_of_its_event(table: Table) -> None:
    state, event = table.machine.state, host_event("local", "first_step", role="worker", index=0)
    for seconds in (3.0, 9.0):
        table.machine.handle(event, state.plan.began + seconds)
    assert (state.first_step_s, state.wall_s) == (pytest.approx(3.0), pytest.approx(9.0))


def test_a_host_is_listed_and_then_sent_to_the_broker_once(table: Table) -> None:
    assert types(table.machine.handle(act.Begin(NOON), 0.0)) == ["Deploy"]
    assert types(table.tell("b", "agent", public="key")) == [], "the learner's host has no agent yet"
    assert types(table.tell("local", "agent", public="server")) == ["SetAllowList"]
    assert types(table.tell("local", "listening", **LISTENING, serial=0)) == []
    assert types(table.tell("local", "listening", **LISTENING, serial=1)) == ["Join"]
    assert types(table.tell("local", "listening", **LISTENING, serial=1)) == []
    moved = {**LISTENING, "ports": (4, 5, 6)}
    assert types(table.tell("local", "listening", **moved, serial=1)) == ["Join"], "another broker"
    assert types(table.tell("b", "joined", address="a", milliseconds=1.0, store=True)) == []
    assert types(table.tell("b", "agent_exit", code=None, introduced=True)) == ["SetAllowList"]


@pytest.mark.parametrize(("scale", "expected"), [
    ({"local": 2}, ["SetWorkers", "Respond"]),
    ({"local": 0, "b": 3}, ["SetWorkers", "SetWorkers", "Respond"]),
    ({"local": 0, "b": 0}, ["Respond"]),
    ({"nowhere": 1}, ["Respond"]),
    ({"c": 0}, ["Respond"]),
])  # fmt: skip
def test_a_request_leads_to_commands_and_one_answer(table: Table, scale: dict[str, int], expected: list[str]) -> None:
    assert types(table.request(scale)) == expected


@pytest.mark.parametrize(("error", "expected"), [(None, ["Deploy", "Respond"]), ("no space", ["Respond"])])
def test_an_added_host_is_recorded_before_anything_starts_there(
    table: Table, error: str | None, expected: list[str]
) -> None:
    (record,) = table.request({"x": 1}, x=HostSection())
    assert types(table.perform(record, error)) == expected
    assert (table.machine.state.hosts.get("x") is None) == (error is not None)


@pytest.mark.parametrize("error", [None, "no space"])
def test_a_request_for_a_manual_host_is_answered_once_its_file_is_written(table: Table, error: str | None) -> None:
    table.tell("local", "agent", public="server")
    table.tell("local", "listening", **LISTENING, serial=0)
    (record,) = table.request({"m": 1}, m=HostSection(manual=True))
    removed, write, allow = table.perform(record, None)
    assert types([removed, write, allow]) == ["RemoveInvitation", "WriteInvitation", "SetAllowList"]
    answer = table.perform(write, error)[0]
    assert isinstance(answer, act.Respond)
    assert ("no space" in str(answer.answer.done)) == (error is not None)
