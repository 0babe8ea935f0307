"""Which lost hosts are connected to again, and when. Pure."""

from __future__ import annotations

from zmqrl.launch.run.host_records import Absence, HostRecord
from zmqrl.launch.run.hosts import Hosts

FIRST_S, MOST_S, MOST_AFTER_RETURN_S = 0.5, 2.0, 5.0
"""Wait before the first attempt, which doubles up to the longest; and the longest for a host that is lost again soon
after it returned."""
LONG_S, SELDOM_S = 600.0, 30.0
"""A host that has been away for so long is tried so often."""
SETTLED_S = 60.0
"""So long a host has to be ready before its next loss counts as the first."""


def due(hosts: Hosts, now: float) -> list[HostRecord]:
    """Lost hosts to connect to now, in monotonic seconds; each is `connecting` before the next call.

    Hosts that never joined have a fault that their user has to fix.
    """
    found = []
    for record in hosts:
        is_wanted = record.is_missing and record.incarnation and (record.workers or record.is_kept)
        if is_wanted and record is not hosts.learner and _attempt(record, now):
            found.append(record)
    return found


def settle(hosts: Hosts, now: float) -> list[tuple[HostRecord, float]]:
    """Hosts that have returned since the last call (not with `rejoin: manual`), and their seconds of absence."""
    returned = []
    for record in hosts:
        absence = record.absence
        if absence is None or record.is_missing:
            continue
        if record.state in ("drained", "ended"):
            record.absence = None
        elif record.state == "ready":
            if absence.ready_since is None:
                absence.ready_since = now
                returned.append((record, now - absence.since))
            if now - absence.ready_since >= SETTLED_S:
                record.absence = None
    return returned


def _attempt(record: HostRecord, now: float) -> bool:
    absence = record.absence = record.absence or Absence(now, now + FIRST_S, FIRST_S)
    if absence.ready_since is not None:  # it was here for a while
        absence.since, absence.ready_since = now, None
        absence.next_at = now + _delay_s(absence, now, MOST_AFTER_RETURN_S)
    if now < absence.next_at:
        return False
    absence.backoff_s = min(2 * absence.backoff_s, MOST_AFTER_RETURN_S)
    absence.next_at = now + _delay_s(absence, now, MOST_S)
    return True


def _delay_s(absence: Absence, now: float, most_s: float) -> float:
    return SELDOM_S if now - absence.since >= LONG_S else min(most_s, absence.backoff_s)
