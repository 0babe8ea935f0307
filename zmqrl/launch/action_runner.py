"""Carries out what `RunMachine` decides: the orchestrator, files of the run directory, connection files."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import structs

from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.errors import name_of
from zmqrl.launch.connection_file import remove_connection_file, write_connection_file
from zmqrl.launch.requests import Requests
from zmqrl.launch.run import actions as act
from zmqrl.launch.run import reports
from zmqrl.launch.run.machine import STEP_EVERY_S, RunMachine
from zmqrl.launch.run.problem_reports import AdvisoryWrites
from zmqrl.launch.stop_signals import StopRequest
from zmqrl.messages.agent import LogText
from zmqrl.messages.command import Join
from zmqrl.orchestrators.base import HostEvent, Orchestrator, Teardown
from zmqrl.run_files.run_directory import RunDirectory
from zmqrl.run_files.stored_config import stored_config
from zmqrl.supervision import check_process
from zmqrl.wire.sockets import own_addresses

LOG_LIMIT_BYTES = 20_000_000


class ActionRunner:
    """Owned by the main thread of the launcher, whose loop gives it events and time."""

    def __init__(
        self,
        machine: RunMachine,
        plan: RunPlan,
        orchestrator: Orchestrator,
        files: AdvisoryWrites,
        private: Path,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Nothing is done yet.

        `private`: a folder that only this user can read, for connection files; it goes with the run. `clock`: of
        windows.
        """
        self._machine, self._plan, self._orchestrator, self._clock = machine, plan, orchestrator, clock
        self._files, self._run_dir, self._private = files, Path(plan.run_dir), private
        self._requests = Requests(self._run_dir)
        self._requests_at = self._addresses_at = 0.0
        self.show: Callable[[str], None] = lambda text: None
        """Shows the user a line."""
        self.is_left = False
        """Nothing more is waited for."""

    def begin(self, now: float) -> None:
        """Begin to start the agents. Requests of an earlier attempt are not carried out."""
        with suppress(OSError):  # a request that cannot be removed is not served either
            self._requests.clear()
        self.take(act.Begin(self._clock()), now)

    def tick(self, now: float, request: StopRequest = StopRequest.NONE, same_presses: int = 0) -> None:
        """Once per turn of the loop: serve the requests that are waiting, and act on time and on the user's request."""
        addresses: list[str] = []
        if now >= self._addresses_at and any(record.host != LOCAL for record in self._machine.state.hosts):
            self._addresses_at, addresses = now + STEP_EVERY_S, own_addresses()
        self.take(act.TimePassed(self._clock(), request, same_presses, addresses), now)
        if now >= self._requests_at:
            self._requests_at = now + STEP_EVERY_S
            received: list[act.RequestReceived] = []
            self._files.attempt("the folder of requests", self._receive, received)
            for each in received:
                self.take(each, now)

    def undeploy(self, grace_s: float) -> Teardown:
        """End every process. The run is summed up, whatever the orchestrator raises."""
        try:
            return self._orchestrator.undeploy(grace_s)
        except Exception as error:  # noqa: BLE001 - of any kind of orchestrator: the end is not verified
            traceback.print_exc()
            cause = f"could not be verified: {name_of(error)}: {error}"
            self._machine.state.note(reports.unverified_end(cause, self._plan.run_id))
            return Teardown(ended=0, left=(f"? ({cause})",))

    def _receive(self, received: list[act.RequestReceived]) -> None:
        """Take the requests that are waiting, also those before one that cannot be read."""
        for path, request in self._requests.waiting():
            received.append(act.RequestReceived(path, request))

    def take(self, received: act.Input, now: float) -> None:
        """An event of a host, or what `begin`, `tick` and an action make known: carry out what the machine decides."""
        if isinstance(received, HostEvent) and isinstance(received.event, LogText):
            self._files.attempt("a log", self._keep, received.event)
        for action in self._machine.handle(received, now):
            match action:
                case act.Deploy():
                    self._orchestrator.deploy(action.boots)
                    check_process.end()  # unless it has become an agent
                case act.Send(host, Join() as join) if host is not None:
                    self._orchestrator.command(host, self._reached(host, join))
                case act.Send():
                    self._orchestrator.command(action.host, action.command)
                case act.WriteInvitation() | act.RecordConfig():
                    self.take(self._performed(action), now)
                case act.RemoveInvitation():
                    remove_connection_file(self._private, action.host)
                case act.Respond():
                    self._files.attempt("an answer to a request", self._requests.answer, action.path, action.answer)
                case act.Show():
                    self.show(action.text)
                case act.Leave():
                    self.is_left = True

    def _performed(self, action: act.WriteInvitation | act.RecordConfig) -> act.Performed:
        try:
            if isinstance(action, act.RecordConfig):
                content = stored_config(action.config, self._plan.env)
                RunDirectory(self._run_dir).write("config.json", content, durable=True)
                return act.Performed(action, None)
            join = self._reached(action.boot.host, action.join)
            return act.Performed(action, None, write_connection_file(self._private, action.boot, join))
        except OSError as error:
            return act.Performed(action, str(error))

    def _reached(self, host: str, join: Join) -> Join:
        """Copy of `join` with the addresses at which the host reaches the broker, which may be those of a tunnel."""
        addresses, ports = self._orchestrator.reach(host, join.addresses, join.ports)
        segments, notices, control = ports
        return structs.replace(join, addresses=addresses, ports=(segments, notices, control))

    def _keep(self, part: LogText) -> None:
        """Append to a remote host's log."""
        path = self._run_dir / "logs" / f"{part.name}.log"
        with path.open("a", encoding="utf-8", errors="replace") as log:
            if log.tell() > LOG_LIMIT_BYTES:
                log.truncate(0)
            log.write(part.text)
