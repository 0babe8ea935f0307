"""`runs`: a table of the runs below folders."""

from __future__ import annotations

import fnmatch
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from zmqrl.cli.run.on import OnCommand
from zmqrl.errors import ConfigError
from zmqrl.summary import Status
from zmqrl.views.base import UNKNOWN

if TYPE_CHECKING:
    from zmqrl.run_files.run_list import RunRow

RUNS = Path("runs")
UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
STATES = ("starting", "running", "paused", "ending", *get_args(Status), "unknown", "damaged", "unreadable")
HEAD = ("RUN", "ID", "ENV", "ALGORITHM", "STATE", "ENV STEPS", "RETURN", "BEST", "AGE", "HOST", "USER", "REASON")
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
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def runs_command(
    folders: tuple[Path, ...],
    env: str | None,
    algo: str | None,
    user: str | None,
    states: tuple[str, ...],
    since_s: float | None,
    as_data: bool,
) -> None:
    """List the runs in and below each DIR, the newest first.

    DIR is a folder. Default: runs/. RETURN is the mean return of the last 100 training episodes, BEST the highest
    score of the evaluator that has a checkpoint in the run directory, with the name of evaluator.best_by if it is not
    a return, AGE the time since the last attempt began.
    """
    from zmqrl.run_files.run_list import runs_below

    folders = folders or (RUNS,)
    for folder in folders:
        if not folder.is_dir():
            fix = "give the folder of the runs: zmqrl runs DIR" if folder == RUNS else ""
            raise ConfigError("is not a folder", key=(), value=str(folder), is_subject=True, fix=fix)
    found, now = runs_below(*folders), time.time()
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
        click.echo("\n".join(_table([HEAD, *(_cells(row, now) for row in kept)])))
    if not kept:
        what = f"none of {len(found)} runs matches" if found else "no runs"
        click.echo(f"{what} in {', '.join(map(str, folders))}", err=True)


def data_of(row: RunRow) -> dict[str, Any]:
    """The row as JSON data."""
    from zmqrl.config.codec import to_json

    return {**to_json(row), "run_dir": str(Path(row.run_dir).absolute())}


def _cells(row: RunRow, now: float) -> tuple[str, ...]:
    from zmqrl.logs.printable import printable

    return (
        printable(row.run_dir),
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


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if name in NUMBERS else cell.ljust(width)
            for name, cell, width in zip(HEAD, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
