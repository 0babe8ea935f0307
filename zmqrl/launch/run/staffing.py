"""Which hosts are to have workers now: by their windows (`only`), by their other users (`yield_when`). Pure.

A host is `here` with its configured workers, `kept` (its agent stays and measures when it is free again) or `gone`.
Only a change of this is acted on: in between, `zmqrl scale` and `drain` decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from zmqrl.config.sections import HostSection
from zmqrl.config.windows import Windows
from zmqrl.launch.run.host_records import HostRecord, Presence, StaffingRule
from zmqrl.launch.run.hosts import Hosts

UNSETTLED = ("connecting", "joining", "leaving")


@dataclass(frozen=True)
class Change:
    """What is to be done with one host."""

    record: HostRecord
    rule: StaffingRule
    presence: Presence
    workers: int
    reason: str
    """Why it is away, or why it returns."""

    def done(self) -> None:
        """Record that the change has taken effect."""
        self.rule.presence = self.presence
        self.record.away = "" if self.presence == "here" else self.reason
        self.record.is_kept = self.presence == "kept"


def rule_of(section: HostSection, workers: int) -> StaffingRule | None:
    """Rule of a host with this section and so many workers as configured. None: nothing is to be decided."""
    has_keys = section.only is not None or section.yield_when is not None
    return StaffingRule(workers) if workers and has_keys else None


def begin(hosts: Hosts, wall: datetime) -> list[HostRecord]:
    """The hosts that are outside of their windows at the start of the run, which are not connected to."""
    for record in hosts:
        record.rule = rule_of(record.section, record.workers)
    for change in due(hosts, wall, 0.0, starts=True):
        change.done()
    return [record for record in hosts if record.rule is not None and record.rule.presence == "gone"]


def due(hosts: Hosts, wall: datetime, now: float, starts: bool = False) -> list[Change]:
    """Changes that are due at `wall`, in the launcher's time, and `now`, in monotonic seconds.

    One that is not `done` is due again. A host that is just connecting or ending is settled first.
    """
    found = []
    for record in hosts:
        rule = record.rule
        if rule is None:
            continue
        presence, reason = _wanted(record, rule, wall, now)
        if presence != rule.presence:
            if starts or _is_settled(record, rule, presence, record is hosts.learner):
                found.append(Change(record, rule, presence, rule.workers if presence == "here" else 0, reason))
        elif record.away:
            record.away = reason
    return found


def _wanted(record: HostRecord, rule: StaffingRule, wall: datetime, now: float) -> tuple[Presence, str]:
    """What the host is to be, and why."""
    only, yields = record.section.only, record.section.yield_when
    windows = None if only is None else Windows.of(only)
    _measure(record, rule, now)
    if windows is not None and not windows.is_open(wall):
        key = f"hosts.{record.host}.only: {only}"
        return "gone", f"outside its window until {_edge(windows, wall)} ({key})"
    if yields is not None and rule.used_at is not None and now - rule.used_at < yields.quiet_s:
        return "kept", f"in use by others: {rule.use}"
    if rule.presence == "kept" and yields is not None:
        if record.is_gone or record.incarnation != rule.measured_by:
            return "kept", f"not measured since its use by others: {rule.use}"
        return "here", f"not in use by others for {yields.quiet_s:g} s"
    return "here", "" if windows is None else f"its window is open until {_edge(windows, wall)}"


def _edge(windows: Windows, wall: datetime) -> str:
    edge = windows.next_change(wall)
    assert edge is not None, "windows that are always open are refused"
    day, seconds = "" if edge.date() == wall.date() else "%a ", ":%S" if edge.second else ""
    return edge.strftime(f"{day}%H:%M{seconds}")


def _measure(record: HostRecord, rule: StaffingRule, now: float) -> None:
    """Each measurement counts once."""
    yields, found = record.section.yield_when, record.other_use
    if yields is None or found is None:
        return
    record.other_use, rule.measured_by = None, record.incarnation
    if yields.load is not None and found.load > yields.load:
        rule.used_at, rule.use = now, f"load {found.load:g} (yield_when.load: {yields.load:g})"
    if yields.user_active and found.input_idle_s is not None and found.input_idle_s < yields.quiet_s:
        at = now - found.input_idle_s
        if rule.used_at is None or at > rule.used_at:
            rule.used_at, rule.use = at, "input on a terminal (yield_when.user_active)"


def _is_settled(record: HostRecord, rule: StaffingRule, presence: Presence, is_learners: bool) -> bool:
    ends = rule.presence == "gone" and record.state == "ready" and not record.workers and not is_learners
    is_unmeasured = presence == "kept" and record.is_gone
    return not (ends or is_unmeasured or record.state in UNSETTLED)
