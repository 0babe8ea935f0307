"""Events of a host's processes for the launcher: start, exit, resource use, log lines."""

from __future__ import annotations

import logging
from collections.abc import Collection

from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.output import AgentOutput, LogStream
from zmqrl.config.codec import replace
from zmqrl.messages import agent
from zmqrl.messages.agent import ProcessUsage
from zmqrl.supervision.process_table import cpu_seconds, pss_mb
from zmqrl.supervision.restarts import Action, FailRun, ProcessSlot, RestartAfter, StopRestarting
from zmqrl.types import ArenaUsage

LOG = logging.getLogger(__name__)
SAMPLE_EVERY_S = 5.0


class ProcessEvents:
    """Words each event once; nothing waits for a launcher that does not read."""

    def __init__(self, output: AgentOutput, logs: LogStream | None) -> None:
        """`logs`: of a host whose files the launcher cannot read."""
        self._output, self._logs = output, logs
        self._followed: set[str] = set()
        """Names of logs, each until its process has ended and all of it was sent."""
        self._ended: set[str] = set()
        """Names of the followed logs whose process has ended."""
        self._peak_pss_mb: dict[str, float] = {}
        """Largest proportional set sizes by role."""

    def started(self, child: ChildProcess) -> None:
        """Report that a process was started; from now on its log is followed."""
        self._followed.add(child.log.stem)
        self._ended.discard(child.log.stem)
        LOG.info("%s started (pid %d)", child.slot, child.identity.pid)
        self._send(child.slot, agent.Started(child.identity.pid, child.identity.start_time, child.spawn))

    def forward(self, child: ChildProcess, report: agent.Report) -> None:
        """Forward the process's own report."""
        self._send(child.slot, report)

    def listening(self, addresses: agent.BrokerAddresses) -> None:
        """Where other hosts reach the broker."""
        self._output.send(addresses)

    def exited(self, child: ChildProcess, expected: bool) -> None:
        """Report that a process was reaped; what it still wrote to its log goes first."""
        self._ended.add(child.log.stem)
        self.send_logs()
        code, fault = child.process.returncode, child.last_fault
        LOG.log(logging.INFO if expected else logging.WARNING, "%s ended: %s", child.slot, child.cause_of_end())
        exited = agent.Exited(
            pid=child.identity.pid,
            code=code if code >= 0 else None,
            expected=expected,
            cause=child.cause_of_end(),
            detail={} if fault is None else fault.detail,
            log=str(child.log),
            log_tail=list(child.log_tail()),
        )
        self._send(child.slot, exited)

    def not_started(self, slot: ProcessSlot, code: int, cause: str) -> None:
        """Report that a process could not be started; `code` is reported as its exit code."""
        LOG.warning("%s %s", slot, cause)
        self._send(slot, agent.Exited(0, code, expected=False, cause=cause, detail={}, log="", log_tail=[]))

    def decided(self, action: Action) -> None:
        """Report the action of supervision after an exit; a start is reported when it has happened."""
        if isinstance(action, RestartAfter):
            self._send(action.slot, agent.Restarting(action.delay_s))
        elif isinstance(action, StopRestarting):
            self._send(action.slot, agent.RestartLimitReached(action.cause))
        elif isinstance(action, FailRun):
            self._output.send(agent.RunFailed(action.cause))

    def sample(self, children: Collection[ChildProcess]) -> dict[str, ProcessUsage]:
        """Measure without reporting, by `role-index`: those who are about to end count in the peaks."""
        usage: dict[str, ProcessUsage] = {}
        for child in children:
            pss, cpu = pss_mb(child.identity.pid), cpu_seconds(child.identity.pid)
            if pss is None or cpu is None:
                continue
            role = child.slot.role
            self._peak_pss_mb[role] = max(self._peak_pss_mb.get(role, 0.0), pss)
            usage[str(child.slot)] = ProcessUsage(round(pss, 1), round(cpu, 2))
        return usage

    def usage(self, children: Collection[ChildProcess], arena: ArenaUsage | None) -> None:
        """What each of them uses now, and what the arena is used for."""
        self._output.send(agent.Usage(self.sample(children), arena))

    def send_logs(self) -> None:
        """What is new in the logs, also of those who have ended."""
        sent = self._followed if self._logs is None else self._logs.follow(sorted(self._followed))
        complete = self._ended & sent
        self._followed -= complete
        self._ended -= complete

    def finished(self, finished: agent.HostFinished) -> None:
        """The last event, with the peaks of all processes."""
        self.send_logs()
        peaks = {role: round(mb, 1) for role, mb in self._peak_pss_mb.items()}
        self._output.send(replace(finished, peak_pss_mb=peaks))

    def _send(self, slot: ProcessSlot, report: agent.Report) -> None:
        self._output.send(agent.ProcessReport(slot.role, slot.index, report))
