"""Which worker is to step which vector env: evenly, or in proportion to measured speeds where that pays. Pure.

Where a move would end episodes, each stays with its worker for as long as that is a member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from zmqrl.broker.events import Relieved, StreamAssignment
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.workers import SegmentTimes, Workers

REVIEW_S = 0.5
LEAST_GAIN = 1.15
"""Least factor by which a round must become shorter."""
CONFIRM_S = 3.0
"""So long the gain must last."""
SETTLE_S = 30.0
"""After vector envs were moved by speed, none is moved by speed for so long."""
COST_SHARE = 0.1
"""Share of the time that moves by speed may cost. With the least gain a move regains its cost before the next one."""
PROBE_S, MOST_PROBE_S = 120.0, 1920.0
"""After so long a slow worker without vector envs gets one, to be measured again; doubled each time."""
REPORTED = 1.5
"""The least factor by which a relieved worker is slower to be reported."""


class Owners:
    """Which worker is to step which vector env.

    sync: the vector envs are spread evenly, and a change of the members moves as few as it can. Among workers with the
    same acting digest, whose bits are the same, each has as many as the times of `review` suggest; a slow one may have
    none. Between workers with different digests they stay even. Where they are not movable, a member keeps what it has,
    and one that comes later gets only what another has lost.
    async: each worker has one of its own; that of a worker that has gone is free for another, which continues it under
    a later incarnation.
    """

    def __init__(self, sync: bool, vector_envs: int, workers: Workers, movable: bool = True) -> None:
        """Even at first.

        `vector_envs`: those of the run in sync; in async what the stream table has room for. `movable`: whether they
        may move between members: not where a move restarts episodes.
        """
        self._sync, self._vector_envs, self._workers = sync, vector_envs, workers
        self._movable = movable
        self._owner: dict[int, int] = {}
        self.times = SegmentTimes()
        self._adopted: dict[int, float] = {}
        """Seconds per segment by which vector envs are spread; workers that are not in it count as the median."""
        self._reviewed_at = self._settled_at = float("-inf")
        self._gains_since: float | None = None
        self._cost_s = 0.0
        self._slow: frozenset[int] = frozenset()
        """Workers that were relieved and reported."""
        self._probed: int | None = None
        self._idle_since: dict[int, float] = {}
        self._probe_after_s: dict[int, float] = {}

    def owner(self, vector_env: int) -> int | None:
        """Who is to step it; None: no member is there."""
        return self._owner.get(vector_env)

    def keep(self, vector_env: int, index: int) -> None:
        """This worker steps it already: `balance` moves it only if it has to."""
        self._owner[vector_env] = index

    def balance(self, taken: Collection[int] = ()) -> None:
        """Give each vector env an owner (sync), or each member one.

        Args:
            taken: Vector envs that a process has or may claim: in async they are not given to a member without one.
        """
        if self._sync:
            self._spread()
        else:
            self._give_each(taken)

    def _give_each(self, taken: Collection[int]) -> None:
        members = self._workers.members
        self._owner = {vector_env: index for vector_env, index in self._owner.items() if index in members}
        free = {v for v in range(self._vector_envs) if v not in self._owner and v not in taken}
        for index in sorted(members.difference(self._owner.values())):
            if not free:
                return
            vector_env = index if index in free else min(free)
            free.remove(vector_env)
            self._owner[vector_env] = index

    def _spread(self) -> None:
        held: dict[int, list[int]] = {index: [] for index in sorted(self._workers.members)}
        unowned: list[int] = []
        for vector_env in range(self._vector_envs):
            held.get(self._owner.get(vector_env, -1), unowned).append(vector_env)
        targets = dict.fromkeys(held, self._vector_envs)
        if self._movable:
            loads = {index: len(vector_envs) for index, vector_envs in held.items()}
            targets = self._targets(loads, self._completed(self._adopted, loads), self._probed)
        for index, vector_envs in held.items():
            unowned += (vector_envs.pop() for _ in range(len(vector_envs) - targets[index]))
        for vector_env in unowned if held else ():
            least = min((index for index in held if len(held[index]) < targets[index]), key=lambda i: len(held[i]))
            held[least].append(vector_env)
        self._owner = {vector_env: index for index, vector_envs in held.items() for vector_env in vector_envs}

    # by speed

    def review(self, now: float) -> Sequence[Relieved] | None:
        """Adopt the measured times if that pays, or measure a worker without vector envs again. `now` in seconds.

        Returns:
            Workers that `balance` relieves of vector envs; None when it has nothing to move.
        """
        if not (self._sync and self._movable) or now < self._reviewed_at + REVIEW_S:
            return None
        self._reviewed_at = now
        loads = self._loads()
        self._note_idle(loads, now)
        known = {i: time_s for i in loads if (time_s := self.times.of(i) or self._adopted.get(i)) is not None}
        settle_s = max(SETTLE_S, self._cost_s / COST_SHARE)
        is_known = bool(known) and all(i in known for i, load in loads.items() if load)
        if now < self._settled_at + settle_s or not is_known:
            return None
        times = self._completed(known, loads)
        before = self._targets(loads, self._completed(self._adopted, loads))
        after = self._targets(loads, times)
        if not _gains(_round_s(before, times), _round_s(after, times)):
            self._gains_since = None
            return self._probe(loads, times, now) if self._probed is None else self._end_probe(now)
        self._gains_since = now if self._gains_since is None else self._gains_since
        if now - self._gains_since < CONFIRM_S:
            return None
        self._adopted |= times
        self._probed, self._settled_at, self._gains_since = None, now, None
        return [relieved for index in loads if (relieved := self._relieved(index, loads, after, times)) is not None]

    def _relieved(
        self, index: int, before: Mapping[int, int], after: Mapping[int, int], times: Mapping[int, float]
    ) -> Relieved | None:
        """To be reported: a slow worker that loses vector envs, or gets some back."""
        factor = times[index] / median(time_s for other, time_s in times.items() if other != index)
        loses = after[index] < before[index] and factor >= REPORTED
        regains = index in self._slow and after[index] > before[index]
        self._slow = self._slow - {index} if regains else self._slow | {index} if loses else self._slow
        return Relieved(index, factor, before[index], after[index]) if loses or regains else None

    def note_cost(self, move_s: float) -> None:
        """So much longer than usual was the round in which vector envs moved by speed: replays of open episodes."""
        self._cost_s = move_s

    def round_s(self) -> float:
        """What a round is expected to take."""
        loads = self._loads()
        return _round_s(loads, self._completed(self._adopted, loads))

    def _probe(self, loads: Mapping[int, int], times: Mapping[int, float], now: float) -> Sequence[Relieved] | None:
        """A worker that was slow gets one vector env, if the round would be shorter were it as fast as the others."""
        typical_s, round_s = median(times.values()), _round_s(self._targets(loads, times), times)
        for index, since in self._idle_since.items():
            wait_s = self._probe_after_s.get(index, PROBE_S)
            recovered = {**times, index: min(times[index], typical_s)}
            if now - since >= wait_s and _gains(round_s, _round_s(self._targets(loads, recovered), recovered)):
                self._probe_after_s[index] = min(2.0 * wait_s, MOST_PROBE_S)
                self._probed, self._settled_at = index, now
                return ()
        return None

    def _end_probe(self, now: float) -> Sequence[Relieved]:
        """End the probe: the worker is still slow."""
        self._probed, self._settled_at = None, now
        return ()

    def _note_idle(self, loads: Mapping[int, int], now: float) -> None:
        self._idle_since = {i: self._idle_since.get(i, now) for i, load in loads.items() if not load}
        for index, load in loads.items():
            if load and index != self._probed:
                self._probe_after_s.pop(index, None)

    # counts

    def _loads(self) -> dict[int, int]:
        owners = list(self._owner.values())
        return {index: owners.count(index) for index in sorted(self._workers.members)}

    def _completed(self, times: Mapping[int, float], members: Collection[int]) -> dict[int, float]:
        known = [times[index] for index in members if index in times]
        typical_s = median(known) if known else 1.0
        return {index: times.get(index, typical_s) for index in members}

    def _targets(
        self, loads: Mapping[int, int], times: Mapping[int, float], probed: int | None = None
    ) -> dict[int, int]:
        """How many vector envs each member is to have, such that the slowest of a group ends as early as it can."""
        targets = dict.fromkeys(loads, 0)
        for group, quota in self._quotas(loads):
            others = [index for index in group if index != probed]
            if others and len(others) < len(group) and quota and probed is not None:
                targets[probed], quota = 1, quota - 1
            for _ in range(quota):
                first = min(others or group, key=lambda i: ((targets[i] + 1) * times[i], -loads[i], i))
                targets[first] += 1
        return targets

    def _quotas(self, loads: Mapping[int, int]) -> list[tuple[list[int], int]]:
        """The members with one acting digest, and how many vector envs they have together: even over all members."""
        groups: dict[str, list[int]] = {}
        for index in loads:
            groups.setdefault(self._workers.of(index).acting, []).append(index)
        each, extra = divmod(self._vector_envs, len(loads) or 1)
        quotas = {acting: each * len(group) for acting, group in groups.items()}
        for _ in range(extra):  # to those that have them already
            room = [acting for acting, group in groups.items() if quotas[acting] < (each + 1) * len(group)]
            most = max(room, key=lambda acting: sum(loads[i] for i in groups[acting]) - quotas[acting])
            quotas[most] += 1
        return [(group, quotas[acting]) for acting, group in groups.items()]


class SpeedMoves:
    """Vector envs that move, until each new holder has delivered a segment. Times in seconds."""

    def __init__(self, owners: Owners, ledger: StreamLedger) -> None:
        self._owners, self._ledger = owners, ledger
        self._moving: dict[int, int | None] = {}
        """Vector env to the segment that the new holder begins with, once it has the env."""
        self._since = 0.0

    def review(self, now: float, is_settled: bool) -> Sequence[Relieved] | None:
        """Result of `Owners.review`; None while a vector env is moving. `is_settled`: no other move is under way."""
        if self._moving:
            self._moving = {v: first for v, first in self._moving.items() if not self._is_stepped(v, first)}
            if not self._moving:
                self._owners.note_cost(max(0.0, now - self._since - self._owners.round_s()))
        return self._owners.review(now) if is_settled and not self._moving else None

    def start(self, vector_envs: Iterable[int], now: float) -> None:
        """These have another owner than holder now."""
        self._moving, self._since = dict.fromkeys(vector_envs), now

    def note_handover(self, assignment: StreamAssignment) -> None:
        """A vector env has a new holder."""
        if assignment.vector_env in self._moving:
            self._moving[assignment.vector_env] = assignment.next_index

    def _is_stepped(self, vector_env: int, first: int | None) -> bool:
        """Whether its new holder has delivered a segment."""
        return first is not None and self._ledger.records[vector_env].next_index > first


def _gains(before_s: float, after_s: float) -> bool:
    return before_s > 0.0 and before_s >= LEAST_GAIN * after_s


def _round_s(loads: Mapping[int, int], times: Mapping[int, float]) -> float:
    return max((load * times[index] for index, load in loads.items()), default=0.0)
