"""Which hosts are to have workers now: by their windows (`only`), by their other users (`yield_when`). Pure.

A host is `here` with its configured workers, `kept` (its agent stays and measures when it is free again) or `gone`.
Only a change of this is acted on: in between, `zmqrl scale` and `drain` decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from zmqrl.config.sections import HostSection, YieldSection
from zmqrl.config.windows import Windows
from zmqrl.launch.host_table import HostRow, HostTable

Presence: TypeAlias = Literal["here", "kept", "gone"]
UNSETTLED = ("connecting", "joining", "leaving")


@dataclass(frozen=True)
class Change:
    """What is to be done with one host."""

    row: HostRow
    presence: Presence
    workers: int
    reason: str
    """Why it is away, or why it returns."""


class _Rule:
    """Of one host."""

    def __init__(self, name: str, host: HostSection, workers: int) -> None:
        self.workers = workers
        self.presence: Presence = "here"
        """As the launcher has done it."""
        self._key, self._only, self._yields = f"hosts.{name}.only: {host.only}", host.only, host.yield_when
        self._windows = None if host.only is None else Windows.of(host.only)
        self._used_at: float | None = None
        self._use = ""
        self._measured_by = 0
        """The incarnation of the agent that has measured last."""

    def due(self, row: HostRow, wall: datetime, now: float) -> tuple[Presence, str]:
        """What the host is to be, and why."""
        if self._yields is not None and row.other_use is not None:
            self._measure(self._yields, row, now)
        if self._windows is not None and not self._windows.is_open(wall):
            return "gone", f"outside its window until {self._edge(self._windows, wall)} ({self._key})"
        if self._yields is not None and self._used_at is not None and now - self._used_at < self._yields.quiet_s:
            return "kept", f"in use by others: {self._use}"
        if self.presence == "kept" and self._yields is not None:
            if row.is_gone or row.incarnation != self._measured_by:
                return "kept", f"not measured since its use by others: {self._use}"
            return "here", f"not in use by others for {self._yields.quiet_s:g} s"
        return "here", "" if self._windows is None else f"its window is open until {self._edge(self._windows, wall)}"

    def _edge(self, windows: Windows, wall: datetime) -> str:
        edge = windows.next_change(wall)
        assert edge is not None, "windows that are always open are refused"
        day, seconds = "" if edge.date() == wall.date() else "%a ", ":%S" if edge.second else ""
        return edge.strftime(f"{day}%H:%M{seconds}")

    def _measure(self, yields: YieldSection, row: HostRow, now: float) -> None:
        found, row.other_use = row.other_use, None  # each counts once
        assert found is not None
        self._measured_by = row.incarnation
        if yields.load is not None and found.load > yields.load:
            self._used_at, self._use = now, f"load {found.load:g} (yield_when.load: {yields.load:g})"
        if yields.user_active and found.input_idle_s is not None and found.input_idle_s < yields.quiet_s:
            at = now - found.input_idle_s
            if self._used_at is None or at > self._used_at:
                self._used_at, self._use = at, "input on a terminal (yield_when.user_active)"


class Staffing:
    """Hosts without a rule are never in it."""

    def __init__(self, hosts: Mapping[str, HostSection], workers: Mapping[str, int]) -> None:
        """`workers`: of each host as it is configured."""
        self._rules: dict[str, _Rule] = {}
        for name, host in hosts.items():
            self.admit(name, host, workers.get(name, 0))

    def admit(self, name: str, host: HostSection, workers: int) -> None:
        """A host that joins the run, with its configured workers; its rule of before no longer applies."""
        self._rules.pop(name, None)
        if workers and (host.only is not None or host.yield_when is not None):
            self._rules[name] = _Rule(name, host, workers)

    def begin(self, hosts: HostTable, wall: datetime) -> list[HostRow]:
        """The hosts that are outside of their windows at the start of the run, which are not connected to."""
        for change in self.due(hosts, wall, 0.0, starts=True):
            self.done(change)
        return [hosts[name] for name, rule in self._rules.items() if rule.presence == "gone"]

    def due(self, hosts: HostTable, wall: datetime, now: float, starts: bool = False) -> list[Change]:
        """Changes that are due at `wall`, in the launcher's time, and `now`, in monotonic seconds.

        One that is not `done` is due again. A host that is just connecting or ending is settled first.
        """
        found = []
        for name, rule in self._rules.items():
            row = hosts[name]
            presence, reason = rule.due(row, wall, now)
            if presence != rule.presence:
                if starts or self._is_settled(row, rule, presence, row is hosts.learner):
                    found.append(Change(row, presence, rule.workers if presence == "here" else 0, reason))
            elif row.away:
                row.away = reason
        return found

    def _is_settled(self, row: HostRow, rule: _Rule, presence: Presence, is_learners: bool) -> bool:
        ends = rule.presence == "gone" and row.state == "ready" and not row.workers and not is_learners
        is_unmeasured = presence == "kept" and row.is_gone
        return not (ends or is_unmeasured or row.state in UNSETTLED)

    def done(self, change: Change) -> None:
        """It has taken effect."""
        self._rules[change.row.host].presence = change.presence
        change.row.away = "" if change.presence == "here" else change.reason
        change.row.is_kept = change.presence == "kept"
