"""`zmqrl doctor`: check every host before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.hosts.hosts_options import SET
from zmqrl.cli.hosts.hosts_options import limit as limit_option
from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.config.load import Loaded

EXIT_FAULTS = 2


@click.command("doctor")
@click.argument("hosts", type=click.Path(path_type=Path))
@SET
@limit_option("Check only these hosts and the learner's host.")
@click.option("--json", "as_data", is_flag=True, help="Print all measurements as JSON.")
@click.option("--plain", is_flag=True, help="Print plain columns instead of a table.")
@click.option(
    "--env-limit",
    type=click.FloatRange(1, 60),
    default=5.0,
    metavar="S",
    help="Check env.id on each host for at most S seconds.",
)
@click.option(
    "--accept-new-hosts", is_flag=True, help="Add unknown host keys to known_hosts; changed keys are rejected."
)
@click.option(
    "--on",
    metavar="HOST",
    help="Run the check on HOST instead of this machine: HOST connects to the hosts with its own SSH keys, as with "
    "`launch --on`.",
)
def doctor_command(
    hosts: Path,
    overrides: tuple[str, ...],
    limit: tuple[str, ...],
    as_data: bool,
    plain: bool,
    env_limit: float,
    accept_new_hosts: bool,
    on: str | None,
) -> int:
    """Check the hosts of HOSTS without starting a run.

    HOSTS is a hosts file (hosts.yaml). Exit code 2: at least one fault prevents a launch.
    """
    from zmqrl.doctor.judge import judge_all
    from zmqrl.doctor.needs import needs_of
    from zmqrl.doctor.report import as_json, print_report
    from zmqrl.doctor.runner import examine
    from zmqrl.planning.configure import load
    from zmqrl.planning.logins import check_participants

    loaded = load(hosts_file=hosts, overrides=overrides, limit=limit)
    if on is not None:
        flags = [*["--json"] * as_data, *["--accept-new-hosts"] * accept_new_hosts, "--env-limit", str(env_limit)]
        return _doctor_on(on, hosts, loaded, flags)
    check_participants(loaded.config)
    measurements = examine(loaded.config, accept_new_hosts, env_limit, _show)
    faults = judge_all(measurements, needs_of(loaded, hosts))
    manual = [name for name, host in loaded.config.hosts.items() if host.manual]
    if as_data:
        click.echo(as_json(measurements, faults, manual))
    else:
        print_report(measurements, faults, manual, sys.stdout, None if plain or not sys.stdout.isatty() else _draw)
    return EXIT_FAULTS if any(fault.severity == "error" for fault in faults) else 0


def _doctor_on(on: str, hosts: Path, loaded: Loaded, flags: Sequence[str]) -> int:
    """The doctor on another host, and what ends with a login there. Modules of `code.sync` are copied for it."""
    from zmqrl.cli.start.launch_on import DOCTOR_S, STDIN
    from zmqrl.config.load import resolve_logins
    from zmqrl.config.on_host import on_host, text_of
    from zmqrl.launcher_place.launcher_host import connected

    config = on_host(loaded.config, on, loaded.is_auto_here)
    with connected(resolve_logins(hosts), on) as there:
        there.check_version()
        there.check_wrap()
        session = there.login_session()
        code = there.deliver(config.code)
        text = text_of(config, code).encode()
        done = there.capture("doctor", STDIN, *flags, data=text, code=code, timeout_s=DOCTOR_S)
    for output, is_error in ((done.stdout, False), (done.stderr, True)):
        shown = output.decode(errors="replace").replace(STDIN, f"{hosts} --on {on}")
        click.echo(printable(shown), nl=False, err=is_error)
    click.echo(f"{on}: {session.refusal or session}", err=True)
    return EXIT_FAULTS if session.refusal is not None else done.code


def _show(line: str) -> None:
    click.echo(printable(line), err=True)


def _draw(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for number, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=number < 2)  # host and state stay whole
    styles = {"FAULT": "red", "warning": "yellow", "ok": "green"}
    for row in rows:
        table.add_row(*(Text(printable(cell), styles.get(cell, "")) for cell in row))
    Console().print(table)
