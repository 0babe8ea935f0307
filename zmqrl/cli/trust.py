"""`trust`: the folders and URLs whose runs are opened although another user made them."""

from __future__ import annotations

from pathlib import Path

import click

from zmqrl.errors import ConfigError


@click.command("trust")
@click.argument("named", nargs=-1, metavar="PREFIX...")
@click.option("--list", "is_list", is_flag=True, help="Print the prefixes that are trusted.")
@click.option("--remove", is_flag=True, help="Trust PREFIX no longer.")
def trust_command(named: tuple[str, ...], is_list: bool, remove: bool) -> None:
    """Trust the runs in a folder or below a URL.

    PREFIX is a run directory, a folder or a URL. eval, watch, export, --resume and --init-from then import what the
    configurations of these runs name, although another user made them.
    """
    from zmqrl.launch.trusted_places import canonical, distrust, prefixes, trust

    if is_list == bool(named):
        raise click.UsageError("PREFIX or --list is required")
    known = {prefix: canonical(prefix) for prefix in named}
    for prefix, place in known.items():
        if place is None or not ("://" in place or remove or Path(place).is_dir()):
            raise ConfigError(f"{prefix!r}: expected a folder, or an absolute URL without '..', '%', '?' and '#'")
    places = [place for place in known.values() if place is not None]
    if places:
        (distrust if remove else trust)(*places)
    for line in prefixes() if is_list else ():
        click.echo(line)
