"""`install-unit`: a systemd user unit for a run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click

from zmqrl.cli.hosts.hosts_options import LIMIT_WORKERS, SET
from zmqrl.cli.hosts.hosts_options import limit as limit_option
from zmqrl.cli.run.on import OnCommand
from zmqrl.config.paths import expanded
from zmqrl.config.webhook import check_repeated

SESSION_S = 15.0


@click.command("install-unit", cls=OnCommand)
@click.argument("hosts", type=click.Path(path_type=Path), metavar="HOSTS")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory. Default: runs/NAME.")
@click.option("--name", metavar="NAME", help="The unit is called zmqrl-NAME.service. Default: the value of run.name.")
@SET
@limit_option(LIMIT_WORKERS)
@click.option("--print", "as_text", is_flag=True, help="Print the unit and write nothing.")
def install_unit_command(
    hosts: Path,
    run_dir: Path | None,
    name: str | None,
    overrides: tuple[str, ...],
    limit: tuple[str, ...],
    as_text: bool,
) -> None:
    """Write a systemd user unit for `zmqrl launch HOSTS`.

    HOSTS is a hosts file (hosts.yaml). When the unit is enabled, it starts the run at each boot, or resumes it if it
    was started before.
    """
    from zmqrl.data_stores.files import check_writable
    from zmqrl.launch.start import configured
    from zmqrl.launcher_place.unit import RunUnit, check_name, environment_of, stop_s_of
    from zmqrl.planning.directory_checks import check_new_directory, holds_run
    from zmqrl.planning.start_request import StartRequest

    check_repeated(overrides)
    request = StartRequest(hosts_file=hosts, overrides=overrides, limit=limit)
    config = configured(request).config
    name = name or config.run.name
    check_name(name)
    directory = expanded(run_dir or Path("runs") / name, "--run-dir").absolute()
    if not holds_run(directory):
        check_new_directory(directory)
    check_writable("--run-dir", directory)
    command = [sys.executable, "-m", "zmqrl", "launch", str(hosts.absolute()), "--run-dir", str(directory)]
    command += ["--resume", "auto", "--plain", *request.flags()]
    environment = environment_of(config, os.environ)
    unit = RunUnit(name, directory, Path.cwd(), command, environment, stop_s_of(config))
    if as_text:
        click.echo(unit.text(), nl=False)
        return
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"
    click.echo(f"wrote {unit.install(folder)}; to start the run now and at each boot:")
    click.echo(f"   systemctl --user daemon-reload && systemctl --user enable --now {shlex.quote(unit.file_name)}")
    for line in _linger():
        click.echo(line)


def _linger() -> list[str]:
    """What is needed for a unit to run without a login."""
    from zmqrl.orchestrators.login_session import SCRIPT, LoginSession

    try:
        done = subprocess.run(["sh", "-s"], input=SCRIPT.encode(), capture_output=True, timeout=SESSION_S)
    except subprocess.TimeoutExpired:
        return []
    session = LoginSession.parse(done.stdout.decode(errors="replace"))
    if session is None or session.linger:
        return []
    return [
        f"   linger is off for {session.user}: the unit runs only while you are logged in; fix: loginctl enable-linger"
    ]
