"""`down`: end a run everywhere, with or without its launcher, and verify it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from zmqrl.cli.hosts.hosts_options import limit as limit_option
from zmqrl.cli.run.on import RUN_HELP, OnCommand
from zmqrl.config.codec import to_json
from zmqrl.errors import ConfigError, UncleanTeardown
from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.launch.teardown import HostTeardown, TargetRun


@click.command("down", cls=OnCommand, epilog=RUN_HELP)
@click.argument("run", required=False)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="End all your runs that have a host agent on this machine, and runs in runs/ that have no recorded end.",
)
@limit_option("End the run on these hosts only. Requires that the launcher has ended; otherwise use `zmqrl drain`.")
@click.option("--json", "as_data", is_flag=True, help="Print one JSON object per host, as soon as its state is known.")
def down_command(run: str | None, every: bool, limit: tuple[str, ...], as_data: bool) -> None:
    """End RUN immediately on every host.

    The command also works if the launcher of RUN has ended. No checkpoint is written; `stop` writes one.
    """
    if every and (run is not None or limit):
        raise click.UsageError("--all cannot be combined with RUN or --limit")
    targets = _all() if every else [_one(run)]
    if not targets and not as_data:
        click.echo("no active run of yours on this machine")
    unclean = [what for each in targets for what in _bring_down(each, limit, as_data)]
    if unclean:
        raise UncleanTeardown(f"not verified as ended: {', '.join(unclean)}")


def _one(run: str | None) -> TargetRun:
    """A run that is known here; else one of which only processes are, another machine's or a removed directory's."""
    from zmqrl.cli.run.find_run import agents, find_run
    from zmqrl.launch.teardown import TargetRun

    try:
        directory, info = find_run(run)
    except ConfigError:
        if run is None or run not in {run_id for _, run_id in agents()}:
            raise
        return TargetRun(run)
    return TargetRun(info.run_id, directory, info)


def _all() -> list[TargetRun]:
    from zmqrl.cli.run.find_run import agents, runs_here, runs_of_agents
    from zmqrl.launch.teardown import TargetRun
    from zmqrl.run_files.run_info import other_user

    found = {run_id: TargetRun(run_id) for _, run_id in agents()}
    for directory, info in [*runs_here(), *runs_of_agents()]:
        is_to_end = info.ended_at is None or info.run_id in found
        if is_to_end and other_user(directory, info) is None:
            found[info.run_id] = TargetRun(info.run_id, directory, info)
    return list(found.values())


def _bring_down(target: TargetRun, limit: Sequence[str], as_data: bool) -> list[str]:
    """Report host by host. Returns what is not down, as `run on host`."""
    from zmqrl.launch.teardown import bring_down

    reports, unclean = bring_down(target, limit), []
    if not as_data:
        click.echo(f"run {target.run_id}:")
    for report in reports:
        click.echo(_data(target.run_id, report) if as_data else printable(_line(report)))
        if not report.is_down:
            unclean.append(f"{target.run_id} on {report.host}")
    return unclean


def _data(run_id: str, report: HostTeardown) -> str:
    """`down` is whether it was verified that nothing is left; `cause` why it could not be checked."""
    found: dict[str, Any] = to_json(report.reaped)
    return json.dumps({"run_id": run_id, "host": report.host, "down": report.is_down, **found, "cause": report.cause})


def _line(report: HostTeardown) -> str:
    if report.cause is not None:
        return f"  {report.host}: NOT VERIFIED: " + report.cause.removeprefix(f"{report.host}: ")
    reaped = report.reaped
    parts = [f"ended {', '.join(reaped.ended)}"] if reaped.ended else []
    parts += [f"killed {', '.join(reaped.killed)}"] if reaped.killed else []
    parts += [f"LEFT {', '.join(reaped.left)}"] if reaped.left else ["0 processes left"]
    return f"  {report.host}: {', '.join(parts)}"
