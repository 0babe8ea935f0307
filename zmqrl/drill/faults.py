"""The faults of a drill: which, of whom and when, all drawn from one seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from zmqrl.errors import ConfigError


class Action(Enum):
    """What is done to a process."""

    KILL = "kill"
    """SIGKILL."""
    PAUSE = "pause"
    """SIGSTOP for `hold_s`, then SIGCONT."""
    HANG = "hang"
    """SIGSTOP for ever: the run has to notice."""
    STALL = "stall"
    """The env never returns from a step, while the process's heartbeats go on (the witness run alone can do this)."""
    DAMAGE = "damage"
    """The newest checkpoint is cut or overwritten, and the learner killed."""
    NO_SPACE = "no-space"
    """No file of the process may grow for `hold_s` (RLIMIT_FSIZE), as on a full disk."""


@dataclass(frozen=True, order=True)
class Kind:
    """An action and the role that it is done to; `agent` and `launcher` take the whole run with them."""

    role: str
    action: Action

    @property
    def ends_run(self) -> bool:
        """Whether everything must be gone within seconds, and `--resume` goes on."""
        return self.role in WHOLE_RUN

    def __str__(self) -> str:
        return f"{self.role} {self.action.value}"


@dataclass(frozen=True)
class Fault:
    """One fault of the plan."""

    number: int
    at_s: float
    """Seconds after the first version of every run."""
    run: str
    kind: Kind
    index: int = 0
    """Of the process within its role."""
    hold_s: float = 0.0

    @property
    def place(self) -> str:
        """`role-index`, as the process table names it."""
        return f"{self.kind.role}-{self.index}"


WHOLE_RUN = frozenset({"agent", "launcher"})
HOLD_S = (0.5, 3.0)
"""Shortest and longest pause: below `limits.lost_after_s` of a drill, so that the process itself must go on."""
SHARES: Mapping[tuple[str, str], int] = {
    ("worker", "kill"): 4,
    ("broker", "kill"): 3,
    ("learner", "kill"): 3,
    ("evaluator", "kill"): 2,
    ("worker", "pause"): 1,
    ("broker", "pause"): 1,
    ("learner", "pause"): 1,
    ("worker", "hang"): 1,
    ("worker", "stall"): 1,
    ("learner", "damage"): 1,
    ("learner", "no-space"): 1,
    ("agent", "kill"): 1,
    ("launcher", "kill"): 1,
}
"""How often each kind lies in a deck; decks are dealt one after the other, so that no kind is forgotten."""


def kinds_named(words: Sequence[str]) -> frozenset[Kind]:
    """From `role` or `role:fault` to kinds; ConfigError names those that there are."""
    found: set[Kind] = set()
    for word in words:
        role, _, action = word.partition(":")
        meant = {Kind(r, Action(a)) for r, a in SHARES if r == role and action in ("", a)}
        if not meant:
            known = ", ".join(f"{r}:{a}" for r, a in SHARES)
            raise ConfigError(f"--only {word}: there is no such fault; there are {known}, or a role for all of its own")
        found |= meant
    return frozenset(found)


@dataclass(frozen=True)
class Target:
    """A run that faults are planned for."""

    run: str
    roles: frozenset[str]
    """Roles that have processes, beside `agent` and `launcher`."""
    workers: int
    stalls: bool = False
    """Whether its env can be told to hang."""
    only: frozenset[Kind] = frozenset()
    """Kinds that were asked for; none: all."""

    def kinds(self) -> list[Kind]:
        """One deck."""
        found = []
        for (role, action), share in SHARES.items():
            there = role in WHOLE_RUN or role in self.roles
            kind = Kind(role, Action(action))
            if there and (self.stalls or kind.action is not Action.STALL) and (not self.only or kind in self.only):
                found += [kind] * share
        return found


def plan_faults(seed: int, count: int, for_s: float, targets: Sequence[Target]) -> tuple[Fault, ...]:
    """`count` faults over `for_s` seconds, in order of time; the same for the same arguments.

    Raises:
        ConfigError: None of the kinds that were asked for can be done to these runs.
    """
    dice = random.Random(seed)
    targets = [target for target in targets if target.kinds()]
    if not targets:
        raise ConfigError("--only: no process of these runs can have such a fault")
    decks = {target.run: _dealt(target.kinds(), dice) for target in targets}
    faults = []
    for number, at_s in enumerate(sorted(dice.uniform(0.0, for_s) for _ in range(count))):
        target = targets[dice.randrange(len(targets))]
        kind = next(decks[target.run])
        index = dice.randrange(target.workers) if kind.role == "worker" else 0
        held = kind.action in (Action.PAUSE, Action.NO_SPACE)
        hold_s = round(dice.uniform(*HOLD_S), 2) if held else 0.0
        faults.append(Fault(number, round(at_s, 3), target.run, kind, index, hold_s))
    return tuple(faults)


def _dealt(deck: list[Kind], dice: random.Random) -> Iterator[Kind]:
    while True:
        yield from dice.sample(deck, len(deck))
