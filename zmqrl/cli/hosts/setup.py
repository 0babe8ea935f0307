"""`zmqrl setup`: the venv and this zmqrl on every host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.hosts.hosts_options import SET
from zmqrl.cli.hosts.hosts_options import limit as limit_option
from zmqrl.errors import ConfigError
from zmqrl.logs.printable import printable

if TYPE_CHECKING:
    from zmqrl.errors import HostFailed
    from zmqrl.provision.install import Installed


@click.command("setup")
@click.argument("hosts", type=click.Path(path_type=Path))
@limit_option("Install on these hosts only.")
@SET
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    help="Install from this folder of wheels on this machine, for hosts without a package index.",
)
@click.option(
    "--constraints", type=click.Path(path_type=Path), help="Constraints file to use instead of that of zmqrl."
)
@click.option("--extras", metavar="NAME,...", default="", help="Also install these extras of zmqrl, e.g. box2d.")
def setup_command(
    hosts: Path, limit: tuple[str, ...], overrides: tuple[str, ...], wheels: Path | None, constraints: Path | None,
    extras: str,
) -> int:  # fmt: skip
    """Install zmqrl on the remote hosts of HOSTS.

    HOSTS is a hosts file (hosts.yaml). Each host gets a venv with the zmqrl of this machine.
    """
    from zmqrl.config.hosts import chosen_hosts
    from zmqrl.orchestrators.make import check_by_ssh
    from zmqrl.planning.configure import load_config
    from zmqrl.provision.install import CONSTRAINTS, InstallBundle, remote_hosts, set_up, wheel_files
    from zmqrl.provision.wheel import make_wheel

    config = load_config(hosts_file=hosts, overrides=overrides)
    check_by_ssh(config, "zmqrl setup installs over SSH; install zmqrl for its hosts by other means")
    chosen = chosen_hosts(config.hosts, limit) if limit else set(config.hosts)
    names = [name for name in remote_hosts(config) if name in chosen]
    if not names:
        what = "no host to set up: this machine and manual hosts need no setup"
        raise ConfigError(what, key=(), fix="list or select a host that SSH reaches", source=str(hosts))
    allowed, files = _read(constraints or CONSTRAINTS), wheel_files(wheels) if wheels is not None else None
    further = tuple(name.strip() for name in extras.split(",") if name.strip())
    bundle = InstallBundle(make_wheel(), allowed, files, further)
    if sys.stderr.isatty():
        click.echo(f"zmqrl {bundle.wheel.version} on {len(names)} hosts; the first time takes some minutes", err=True)
    failed = [result for result in set_up(config, names, bundle) if _show(result)]
    return 2 if failed else 0


def _show(result: Installed | HostFailed) -> bool:
    """Print a host's line; whether it failed."""
    from zmqrl.errors import HostFailed

    if isinstance(result, HostFailed):
        click.echo(printable(str(result)), err=True)
        return True
    for line in result.accepted:
        click.echo(line, err=True)
    click.echo(printable(str(result)))
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", key=("--constraints",), value=str(path)) from error
