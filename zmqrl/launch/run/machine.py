"""The launcher's decisions: `handle(input, now) -> [action]`. What is known is in `RunState` and its records. Pure.

Events change the records (`run_events`). Who may connect to the broker follows from them after each (`membership`).
Time decides which hosts have workers (`staffing`), which lost hosts are connected to again (`rejoining`), and how the
run ends (`end_policy`). Requests of other commands change the workers (`worker_changes`).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError, WireError
from zmqrl.launch.run import actions as act
from zmqrl.launch.run import rejoining, reports, staffing
from zmqrl.launch.run.addresses import AddressWatch
from zmqrl.launch.run.end_policy import EndPolicy
from zmqrl.launch.run.events import count_refused, take
from zmqrl.launch.run.host_events import lose, reconnect
from zmqrl.launch.run.host_records import HostRecord
from zmqrl.launch.run.membership import Membership
from zmqrl.launch.run.problem_reports import SlowWorkerReport, StallDetector
from zmqrl.launch.run.state import RunState
from zmqrl.launch.run.worker_changes import Refusal, WorkerChanges
from zmqrl.messages.files import RequestAnswer, ScaleRequest
from zmqrl.orchestrators.base import HostEvent

STEP_EVERY_S = 1.0
SILENT_AFTER_CHANGE_S = 2.0
"""Hosts that have sent nothing for so long, over a change of this machine's address, are connected to again."""
TOKEN_BYTES = 32
REQUESTS = "a request file"
"""Place of refused messages."""


@dataclass
class _Waiting:
    """An answer that states whether connection files were written."""

    path: Path
    lines: dict[str, str]
    """Lines of the answer, by host."""
    invited: set[str]
    """Hosts whose files are not written yet."""

    def written(self, record: HostRecord) -> None:
        """The file of this host was written, or the host failed without it."""
        if record.host in self.invited:
            self.invited.remove(record.host)
            if record.is_gone:
                self.lines[record.host] = f"{record.host}: {record.cause}"


class RunMachine:
    """A run from `Begin` to `Leave`. One thread; `now` in monotonic seconds."""

    def __init__(
        self,
        plan: RunPlan,
        state: RunState,
        refusal: Refusal,
        now: float,
        new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
    ) -> None:
        """Decide about a run from its start, which is `now`.

        `refusal`: why a host that the plan does not have cannot be added. `new_token`: a one-time token for a
        connection file.
        """
        self._plan, self.state = plan, state
        self._changes = WorkerChanges(plan, state.hosts, refusal)
        self._membership = Membership(plan.config, state, new_token)
        self._step_at = now
        self._stall_detector = StallDetector(plan.config.limits.stalled_after_s)
        self._slow_worker = SlowWorkerReport()
        self._answers: list[_Waiting] = []
        self._addresses, self._moved = AddressWatch(), (0.0, "")
        """Addresses of this machine; when they last changed, in unix time, and how."""
        self.end_policy = EndPolicy(plan, now)

    def handle(self, received: act.Input, now: float) -> list[act.Action]:
        """Take one input in."""
        self.state.now = now
        actions: list[act.Action] = []
        match received:
            case HostEvent():
                actions += take(self.state, received)
            case act.TimePassed():
                actions += self._tick(received, now)
            case act.RequestReceived():
                actions += self._serve(received)
            case act.Performed():
                actions += self._continue(received)
            case act.Begin():
                actions += self._begin(received.wall)
        return [*actions, *self._membership.follow()]

    def _begin(self, wall: datetime) -> list[act.Action]:
        hosts = self.state.hosts
        for record in hosts:
            record.is_uninvited = record.section.manual
        for record in staffing.begin(hosts, wall):
            hosts.assign(record.host, 0)
            if record is not hosts.learner:
                record.drain()
            self.state.note(reports.not_waited_for(record))
        started = [record for record in hosts if not record.section.manual and not record.is_gone]
        return [act.Deploy({record.host: replace(record.boot, workers=record.held) for record in started})]

    # time

    def _tick(self, tick: act.TimePassed, now: float) -> list[act.Action]:
        for problem in (self._stall_detector.check(self.state, now), self._slow_worker.check(self.state, now)):
            if problem is not None:
                self.state.note(problem)
        actions: list[act.Action] = []
        if tick.addresses and not self.state.hosts.ending:
            self._check_addresses(tick)
        if now >= self._step_at:
            self._step_at = now + STEP_EVERY_S
            actions += self._step(tick.wall, now)
        return [*actions, *self.end_policy.step(self.state, tick.request, tick.same_presses, now)]

    def _step(self, wall: datetime, now: float) -> list[act.Action]:
        """What is looked at once a second."""
        hosts = self.state.hosts
        for record in hosts.stayed_away(now):
            lose(self.state, record, "lost", reports.agent_exited(0))
        actions = [] if hosts.ending else [*self._staff(wall, now), *self._rejoin(now)]
        for record in hosts:
            record.remove_left()
        return actions

    def _check_addresses(self, tick: act.TimePassed) -> None:
        """Another address of this machine ends the connections to all hosts: those that are silent since."""
        at = tick.wall.timestamp()
        change = self._addresses.check(tick.addresses)
        if change is not None:
            self._moved = at, change.of("this machine")
        since, cause = self._moved
        silent = [row for row in self.state.hosts if (row.received_at or at) < min(since, at - SILENT_AFTER_CHANGE_S)]
        if silent and at - since < self._plan.config.limits.host_lease_s:
            self.state.note_once(reports.address_changed(cause))
            reconnect(self.state, cause, silent)

    def _staff(self, wall: datetime, now: float) -> list[act.Action]:
        """Take the workers of hosts that are to be left alone, and give them back."""
        actions: list[act.Action] = []
        for change in staffing.due(self.state.hosts, wall, now):
            record, had_workers, is_here = change.record, change.record.workers > 0, change.presence == "here"
            try:
                actions += self._changes.change(record, change.workers, stays=change.presence == "kept")
            except ConfigError as error:
                self.state.note_once(reports.presence_unchanged(record, change.reason, error), record.reported)
                continue
            change.done()
            self.state.note(reports.presence_changed(record, change.reason, is_here, had_workers))
        return actions

    def _rejoin(self, now: float) -> list[act.Action]:
        """Connect again to hosts that were lost; those that joined by a connection file come by themselves."""
        if self._plan.config.rejoin == "manual":
            return []
        actions: list[act.Action] = []
        for record in rejoining.due(self.state.hosts, now):
            if record.section.manual:
                continue
            try:
                actions += self._changes.change(record, record.workers, stays=record.is_kept)
            except ConfigError as error:
                self.state.note_once(reports.not_rejoined(record, error), record.reported)
        for record, away_s in rejoining.settle(self.state.hosts, now):
            self.state.note(reports.returned(record, away_s))
        return actions

    # requests

    def _serve(self, received: act.RequestReceived) -> list[act.Action]:
        """All of it or nothing."""
        request = received.request
        if isinstance(request, WireError):
            before = self.state.refused_by.get(REQUESTS, Counter())
            count_refused(self.state, REQUESTS, before + Counter([request.reason]))
            return [act.Respond(received.path, RequestAnswer(refused=str(request)))]
        try:
            record = self._changes.check(received.path, request)
        except ConfigError as error:
            return [act.Respond(received.path, RequestAnswer(refused=str(error)))]
        return self._carry_out(received.path, request) if record is None else [record]

    def _carry_out(self, path: Path, request: ScaleRequest) -> list[act.Action]:
        actions, lines = self._changes.carry_out(request)
        is_listening = self.state.hosts.listening is not None
        invited = {record.host for record in self.state.hosts if record.is_uninvited and is_listening}
        self._answers.append(_Waiting(path, lines, invited))
        return [*actions, *self._pop_answers()]

    def _continue(self, performed: act.Performed) -> list[act.Action]:
        action, error = performed.action, performed.error
        if isinstance(action, act.RecordConfig):
            if error is not None:
                return [act.Respond(action.path, RequestAnswer(refused=error))]
            self._changes.admit(action)
            return self._carry_out(action.path, action.request)
        record = self.state.hosts[action.boot.host]
        if performed.place is not None:
            self.state.note(reports.invited(record.host, performed.place))
        else:
            record.invitation = ""
            lose(self.state, record, "failed", *reports.not_invited(record, error))
        for answer in self._answers:
            answer.written(record)
        return self._pop_answers()

    def _pop_answers(self) -> list[act.Action]:
        """Answers to requests whose connection files are written, or cannot be."""
        ready = [answer for answer in self._answers if not answer.invited]
        self._answers = [answer for answer in self._answers if answer.invited]
        return [act.Respond(answer.path, RequestAnswer(done="\n".join(answer.lines.values()))) for answer in ready]
