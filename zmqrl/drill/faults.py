"""The faults of a drill: which, of whom and when, all drawn from one seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from zmqrl.errors import ConfigError

WHOLE_RUN = frozenset({"agent", "launcher"})
"""Roles whose death ends the attempt."""
NOT_APPLICABLE = (
    "the fault does not apply to any process of these runs; disk-full requires --small-disk, and mode single has no "
    "broker and no workers"
)
EVERY_PROCESS = "run"
"""The role of faults of all processes of a run."""
_SHARES = """
worker kill 4, broker kill 3, learner kill 3, evaluator kill 2, broker+learner kill 1,
worker+broker+learner kill 1, worker kill-start 1, broker kill-start 1, learner kill-start 1, worker pause 1,
broker pause 1, learner pause 1, worker+broker pause 1, broker+learner pause 1, run pause 1, worker hang 1,
worker stall 1, learner damage 1, learner kill-away 1, learner no-space 1, run no-space 1, run disk-full 1,
run store-away 1, agent kill 1, launcher kill 1, learner kill-resume 1, agent kill-resume 1, worker kill-end 1,
broker kill-end 1, learner kill-end 1, agent kill-end 1, launcher kill-end 1
"""
SHARES: Mapping[tuple[str, str], int] = {
    (role, action): int(share) for role, action, share in map(str.split, _SHARES.split(","))
}
"""How often each kind lies in a deck; decks are dealt one after the other, so that every kind occurs."""


class FaultAction(Enum):
    """What is done."""

    KILL = "kill"
    """SIGKILL."""
    KILL_START = "kill-start"
    """SIGKILL, and again for the successor, `hold_s` after it appeared: before it can be ready."""
    KILL_RESUME = "kill-resume"
    """The launcher is killed, the run resumed, and the process killed `hold_s` after it appeared in the new attempt."""
    KILL_END = "kill-end"
    """The run is stopped, and the process killed while it ends; then the run is resumed."""
    PAUSE = "pause"
    """SIGSTOP for `hold_s`, then SIGCONT."""
    HANG = "hang"
    """SIGSTOP for ever: the run has to notice."""
    STALL = "stall"
    """The env never returns from a step, while the process's heartbeats continue (witness run only)."""
    DAMAGE = "damage"
    """The newest checkpoint is cut or overwritten, and the learner killed."""
    NO_SPACE = "no-space"
    """No file may grow by the process for `hold_s` (RLIMIT_FSIZE), as on a full disk."""
    DISK_FULL = "disk-full"
    """The disk of the run's directory is filled for `hold_s` (ENOSPC); `--small-disk` makes one that can be."""
    STORE_AWAY = "store-away"
    """The directory of the checkpoints is renamed for `hold_s`."""
    KILL_AWAY = "kill-away"
    """The same, and SIGKILL as soon as it is renamed: the successor starts without a store."""


STORE_ACTIONS = frozenset({FaultAction.DAMAGE, FaultAction.STORE_AWAY, FaultAction.KILL_AWAY})
"""What is done to the files of the store."""


@dataclass(frozen=True, order=True)
class Kind:
    """An action, and the role or roles (`broker+learner`) that it is done to at the same moment."""

    role: str
    action: FaultAction

    @property
    def roles(self) -> tuple[str, ...]:
        """Each of them."""
        return tuple(self.role.split("+"))

    @property
    def ends_run(self) -> bool:
        """Whether the attempt ends with it, and `--resume` continues."""
        return self.action in (FaultAction.KILL_RESUME, FaultAction.KILL_END) or bool(WHOLE_RUN & {*self.roles})

    @property
    def exclusive(self) -> bool:
        """Whether no other fault of the run may be open: it ends the attempt, or is done to every process."""
        return self.ends_run or (self.role == EVERY_PROCESS and self.action not in STORE_ACTIONS)

    def __str__(self) -> str:
        return f"{self.role} {self.action.value}"


@dataclass(frozen=True)
class PlannedFault:
    """One fault of the plan."""

    number: int
    at_s: float
    """Seconds after the first version of every run."""
    run: str
    kind: Kind
    index: int = 0
    """Index of the worker, where one is meant."""
    hold_s: float = 0.0
    """How long it lasts, or how late the kill of a start or a resume comes."""

    @property
    def slots(self) -> tuple[str, ...]:
        """`role-index` of each process that is meant, as the process table names it; none for the whole run."""
        roles = [] if self.kind.role == EVERY_PROCESS else self.kind.roles
        return tuple(f"{role}-{self.index if role == 'worker' else 0}" for role in roles)

    def may_overlap(self, other: PlannedFault) -> bool:
        """Whether both may be open at once: a process has one fault at a time, and so has the store."""
        if self.kind.exclusive or other.kind.exclusive:
            return False
        if {self.kind.action, other.kind.action} <= STORE_ACTIONS:
            return False
        return not {*self.slots} & {*other.slots}


HOLD_S: Mapping[FaultAction, tuple[float, float]] = {
    FaultAction.PAUSE: (0.5, 3.0),
    FaultAction.NO_SPACE: (0.5, 3.0),
    FaultAction.DISK_FULL: (0.5, 3.0),
    FaultAction.STORE_AWAY: (0.5, 3.0),
    FaultAction.KILL_AWAY: (0.5, 3.0),
    FaultAction.KILL_START: (0.0, 0.2),
    FaultAction.KILL_RESUME: (0.0, 0.5),
    FaultAction.KILL_END: (0.0, 0.2),
}
"""Shortest and longest. A pause is below `limits.lost_after_s` of a drill, so that the process itself must continue."""


def kinds_named(values: Sequence[str]) -> frozenset[Kind]:
    """Kinds that each `role` or `role:fault` names; ConfigError names those that there are."""
    return frozenset(kind for value in values for kind in _kinds(value, "--only"))


def _kinds(value: str, option: str) -> list[Kind]:
    role, _, action = value.partition(":")
    meant = [Kind(r, FaultAction(a)) for r, a in SHARES if r == role and action in ("", a)]
    if not meant:
        known = ", ".join(f"{r}:{a}" for r, a in SHARES)
        role_alone = ", or a role for all faults of it" if option == "--only" else ""
        raise ConfigError("unknown fault", key=(option,), value=value, fix=f"known: {known}{role_alone}")
    return meant


@dataclass(frozen=True)
class Minimum:
    """How many faults of one kind have to be injected, over all runs of the drill."""

    kind: Kind
    count: int

    def counts(self, kind: Kind) -> bool:
        """Whether `kind` is one of these: a kill of several roles at once is a kill of each."""
        return kind.action is self.kind.action and {*self.kind.roles} <= {*kind.roles}


def minimums_named(values: Sequence[str]) -> tuple[Minimum, ...]:
    """Minimums of each `role:fault=N`; ConfigError states what is wrong."""
    found = []
    for value in values:
        name, _, count = value.partition("=")
        if not count.isdecimal() or int(count) < 1 or ":" not in name:
            raise ConfigError("write ROLE:FAULT=N, for example worker:kill=6", key=("--at-least",), value=value)
        found.append(Minimum(_kinds(name, "--at-least")[0], int(count)))
    return tuple(found)


@dataclass(frozen=True)
class DrillTarget:
    """A run that faults are planned for."""

    run: str
    roles: frozenset[str]
    """Roles that have processes, alongside `agent` and `launcher`."""
    workers: int
    stalls: bool = False
    """Whether its env can be made to hang."""
    small_disk: bool = False
    """Whether its directory lies on a disk that can be filled."""
    only: frozenset[Kind] = frozenset()
    """Kinds that were requested; none: all."""

    def kinds(self) -> list[Kind]:
        """One deck."""
        deck = ([Kind(role, FaultAction(action))] * share for (role, action), share in SHARES.items())
        return [
            kind for kinds in deck for kind in kinds if self.can_have(kind) and (not self.only or kind in self.only)
        ]

    def can_have(self, kind: Kind) -> bool:
        """Whether the run has these processes and its env can do that."""
        there = {*kind.roles} <= {*self.roles, *WHOLE_RUN, EVERY_PROCESS}
        able = {FaultAction.STALL: self.stalls, FaultAction.DISK_FULL: self.small_disk}
        return there and able.get(kind.action, True)


def plan_faults(
    seed: int, count: int, for_s: float, targets: Sequence[DrillTarget], minimums: Sequence[Minimum] = ()
) -> tuple[PlannedFault, ...]:
    """`count` faults over `for_s` seconds, in order of time; the same for the same arguments.

    Raises:
        ConfigError: None of the kinds that were requested can be done to these runs, or `minimums` are more than
            `count` faults.
    """
    dice = random.Random(seed)
    kinds = _drawn(dice, count, [target for target in targets if target.kinds()], minimums)
    faults = []
    times = sorted(dice.uniform(0.0, for_s) for _ in range(count))
    for number, (at_s, (target, kind)) in enumerate(zip(times, kinds, strict=True)):
        index = dice.randrange(target.workers) if "worker" in kind.roles else 0
        held = HOLD_S.get(kind.action)
        hold_s = round(dice.uniform(*held), 2) if held else 0.0
        faults.append(PlannedFault(number, round(at_s, 3), target.run, kind, index, hold_s))
    return tuple(faults)


def _drawn(
    dice: random.Random, count: int, targets: Sequence[DrillTarget], minimums: Sequence[Minimum]
) -> list[tuple[DrillTarget, Kind]]:
    """`count` kinds of fault and whose, in any order: first those that have to be, then from the decks."""
    if not targets:
        raise ConfigError(NOT_APPLICABLE, key=("--only",))
    drawn = [(_able(targets, minimum.kind, dice), minimum.kind) for minimum in minimums for _ in range(minimum.count)]
    if len(drawn) > count:
        what = f"{len(drawn)} faults in all, and the drill has {count}"
        raise ConfigError(what, key=("--at-least",), fix=f"set --faults {len(drawn)}")
    decks = {target.run: _dealt(target.kinds(), dice) for target in targets}
    while len(drawn) < count:
        target = targets[dice.randrange(len(targets))]
        drawn.append((target, next(decks[target.run])))
    if minimums:
        dice.shuffle(drawn)
    return drawn


def _able(targets: Sequence[DrillTarget], kind: Kind, dice: random.Random) -> DrillTarget:
    able = [target for target in targets if target.can_have(kind)]
    if not able:
        raise ConfigError(NOT_APPLICABLE, key=("--at-least",), value=f"{kind.role}:{kind.action.value}")
    return able[dice.randrange(len(able))]


def _dealt(deck: list[Kind], dice: random.Random) -> Iterator[Kind]:
    while True:
        yield from dice.sample(deck, len(deck))
