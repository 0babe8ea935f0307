"""What the launcher is told of a host's processes: that they run, how they ended, what they use, what they log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from zmqrl.agent.children import Child
from zmqrl.agent.log_stream import LogStream
from zmqrl.agent.output import AgentOutput
from zmqrl.agent.usage import Usage
from zmqrl.supervision.restarts import Action, FailRun, GiveUp, RestartAfter


class ProcessEvents:
    """Words each event once; nothing waits for a launcher that does not read."""

    def __init__(self, output: AgentOutput, logs: LogStream | None) -> None:
        """`logs`: of a host whose files the launcher cannot read."""
        self._output, self._logs = output, logs
        self._log_names: set[str] = set()
        self._usage = Usage()

    def started(self, child: Child) -> None:
        """It was started; from now on its log is followed."""
        self._log_names.add(child.log.stem)
        self._send(
            "started",
            child,
            pid=child.identity.pid,
            start_time=child.identity.start_time,
            spawn=child.spawn,
        )

    def said(self, child: Child, name: str, event: Mapping[str, Any]) -> None:
        """Pass on what it says of itself."""
        self._send(name, child, **event)

    def exited(self, child: Child, expected: bool) -> None:
        """It was reaped; what it still wrote to its log goes first."""
        self.send_logs()
        code = child.process.returncode
        self._send(
            "exit",
            child,
            pid=child.identity.pid,
            code=code if code >= 0 else None,
            expected=expected,
            cause=child.cause_of_end(),
            detail=dict(child.last_fault.get("detail", {})),
            log=str(child.log),
            log_tail=child.log_tail(),
        )

    def decided(self, action: Action) -> None:
        """What supervision does about a death; a start is told of when it has happened."""
        if isinstance(action, RestartAfter):
            self._output.send("restart", role=action.place.role, index=action.place.index, in_s=action.delay_s)
        elif isinstance(action, GiveUp):
            self._output.send("gave_up", role=action.place.role, index=action.place.index, cause=action.cause)
        elif isinstance(action, FailRun):
            self._output.send("failed", cause=action.cause)

    def sample(self, children: Collection[Child]) -> dict[str, dict[str, float]]:
        """Measure without telling: those who are about to end count in the peaks."""
        return self._usage.sample(children)

    def usage(self, children: Collection[Child], leases: int | None, stored: int | None) -> None:
        """What each of them uses now; `leases`: slots that workers may write; `stored`: rows, by the broker's books."""
        self._output.send("usage", processes=self.sample(children), leases=leases, stored=stored)

    def send_logs(self) -> None:
        """What is new in the logs, also of those who have ended."""
        if self._logs is not None:
            self._logs.follow(sorted(self._log_names))

    def finished(self, ledger: Any, report: Mapping[str, Any]) -> None:
        """The last event. `report`: who ended, who was killed, who is left."""
        self.send_logs()
        peaks = {role: round(mb, 1) for role, mb in self._usage.peak_pss_mb.items()}
        self._output.send("finished", ledger=ledger, peak_pss_mb=peaks, **report)

    def _send(self, name: str, child: Child, /, **data: Any) -> None:
        self._output.send(name, **{**data, "role": child.place.role, "index": child.place.index})
