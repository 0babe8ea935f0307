"""`runs`: a table of the runs below folders."""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from zmqrl.cli.queue import IN
from zmqrl.cli.run.on import OnCommand
from zmqrl.errors import ConfigError
from zmqrl.summary import Status
from zmqrl.views.base import UNKNOWN, aligned

if TYPE_CHECKING:
    from zmqrl.run_files.run_list import RunRow

RUNS = Path("runs")
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
STATES = ("waiting", "starting", "running", "paused", "ending", *get_args(Status), "unknown", "damaged", "unreadable")
HEAD = ("RUN", "ID", "ENV", "ALGORITHM", "STATE", "ENV STEPS", "RETURN", "BEST", "AGE", "HOST", "USER", "JOB", "REASON")
OF_HOST = ("runs", "--lab", "--json")
NUMBERS = ("ENV STEPS", "RETURN", "BEST", "AGE")
"""Columns that are aligned to the right."""


class _Duration(click.ParamType[float]):
    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
        if found is None:
            self.fail(f"{value!r} is not a number with a unit: 90s, 30m, 12h or 2d")
        return float(found[1]) * UNITS_S[found[2]]


@click.command("runs", cls=OnCommand)
@click.argument("folders", type=click.Path(path_type=Path, readable=False), metavar="[DIR]...", nargs=-1)
@click.option("--env", metavar="ID", help="Only runs in this env: an id, or a pattern such as ALE/*.")
@click.option("--algo", metavar="KIND", help="Only runs of this algorithm: a kind, or a pattern such as *dqn.")
@click.option("--user", metavar="NAME", help="Only runs of this user: the owner of run.json.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only this state; may be repeated.")
@click.option(
    "--since", "since_s", type=_Duration(), help="Only runs whose last attempt began within DURATION, e.g. 12h or 2d."
)
@click.option(
    "--lab",
    is_flag=False,
    flag_value="",
    metavar="[HOSTS]",
    help="In place of DIR: the live runs of all users on this machine, and on the hosts of the hosts file HOSTS.",
)
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@IN
def runs_command(
    folders: tuple[Path, ...],
    env: str | None,
    algo: str | None,
    user: str | None,
    states: tuple[str, ...],
    since_s: float | None,
    lab: str | None,
    as_data: bool,
    folder: Path,
) -> None:
    """List the runs in and below each DIR, the newest first.

    DIR is a folder. Default: runs/. RETURN is the mean return of the last 100 training episodes, BEST the highest
    score of the evaluator that has a checkpoint in the run directory, with the name of evaluator.best_by if it is not
    a return, AGE the time since the last attempt began, JOB the number of the run in the queue, and its position there
    if it waits.
    """
    if lab is not None and folders:
        raise click.UsageError("--lab cannot be combined with DIR")
    folders = folders or (RUNS,)
    found, now = _below(folders, folder) if lab is None else _of_lab(lab), time.time()
    kept = [
        row
        for row in found
        if fnmatch.fnmatchcase(row.env or "", env or "*")
        and fnmatch.fnmatchcase(row.algorithm or "", algo or "*")
        and user in (None, row.user)
        and (not states or row.state in states)
        and (since_s is None or now - (row.started_at or 0.0) <= since_s)
    ]
    if as_data:
        click.echo(json.dumps([data_of(row) for row in kept]))
    elif kept:
        click.echo("\n".join(_table(kept, now, has_folders=lab is None)))
    if not kept:
        what = f"none of {len(found)} runs matches" if found else "no runs"
        registers = f"the registers of {lab}" if lab else "the register of this machine"
        click.echo(f"{what} in {', '.join(map(str, folders)) if lab is None else registers}", err=True)


def _below(folders: Sequence[Path], queue: Path) -> list[RunRow]:
    from zmqrl.logs.printable import printable
    from zmqrl.queue.folder import QueueFolder
    from zmqrl.queue.listing import JobRow, job_rows, with_jobs
    from zmqrl.run_files.run_list import runs_below

    jobs = list[JobRow]()
    try:
        jobs = job_rows(QueueFolder(queue).read()) if queue.is_dir() else []
    except OSError as error:  # such as the queue of another user
        click.echo(printable(f"jobs are not in the list: --queue {queue} cannot be read: {error.strerror}"), err=True)
    for folder in folders:
        if not folder.is_dir() and not any(Path(job.run).is_relative_to(folder.absolute()) for job in jobs):
            fix = "give the folder of the runs: zmqrl runs DIR" if folder == RUNS else ""
            raise ConfigError.about(folder, "is not a folder", fix)
    return list(with_jobs(runs_below(*filter(Path.is_dir, folders)), jobs, folders))


def _of_lab(hosts_file: str) -> list[RunRow]:
    """The rows of this machine and of the hosts of a file; a host that gives none is named on stderr."""
    from zmqrl.run_files.published_runs import merged, published_runs, rows_in

    if not hosts_file:
        return published_runs()
    from zmqrl.config.hosts import is_remote
    from zmqrl.config.load import resolve_logins
    from zmqrl.config.on_host import login_of
    from zmqrl.errors import unusable
    from zmqrl.logs.printable import printable
    from zmqrl.orchestrators.on_hosts import MOST_AT_ONCE, printed_over
    from zmqrl.ssh.clients import connect_all

    config = resolve_logins(Path(hosts_file))
    sections = {name: login_of(config, name) for name, host in config.hosts.items() if is_remote(name, host)}
    lists = [published_runs()]
    for host, found in printed_over(connect_all(config, [*sections], most=MOST_AT_ONCE), sections, OF_HOST):
        try:
            if isinstance(found, Exception):
                raise found
            lists.append(rows_in(found))
        except Exception as error:  # noqa: BLE001 - one host may not hide the rows of the others
            click.echo(printable(f"not in the list: {unusable(host, error)}"), err=True)
    return merged(lists)


def data_of(row: RunRow) -> dict[str, Any]:
    """The row as JSON data."""
    from zmqrl.config.codec import to_json

    return {**to_json(row), "run_dir": row.run_dir and str(Path(row.run_dir).absolute())}


def _table(rows: Sequence[RunRow], now: float, has_folders: bool) -> list[str]:
    has_column = {"RUN": has_folders, "JOB": any(row.job for row in rows)}
    columns = [has_column.get(name, True) for name in HEAD]
    return aligned(
        [[*itertools.compress(line, columns)] for line in (HEAD, *(_cells(row, now) for row in rows))], NUMBERS
    )


def _cells(row: RunRow, now: float) -> tuple[str, ...]:
    return (
        row.run_dir,
        row.run_id or UNKNOWN,
        row.env or UNKNOWN,
        row.algorithm or UNKNOWN,
        row.state,
        UNKNOWN if row.env_steps is None else f"{row.env_steps:,}",
        UNKNOWN if row.train_return_mean_100 is None else f"{row.train_return_mean_100:.1f}",
        _best(row),
        UNKNOWN if row.started_at is None else age(now - row.started_at),
        row.host or UNKNOWN,
        row.user or UNKNOWN,
        UNKNOWN if row.job is None else f"{row.job}" + (f" (position {row.position})" if row.position else ""),
        row.reason or "",
    )


def _best(row: RunRow) -> str:
    from zmqrl.views.problem import short

    if row.best_score is None:
        return UNKNOWN
    return f"{row.best_score:.1f}" if row.best_by is None else f"{short(row.best_score)} {row.best_by}"


def age(seconds: float) -> str:
    """A duration in its largest whole unit: `3h`."""
    unit = max((name for name, size in UNITS_S.items() if seconds >= size), key=UNITS_S.__getitem__, default="s")
    return f"{max(0, int(seconds / UNITS_S[unit]))}{unit}"
