"""`apply`: a live run takes over the hosts of an edited file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from zmqrl.cli.hosts.hosts_options import LIMIT_WORKERS
from zmqrl.cli.run.on import RUN_HELP
from zmqrl.cli.run.runs import ANSWER_S, JSON, check_running, place
from zmqrl.errors import ConfigError


@click.command("apply", epilog=RUN_HELP)
@click.argument("hosts", type=click.Path(path_type=Path))
@click.argument("run", required=False)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of HOSTS. Repeat each --set that the launch had.",
)
@click.option(
    "--limit", multiple=True, metavar="HOST,...", help=f"{LIMIT_WORKERS} Repeat each --limit that the launch had."
)
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@JSON
def apply_command(
    hosts: Path, run: str | None, overrides: tuple[str, ...], limit: tuple[str, ...], dry_run: bool, as_data: bool
) -> None:
    """Apply the hosts of HOSTS (hosts.yaml) to the live RUN.

    New hosts join. Hosts that the file does not list are drained. Numbers of workers change.
    """
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.config.hosts import AUTO
    from zmqrl.launch.host_changes import Changes, changes_to, hosts_now, reach, with_numbers_of
    from zmqrl.launch.requests import send_request
    from zmqrl.messages.files import ScaleRequest
    from zmqrl.planning.configure import load
    from zmqrl.planning.logins import check_logins
    from zmqrl.run_files.stored_config import read_config

    directory, info = find_run(run)
    check_running(directory, info)
    loaded = load(hosts_file=hosts, overrides=overrides, stored=directory, limit=limit)
    try:
        now = hosts_now(json.loads((directory / "status.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the state of the run in {directory} cannot be read: {error}; try again") from error
    changes = changes_to(loaded, read_config(directory), now)
    check_logins(loaded.config, list(changes.joining))
    found = reach(
        loaded.config, [host for host, count in changes.scale.items() if host in changes.joining or count == AUTO]
    )
    scale = with_numbers_of(changes, loaded.config, now, found)
    if not scale:
        done = "the run has the hosts of the file: nothing to change"
    elif dry_run:
        done = "\n".join(Changes(scale, changes.joining).lines(now))
    else:
        done = send_request(directory, ScaleRequest(scale, dict(changes.joining)), ANSWER_S)
    click.echo(json.dumps({**place(directory, info), "workers": scale, "done": done}) if as_data else done)
