"""How a host's part of the run ends: role after role, what is left is killed, and everything is counted."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping

from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.shutdown_policy import CloseEvaluator, KillRole, ScoreFinal, ShutdownMode, ShutdownPolicy, Terminate
from zmqrl.config.plan import Boot
from zmqrl.messages.agent import HostFinished
from zmqrl.messages.command import Evaluate
from zmqrl.supervision.process_table import ProcessId
from zmqrl.supervision.restarts import ProcessSlot
from zmqrl.types import Ledger, Notice

HURRIED_GRACE_S = 2.5
"""Limit after the end of stdin: the host agent ends within 3 s."""


class Shutdown:
    """Carries out what `agent.shutdown_policy` decides, on the children of one agent."""

    def __init__(self, boot: Boot, children: Mapping[ProcessSlot, ChildProcess]) -> None:
        self._boot, self._children = boot, children
        self._policy: ShutdownPolicy | None = None
        self._ended = 0
        self._killed: list[str] = []
        self.final_notice: Notice | None = None
        """What the learner published last, as it reported at its end."""

    @property
    def begun(self) -> bool:
        """Whether the host is ending."""
        return self._policy is not None

    def begin(self, shutdown_mode: ShutdownMode, now: float) -> None:
        """End from now on; a harder mode replaces a softer one."""
        if self._policy is not None and shutdown_mode in (ShutdownMode.CLEAN, ShutdownMode.FAILED):
            return
        config = self._boot.plan.config
        grace_s = HURRIED_GRACE_S if shutdown_mode is ShutdownMode.HURRIED else config.limits.grace_s
        self._policy = ShutdownPolicy(shutdown_mode, grace_s, config.evaluator.final_limit_s, now)

    def extend(self, role: str, now: float) -> None:
        """A process of the role reports that it is writing."""
        if self._policy is not None:
            self._policy.extend(role, now)

    def is_over(self, now: float) -> bool:
        """Nothing of the host is alive, or nothing more can be done."""
        return self._policy is not None and self._policy.is_over(self._roles_alive(), now)

    def step(self, current: Notice | None, now: float) -> None:
        """What is due now. `current`: the newest version that this host knows."""
        for action in self._policy.step(self._roles_alive(), now) if self._policy else ():
            if isinstance(action, ScoreFinal):
                self._score_final(current)
            elif isinstance(action, CloseEvaluator):
                self._close_evaluator()
            elif isinstance(action, (Terminate, KillRole)):
                number = signal.SIGTERM if isinstance(action, Terminate) else signal.SIGKILL
                for child in [c for c in self._children.values() if c.slot.role == action.role]:
                    child.send_signal(number)

    def count(self, child: ChildProcess) -> None:
        """A process that was to end has ended."""
        if child.killed:
            self._killed.append(f"{self._boot.host}/{child.slot} (pid {child.identity.pid})")
        else:
            self._ended += 1

    def report(
        self, killed_orphans: Iterable[ProcessId], left_orphans: Iterable[ProcessId], ledger: Ledger | None
    ) -> HostFinished:
        """Once it is over, without peaks. Orphans: what processes of the run have started and left behind."""
        killed, left = [*self._killed, *self._named(killed_orphans)], self._named(left_orphans)
        left += [f"{self._boot.host}/{slot} (pid {c.identity.pid})" for slot, c in self._children.items()]
        stopped = self._policy is not None and self._policy.final_stopped
        return HostFinished(ledger, {}, self._ended, killed, left, stopped)

    def _roles_alive(self) -> set[str]:
        return {slot.role for slot in self._children}

    def _score_final(self, current: Notice | None) -> None:
        notice = self.final_notice or current
        evaluator = self._children.get(ProcessSlot("evaluator", 0))
        if notice is None:
            self._close_evaluator()
        elif evaluator is not None and evaluator.stdin_fd >= 0:
            evaluator.write_line(Evaluate(notice, final=True))
            evaluator.expected_to_end = True

    def _close_evaluator(self) -> None:
        evaluator = self._children.get(ProcessSlot("evaluator", 0))
        if evaluator is not None and evaluator.stdin_fd >= 0:
            evaluator.expected_to_end = True
            evaluator.close_stdin()

    def _named(self, orphans: Iterable[ProcessId]) -> list[str]:
        return [f"{self._boot.host}/stray (pid {process.pid})" for process in orphans]
