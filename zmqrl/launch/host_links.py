"""The launcher's side of many hosts: what each agent is started with, broker address, requests, logs."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import HostSection
from zmqrl.errors import ConfigError, WireError
from zmqrl.launch import rejoining, staffing
from zmqrl.launch.admission import sections_to_admit, with_hosts
from zmqrl.launch.boots import boot_of
from zmqrl.launch.connection_file import remove_connection_file, write_connection_file
from zmqrl.launch.host_records import HostRecord
from zmqrl.launch.requests import Requests
from zmqrl.launch.run_directory import RunDirectory, stored_config
from zmqrl.launch.run_state import RunState
from zmqrl.launch.scaling import Scaling
from zmqrl.messages import agent
from zmqrl.messages.files import RequestAnswer, ScaleRequest
from zmqrl.orchestrators.base import HostEvent, Orchestrator
from zmqrl.types import AllowList, HostKey
from zmqrl.views.problem import Problem, counted
from zmqrl.wire.admission import digest_of

STEP_EVERY_S = 1.0
LOG_LIMIT_BYTES = 20_000_000
TOKEN_BYTES = 32
WITHOUT_VECTOR_ENVS = (
    "with env.recovery: restart_episode an added worker has no vector envs until another worker leaves; "
    "to redistribute them, stop the run and resume it"
)


class HostLinks:
    """Follows the events that `RunState` has taken in. Owned by the launcher's main thread."""

    def __init__(
        self,
        plan: RunPlan,
        state: RunState,
        orchestrator: Orchestrator,
        private: Path,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """What the launcher does for the hosts of `plan`.

        Args:
            plan: Of the run.
            state: Which the launcher has given every event first.
            orchestrator: Of the run.
            private: A folder that only this user can read, for connection files; it goes with the run.
            clock: The wall clock of windows.
        """
        self._private = private
        self._plan, self._state, self._orchestrator = plan, state, orchestrator
        self._learner_host, self._is_encrypted = plan.config.learner.host, plan.config.security.curve != "off"
        self._logs = Path(plan.run_dir) / "logs"
        self._scaling = Scaling(plan, state.hosts)
        self._clock = clock
        self._requests = Requests(Path(plan.run_dir))
        self._allowed = AllowList()
        """As the learner's host has it."""
        self._step_at = 0.0
        self._refused: Counter[str] = Counter()
        """Request files, by reason."""

    def deploy(self) -> None:
        """Begin to start every host's agent. Requests of an earlier attempt are not carried out."""
        with suppress(OSError):  # a request that cannot be removed is not served either
            self._requests.clear()
        hosts = self._state.hosts
        for row in hosts:
            row.is_uninvited = row.section.manual
        for row in staffing.begin(hosts, self._clock()):
            self._scaling.scale(row.host, 0, least=0)
            if row is not hosts.learner:
                self._state.drain(row.host)
            self._state.note(Problem(row.host, row.away, "it is not waited for"))
        started = [row for row in hosts if not row.section.manual and not row.is_gone]
        self._orchestrator.deploy({row.host: replace(row.boot, workers=row.held) for row in started})

    def step(self, now: float) -> None:
        """Staff and rejoin hosts, handle requests; `now` in monotonic seconds. OSError: requests are retried."""
        if now >= self._step_at:
            self._step_at = now + STEP_EVERY_S
            self._state.judge_leaving(now)
            self._state.remove_left()
            if not self._state.hosts.ending and self._state.ended is None:
                self._staff(now)
                self._rejoin(now)
                self._allow()
            for path, request in self._requests.waiting():
                if isinstance(request, WireError):
                    self._refused[request.reason] += 1
                    self._state.count_refused("a request file", self._refused)
                    self._requests.answer(path, RequestAnswer(refused=str(request)))
                else:
                    self._serve(path, request)

    def _staff(self, now: float) -> None:
        """Take the workers of hosts that are to be left alone, and give them back."""
        for change in staffing.due(self._state.hosts, self._clock(), now):
            row, before = change.row, change.row.workers
            try:
                self._scaling.try_all({row.host: change.workers}, least=0)
            except ConfigError as error:
                self._report_once(row, f"{change.reason}, but: {error}", "it is tried again")
                continue
            self._scale(row.host, change.workers, change.presence == "kept", least=0)
            change.done()
            if change.presence == "here":
                done = f"back with {counted(change.workers, 'worker')}"
            else:
                done = "its workers leave at the end of their segments" if before else "it has no workers"
            self._state.note(Problem(row.host, change.reason, done))

    def _report_once(self, row: HostRecord, cause: str, action_taken: str) -> None:
        if cause not in row.reported:
            row.reported.add(cause)
            self._state.note(Problem(row.host, cause, action_taken))

    def _rejoin(self, now: float) -> None:
        """Connect again to hosts that were lost; those that joined by a connection file come by themselves."""
        if self._plan.config.rejoin == "manual":
            return
        for row in rejoining.due(self._state.hosts, now):
            if row.section.manual:
                continue
            try:
                self._scaling.try_all({row.host: row.workers}, least=0)
            except ConfigError as error:
                cause = f"cannot be connected to again: {error}"
                self._report_once(row, cause, "the run continues without this host")
            else:
                self._scale(row.host, row.workers, row.is_kept, least=0)
        for row, away_s in rejoining.settle(self._state.hosts, now):
            self._state.note(
                Problem(row.host, f"was away for {away_s:.0f} s", f"back with {counted(row.workers, 'worker')}")
            )

    def take(self, event: HostEvent) -> None:
        """Each host receives the broker's address once the broker knows its key; lost hosts lose theirs at once.

        Raises:
            OSError: Of a `log` event alone: it could not be kept.
        """
        if isinstance(event.event, agent.LogText):
            self._keep(event.event)
        elif event.host == self._learner_host:
            self._take_of_learners_host(event.event)
        self._allow()

    def _take_of_learners_host(self, event: agent.Event) -> None:
        hosts = self._state.hosts
        match event:
            case agent.BrokerAddresses():
                self._invite()
                if event.serial == self._allowed.serial:
                    for host in [row.host for row in hosts if row.state == "joining"]:
                        self._join(host)
            case agent.Enrolled():
                enrolled = hosts.enrol(event.token, event.public)
                if enrolled is not None:
                    remove_connection_file(self._private, enrolled.host)
            case agent.HostLost() | agent.HostHere():
                row = hosts.get(event.host)
                if row is not None and row.section.manual and row.is_gone:
                    row.is_revoked = True  # without encryption it has no key that could leave the list

    def _allow(self) -> None:
        """Send the allow-list, and whether the run is paused, when it has changed.

        Not at the end of the run: every agent leaves in its own time.
        The broker removes the workers of a host that leaves the list: with its next agent they have other indexes.
        """
        hosts, tokens = self._state.hosts.keys, self._state.hosts.tokens
        newest = AllowList(self._allowed.serial, hosts, tokens, self._state.paused, self._absent())
        is_known = newest == self._allowed
        if not is_known and self._state.hosts.learner.public and not self._state.hosts.ending:
            for host in _names(self._allowed.hosts) - _names(hosts):
                self._state.hosts[host].is_revoked = True
            self._allowed = structs.replace(newest, serial=newest.serial + 1)
            self._orchestrator.command(self._learner_host, agent.Allow(self._allowed))

    def _absent(self) -> tuple[str, ...]:
        """Hosts that a broker does not wait for, where it waits: in sync, where a move would end episodes."""
        if self._moves_vector_envs:
            return ()
        return tuple(sorted(row.host for row in self._state.hosts if row.is_gone or row.away))

    @property
    def _moves_vector_envs(self) -> bool:
        """Whether a worker gets vector envs while others have them."""
        return not self._plan.config.mode.deterministic or self._plan.config.env.recovery != "restart_episode"

    def _invite(self) -> None:
        """Write the connection files of hosts that are not reached by SSH, each once: its token admits one host."""
        if self._state.hosts.listening is None:
            return
        for row in sorted((row for row in self._state.hosts if row.is_uninvited), key=lambda row: row.host):
            row.is_uninvited = False
            boot, join = replace(row.boot, workers=row.held), self._join_command(row.host)
            if join.server is not None:
                join = structs.replace(join, enrolment=secrets.token_urlsafe(TOKEN_BYTES))
                row.invitation = digest_of(str(join.enrolment))
            try:
                path = write_connection_file(self._private, boot, join)
            except OSError as error:
                row.invitation = ""
                cause, fix = f"the connection file cannot be written: {error}", "writes another"
                event = agent.HostUnusable(cause, f"zmqrl scale {row.host}=N {fix}")
                self._state.handle(HostEvent(row.host, event))
                continue
            self._state.invite(
                row.host,
                f"copy {path} to that host (its token admits one host, once), and run there: "
                f"zmqrl worker --connect {path.name}",
            )

    def _join(self, host: str) -> None:
        self._orchestrator.command(host, self._join_command(host))

    def _join_command(self, host: str) -> agent.Join:
        listening, named = self._state.hosts.listening, self._plan.config.learner.address
        assert listening is not None, "a host joins after the broker has started"
        found = [named] if named else listening.addresses
        addresses, (segments, notices, control) = self._orchestrator.reach(host, found, listening.ports)
        server = self._state.hosts.learner.public if self._is_encrypted else None
        return agent.Join(addresses, (segments, notices, control), listening.token, server, None)

    def _serve(self, path: Path, request: ScaleRequest) -> None:
        """All of it or nothing."""
        spent = {host for host in request.scale if self._has_spent_its_token(host)}
        try:
            admitted = self._sections_to_admit(request)
            self._check_manual(request.scale)
            order = self._scaling.try_all(request.scale, spent, admitted, self._plan.config.min_workers)
            self._admit(admitted, request.scale)
        except (ConfigError, OSError) as error:
            self._requests.answer(path, RequestAnswer(refused=str(error)))
        else:
            before = self._scaling.total
            answers = [self._scale(host, request.scale[host], least=0) for host in order]
            if self._scaling.total > before and not self._moves_vector_envs:
                answers.append(WITHOUT_VECTOR_ENVS)
            for row in self._state.hosts:
                if row.host in request.scale:
                    row.away = ""  # until its window opens or closes, or its other users come or go
            self._requests.answer(path, RequestAnswer(done="\n".join(answers)))

    def _sections_to_admit(self, request: ScaleRequest) -> dict[str, HostSection]:
        listen = self._state.hosts.learner.boot.listen
        return sections_to_admit(request, self._plan.config, self._state.hosts, listen, self._orchestrator)

    def _admit(self, sections: Mapping[str, HostSection], workers: Mapping[str, int]) -> None:
        """Hosts become part of the run, without workers yet. OSError: they do not, since they cannot be recorded.

        `zmqrl down` finds the hosts of a run in `config.json`, so they are recorded before anything starts there.
        """
        if not sections:
            return
        config = with_hosts(self._plan.config, sections, workers)
        RunDirectory(Path(self._plan.run_dir)).write("config.json", stored_config(config, self._plan.env), durable=True)
        counts = {host: workers[host] for host in sections}
        self._plan = replace(self._plan, config=config, workers={**self._plan.workers, **counts})
        for host in sections:
            row = self._state.hosts.admit(boot_of(self._plan, host, ()))
            row.rule = staffing.rule_of(row.section, workers[host])

    def _check_manual(self, wanted: Mapping[str, int]) -> None:
        """ConfigError for a host that has joined by a connection file: no command reaches its agent."""
        for host, workers in wanted.items():
            row = self._state.hosts.get(host)
            if row is None or not row.section.manual or row.state != "ready":
                continue
            if workers:
                raise ConfigError(
                    f"{host}={workers}: the number of workers of a manual host is fixed by its connection file; "
                    f"run `zmqrl drain {host}`, then `zmqrl scale {host}={workers}`, which writes a new file"
                )
            if not self._is_encrypted:
                raise ConfigError(
                    f"{host}=0: the run is not encrypted, so the launcher cannot remove a manual host; press Ctrl-C in "
                    f"`zmqrl worker` on {host}"
                )

    def _has_spent_its_token(self, host: str) -> bool:
        row = self._state.hosts.get(host)
        return row is not None and row.section.manual and row.state == "joining"

    def _scale_manual(self, host: str, workers: int) -> str:
        """Its number of workers is in its connection file: that of before, and the key that it admitted, are void."""
        row = self._state.hosts[host]
        row.invitation = ""
        remove_connection_file(self._private, host)
        if not workers:
            self._scaling.scale(host, 0, least=0)
            self._state.drain(host)
            self._allow()
            return f"{host}: removed from the run; env steps that it has not delivered are dropped"
        row.state = "connecting"
        self._allow()  # first: it revokes the workers of the agent that is removed
        self._scaling.scale(host, workers, least=0)
        row.is_uninvited = True
        self._invite()
        self._allow()
        if row.is_gone:
            return f"{host}: {row.cause}"
        return f"{host}: {counted(workers, 'worker')}, once it joins with its new connection file"

    def _scale(self, host: str, workers: int, stays: bool = False, least: int = 1) -> str:
        """`stays`: the agent stays without workers. `least`: workers that the run keeps."""
        row = self._state.hosts.get(host)
        if row is None:
            return f"{host}: not part of this run"
        if row.section.manual:
            return self._scale_manual(host, workers)
        indexes = self._scaling.scale(host, workers, least, self._state.failed_workers)
        row.is_kept = stays
        if not row.is_gone and row.state != "leaving":
            self._orchestrator.command(host, agent.SetWorkers(list(indexes), stays))
            return (
                f"{host}: {counted(workers, 'worker')}"
                if workers
                else f"{host}: workers leave at the end of their segments"
            )
        if not workers and not stays:
            return f"{host}: not part of this run"
        row.state = "connecting"
        self._orchestrator.deploy({host: replace(row.boot, workers=indexes)})
        return f"{host}: {'reconnecting' if row.incarnation else 'connecting'}, {counted(workers, 'worker')}"

    def _keep(self, part: agent.LogText) -> None:
        """Append to a remote host's log."""
        path = self._logs / f"{part.name}.log"
        with path.open("a", encoding="utf-8", errors="replace") as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log.write(part.text)


def _names(keys: Mapping[str, HostKey]) -> set[str]:
    return {key.host for key in keys.values()}
