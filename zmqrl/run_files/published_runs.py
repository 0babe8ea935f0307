"""The live runs of a machine, of all its users, as rows of `zmqrl runs --lab`: what launchers and agents publish."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from zmqrl.config.codec import replace
from zmqrl.run_files.publication import SILENT_S, Published, live_publications
from zmqrl.run_files.run_list import NO_RUN, RunRow
from zmqrl.supervision.host_entry import Entry, user_name
from zmqrl.supervision.host_lock import AGENTS, HostLock

NOTHING = replace(NO_RUN, live=True, state="running")
"""A live run of which nothing is known. The directory of a run is not published."""


def published_runs(prefix: Path = AGENTS) -> list[RunRow]:
    """The newest first. A run whose launcher is elsewhere has a row while an agent of it is here."""
    register = HostLock(prefix)
    agents = [_row_of_agent(entry) for entry in register.entries() if entry.is_live]
    return merged([agents, map(_row, live_publications(register))])


def merged(lists: Iterable[Iterable[RunRow]]) -> list[RunRow]:
    """Each run once, the newest first, by the row of its launcher if there is one.

    A row with text that is not printable is left out: the names of runs, envs and users have none.
    """
    found = (row for rows in lists for row in rows if _is_printable(row))
    runs = {(row.run_id, row.user): row for row in sorted(found, key=lambda row: row.env is not None)}
    return sorted(runs.values(), key=lambda row: (-(row.started_at or 0.0), row.run_id or ""))


def rows_in(output: bytes) -> list[RunRow]:
    """The rows that another host printed, in the last line. ValueError: there are none."""
    return msgspec.json.decode(output.strip().rpartition(b"\n")[2], type=list[RunRow])


def _row(published: Published) -> RunRow:
    run, silent_s = published
    is_silent = silent_s >= SILENT_S
    return replace(
        NOTHING,
        run_id=run.run_id,
        env=run.env,
        algorithm=run.algorithm,
        state="unknown" if is_silent else run.state,
        env_steps=run.env_steps,
        train_return_mean_100=run.train_return_mean_100,
        started_at=run.started_at,
        host=run.host,
        user=user_name(run.uid),
        reason=f"its launcher has been silent for {silent_s:.0f} s" if is_silent else None,
    )


def _row_of_agent(entry: Entry) -> RunRow:
    """What an agent has registered; the host of the launcher is that of `anna@laptop`."""
    host = entry.launcher.rpartition("@")[2]
    return replace(NOTHING, run_id=entry.run_id, started_at=entry.since, host=host, user=entry.user)


def _is_printable(row: RunRow) -> bool:
    return all(value.isprintable() for value in msgspec.structs.astuple(row) if isinstance(value, str))
