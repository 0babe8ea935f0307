"""The launcher's side of many hosts: broker address, lease renewal, logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from zmqrl.config.plan import Boot, RunPlan
from zmqrl.errors import ConfigError, WireError
from zmqrl.launch.boots import boots
from zmqrl.launch.connection_file import write_connection_file
from zmqrl.launch.problem import Problem
from zmqrl.launch.requests import Requests
from zmqrl.launch.run_state import RunState
from zmqrl.launch.scaling import Scaling
from zmqrl.messages import agent
from zmqrl.messages.files import RequestAnswer, ScaleRequest
from zmqrl.orchestrators.base import HostEvent, Orchestrator

LEASE_EVERY_S = 1.0
LOG_LIMIT_BYTES = 20_000_000


class HostLinks:
    """Follows the events that `RunState` has taken in. Owned by the launcher's main thread."""

    def __init__(self, plan: RunPlan, state: RunState, orchestrator: Orchestrator, private: Path) -> None:
        """`private`: a folder that only this user can read, for connection files; it goes with the run."""
        self._private = private
        self._plan, self._state, self._orchestrator = plan, state, orchestrator
        self._learner_host = plan.config.learner.host
        self._logs = Path(plan.run_dir) / "logs"
        self._scaling = Scaling(plan)
        self._requests = Requests(Path(plan.run_dir))
        self._boots: Mapping[str, Boot] = {}
        self._manual: Set[str] = set()
        self._lease_at = 0.0
        self._refused: Counter[str] = Counter()
        """Request files, by reason."""

    def deploy(self) -> None:
        """Begin to start every host's agent."""
        self._boots, sections = boots(self._plan), self._plan.config.hosts
        self._manual = {host for host in self._boots if host in sections and sections[host].manual}
        self._orchestrator.deploy({host: boot for host, boot in self._boots.items() if host not in self._manual})

    def renew(self, now: float) -> None:
        """Renew the leases of agents and handle requests; `now` in monotonic seconds. OSError: requests are retried."""
        if now >= self._lease_at:
            self._lease_at = now + LEASE_EVERY_S
            self._orchestrator.command(None, agent.Lease())
            for path, request in self._requests.waiting():
                if isinstance(request, WireError):
                    self._refused[request.reason] += 1
                    self._state.count_refused("a request file", self._refused)
                    self._requests.answer(path, RequestAnswer(refused=str(request)))
                else:
                    self._serve(path, request)

    def take(self, event: HostEvent) -> None:
        """Each host receives the broker's address once both are ready; the broker is notified of lost hosts at once.

        Raises:
            OSError: Of a `log` event alone: it could not be kept.
        """
        state = self._state
        if isinstance(event.event, agent.LogText):
            self._keep(event.event)
        elif event.host == self._learner_host:
            if isinstance(event.event, agent.BrokerAddresses):
                self._invite()
                for host in [row.host for row in state.hosts if row.state == "joining"]:
                    self._join(host)
        elif isinstance(event.event, agent.Handshake) and state.hosts.listening is not None:
            self._join(event.host)
        elif isinstance(event.event, agent.AgentExited) and not state.hosts.ending:
            gone = [worker.index for worker in state.workers.values() if worker.host == event.host]
            self._scaling.forget(event.host)
            self._orchestrator.command(self._learner_host, agent.Gone(event.host, gone))

    def nobody(self) -> str | None:
        """Why the run cannot start or continue without further hosts; None while it can."""
        state = self._state
        if state.hosts.ending or state.ended or state.failure or state.agent_exit is not None:
            return None
        alone = self._plan.config.run.mode == "single"
        if not state.hosts.learner.is_gone and (alone or state.hosts.can_go_on):
            return None
        missing = [f"{row.host}: {row.cause}" for row in state.hosts.missing]
        return "\n".join(["no usable host left", *missing])

    def _invite(self) -> None:
        """Write the connection files of hosts that are not reached by SSH."""
        for boot in [self._boots[host] for host in sorted(self._manual)]:
            try:
                path = write_connection_file(self._private, boot, self._join_command(boot.host))
            except OSError as error:
                cause = f"the connection file cannot be written: {error}"
                self._state.note(Problem(boot.host, cause, "the run continues without this host"))
                continue
            self._state.invite(
                boot.host,
                f"copy {path} to that host (it contains a key), and run there: zmqrl worker --connect {path.name}",
            )

    def _join(self, host: str) -> None:
        self._orchestrator.command(host, self._join_command(host))

    def _join_command(self, host: str) -> agent.Join:
        listening, named = self._state.hosts.listening, self._plan.config.learner.address
        assert listening is not None, "a host joins after the broker has started"
        found = [named] if named else listening.addresses
        addresses, (segments, notices, control) = self._orchestrator.reach(host, found, listening.ports)
        return agent.Join(addresses, (segments, notices, control), listening.token)

    def _serve(self, path: Path, request: ScaleRequest) -> None:
        """All of it or nothing."""
        try:
            self._scaling.try_all(request.scale)
        except ConfigError as error:
            self._requests.answer(path, RequestAnswer(refused=str(error)))
        else:
            said = [self._scale(host, workers) for host, workers in request.scale.items()]
            self._requests.answer(path, RequestAnswer(done="\n".join(said)))

    def _scale(self, host: str, workers: int) -> str:
        if host not in self._boots:
            return f"{host}: not part of this run"
        indexes = self._scaling.scale(host, workers)
        row = self._state.hosts.expect(host, workers)
        if not row.is_gone:
            self._orchestrator.command(host, agent.Hold(list(indexes)))
            return f"{host}: {workers} workers" if workers else f"{host}: workers leave at the end of their segments"
        if not workers:
            return f"{host}: not part of this run"
        row.state = "connecting"
        self._orchestrator.deploy({host: replace(self._boots[host], workers=indexes)})
        return f"{host}: reconnecting, {workers} workers"

    def _keep(self, part: agent.LogText) -> None:
        """Append to a remote host's log; the remote agent chooses the name, so paths in it are ignored."""
        path = self._logs / f"{Path(part.name).name}.log"
        with path.open("a") as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log.write(part.text)
