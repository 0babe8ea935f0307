"""Who is lost, stalled or slow: judged from heartbeats, which come from a separate thread in each process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from zmqrl.config.sections import LimitsSection
from zmqrl.types import JudgedRole

SLOW_HEARTBEATS = 20
"""A process that has work and makes no progress for so many heartbeats is slow, until it is stalled."""

UNHEARD = -1
"""The progress of who was expected and not received."""

State = Literal["well", "slow", "stalled", "lost"]


@dataclass(frozen=True)
class Member:
    """A process that sends heartbeats."""

    role: JudgedRole
    index: int


@dataclass(frozen=True)
class Beat:
    """One heartbeat."""

    member: Member
    spawn: int
    progress: int
    """Grows, or changes at least, when the process makes progress."""


@dataclass(frozen=True)
class Judgement:
    """A member's new state."""

    member: Member
    spawn: int
    state: State


@dataclass
class _Heard:
    spawn: int
    progress: int
    at: float
    moved_at: float
    state: State = "well"


class Liveness:
    """lost: silent for `lost_after_s`; stalled: received, has work, no progress for `stalled_after_s`. Pure."""

    def __init__(self, limits: LimitsSection) -> None:
        self._lost_after_s, self._stalled_after_s = limits.lost_after_s, limits.stalled_after_s
        self._start_s = max(0.0, limits.start_s - limits.lost_after_s)
        self._slow_after_s = SLOW_HEARTBEATS * limits.heartbeat_s
        self._members: dict[Member, _Heard] = {}

    def hear(self, beat: Beat, now: float) -> None:
        """Take a heartbeat in; one of an earlier spawn is stale."""
        known = self._members.get(beat.member)
        if known is None or known.spawn < beat.spawn:
            self._members[beat.member] = _Heard(beat.spawn, beat.progress, now, now)
        elif known.spawn == beat.spawn:
            known.at = now
            if known.progress != beat.progress:
                known.progress, known.moved_at = beat.progress, now

    def expect(self, member: Member, spawn: int, ready: bool, now: float) -> None:
        """Its agent reported the start: its silence counts, also without a first message.

        From when it is `ready` on, at the latest from `limits.start_s` on.
        """
        known = self._members.get(member)
        if known is None or known.spawn < spawn:
            since = now if ready else now + self._start_s
            self._members[member] = _Heard(spawn, UNHEARD, since, since)
        elif ready and known.spawn == spawn and known.progress == UNHEARD:
            known.at, known.moved_at = min(known.at, now), min(known.moved_at, now)

    def forget(self, member: Member) -> None:
        """It ended, and was reaped."""
        self._members.pop(member, None)

    def judge(self, has_work: Callable[[Member], bool], now: float) -> list[Judgement]:
        """Every member whose state changed since the last call; `now` in monotonic seconds."""
        changed = []
        for member, heard in self._members.items():
            if not has_work(member):
                heard.moved_at = max(heard.moved_at, heard.at)
            state = self._state(heard, now)
            if state != heard.state:
                heard.state = state
                changed.append(Judgement(member, heard.spawn, state))
        return changed

    def _state(self, heard: _Heard, now: float) -> State:
        if now - heard.at >= self._lost_after_s:
            return "lost"
        if now - heard.moved_at >= self._stalled_after_s:
            return "stalled"
        return "slow" if now - heard.moved_at >= self._slow_after_s else "well"
