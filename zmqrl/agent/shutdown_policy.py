"""The order in which a host's processes end. Pure: who is alive and what time it is in, actions out."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum

from msgspec import Struct

EVALUATOR_EXIT_S = 1.0
"""How long an evaluator whose stdin was closed may take."""
REAP_S = 5.0
"""How long a killed process may take: a process in D state does not receive SIGKILL."""
ORDER = ("learner", "worker", "broker")


class ShutdownMode(Enum):
    """How a host ends."""

    CLEAN = "clean"
    """One role after the other, the evaluator scores the final version."""
    FAILED = "failed"
    """Shutdown as by CLEAN, but nothing final is scored, and the learner awaits no round: it cannot come together."""
    HURRIED = "hurried"
    """All at once, within the grace: the launcher is gone."""
    KILL = "kill"
    """SIGKILL at once."""


class Terminate(Struct, frozen=True):
    """SIGTERM every process of the role."""

    role: str


class KillRole(Struct, frozen=True):
    """SIGKILL every process of the role that is still there."""

    role: str


class ScoreFinal(Struct, frozen=True):
    """Give the evaluator the final version."""


class CloseEvaluator(Struct, frozen=True):
    """Close the evaluator's stdin: end now."""


EndAction = Terminate | KillRole | ScoreFinal | CloseEvaluator


class ShutdownPolicy:
    """Learner, then workers, then broker, each bounded; the evaluator alongside them, without delaying them."""

    def __init__(self, shutdown_mode: ShutdownMode, grace_s: float, final_limit_s: float, now: float) -> None:
        self._shutdown_mode = shutdown_mode
        self._grace_s = grace_s
        self._final_limit_s = final_limit_s if shutdown_mode is ShutdownMode.CLEAN else 0.0
        self._stage = 0
        self._stage_until: dict[str, float] = {}
        self._killed: dict[str, float] = {}
        self._evaluator_until: float | None = None
        self._evaluator_closed = False
        self._began = now
        self._abandons_round = shutdown_mode is ShutdownMode.FAILED
        self.final_stopped = False
        """Whether the evaluator was stopped at `final_limit_s`, before the score of the final version."""

    def step(self, alive: Set[str], now: float) -> list[EndAction]:
        """What to do now. `alive`: the roles that have running processes."""
        if self._shutdown_mode is ShutdownMode.KILL:
            return self._kill([*ORDER, "evaluator"], alive, now)
        if self._shutdown_mode is ShutdownMode.HURRIED:
            return self._hurried(alive, now)
        return [*self._in_order(alive, now), *self._evaluator(alive, now)]

    def extend(self, role: str, now: float) -> None:
        """A process of the role is writing what it has to leave: its grace begins again, unless the host hurries."""
        if self._shutdown_mode in (ShutdownMode.CLEAN, ShutdownMode.FAILED) and role in self._stage_until:
            self._stage_until[role] = now + self._grace_s

    def is_over(self, alive: Set[str], now: float) -> bool:
        """Nothing is alive, or what is does not even receive SIGKILL."""
        return all(role in self._killed and now - self._killed[role] > REAP_S for role in alive)

    def _kill(self, roles: list[str], alive: Set[str], now: float) -> list[EndAction]:
        actions: list[EndAction] = []
        for role in roles:
            if role in alive and role not in self._killed:
                self._killed[role] = now
                actions.append(KillRole(role))
        return actions

    def _hurried(self, alive: Set[str], now: float) -> list[EndAction]:
        if not self._stage_until:
            self._stage_until = dict.fromkeys((*ORDER, "evaluator"), self._began + self._grace_s)
            return [*(Terminate(role) for role in ORDER if role in alive), CloseEvaluator()]
        return self._kill([role for role, until in self._stage_until.items() if now >= until], alive, now)

    def _in_order(self, alive: Set[str], now: float) -> list[EndAction]:
        actions: list[EndAction] = []
        while self._stage < len(ORDER):
            role = ORDER[self._stage]
            stuck = role in self._killed and now - self._killed[role] > REAP_S
            if role in alive and not stuck:
                if role not in self._stage_until:
                    self._stage_until[role] = now + self._grace_s
                    actions.append(Terminate(role))
                elif self._abandons_round and role == "learner":
                    self._abandons_round = False
                    actions.append(Terminate(role))  # the second one means: at once
                elif now >= self._stage_until[role]:
                    actions += self._kill([role], alive, now)
                return actions
            self._stage += 1
        return actions

    def _evaluator(self, alive: Set[str], now: float) -> list[EndAction]:
        if self._stage == 0 or "evaluator" not in alive:
            return []
        if self._evaluator_until is None:
            self._evaluator_until = now + self._final_limit_s
            if self._final_limit_s > 0:
                return [ScoreFinal()]
        if now >= self._evaluator_until and not self._evaluator_closed:
            self._evaluator_closed = True
            self.final_stopped = self._final_limit_s > 0
            return [CloseEvaluator()]
        if now >= self._evaluator_until + EVALUATOR_EXIT_S:
            self.final_stopped = self._shutdown_mode is ShutdownMode.CLEAN
            return self._kill(["evaluator"], alive, now)
        return []
