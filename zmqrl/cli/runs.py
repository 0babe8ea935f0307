"""Commands for a run: `stop`, `clean`, `scale`, `drain`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import click

from zmqrl.errors import ConfigError

SSH = "ssh-"
"""Begin of the folders of SSH connections, which no run id names."""


@click.command("stop")
@click.argument("run", required=False)
def stop_command(run: str | None) -> None:
    """Stop RUN at its next version boundary, with a checkpoint and a summary; also the remaining --seeds."""
    from zmqrl.cli.find_run import find_run
    from zmqrl.launch.stop_signals import StopFile

    directory, info = find_run(run)
    if info.host != socket.gethostname():
        raise ConfigError(f"run {info.run_id} was started on {info.host}; stop it on that host")
    if not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    if info.in_thread:
        StopFile(directory).request()
    else:
        os.kill(info.pid, signal.SIGUSR1)
    click.echo(f"{info.run_id}: stop requested; the summary will be in {directory}/summary.json")


@click.command("clean")
@click.argument("ids", nargs=-1, metavar="[RUN_ID]...")
def clean_command(ids: tuple[str, ...]) -> None:
    """Remove socket folders of dead runs: of the runs below this directory, or of RUN_ID...; results are kept."""
    from zmqrl.cli.find_run import agents, runs_here
    from zmqrl.wire.runtime_folder import run_folder_root

    root = run_folder_root()
    # The folders first: a run that begins while we look has its agent before it has its folder.
    folders = sorted(root.iterdir()) if root.is_dir() else []
    live = {run_id for _, run_id in agents()}
    dead = [folder for folder in folders if folder.name not in live and not _in_use(folder)]
    wanted = set(ids) or {info.run_id for _, info in runs_here()}
    removed = [folder for folder in dead if folder.name in wanted or folder.name.startswith(SSH)]
    for folder in removed:
        shutil.rmtree(folder)
        click.echo(f"removed {folder}")
    click.echo(f"{len(removed)} folders of dead runs removed")
    elsewhere = [folder.name for folder in dead if folder not in removed]
    if elsewhere:
        click.echo(f"of dead runs elsewhere: zmqrl clean {' '.join(elsewhere)}")


def _in_use(folder: Path) -> bool:
    """Whether any process still holds a socket that is bound in `folder`."""
    try:
        return any(f"{folder}/" in line for line in Path("/proc/net/unix").read_text().splitlines())
    except OSError:
        return True


ANSWER_S = 10.0


@click.command("scale")
@click.argument("arguments", nargs=-1, required=True, metavar="[RUN] HOST=N...")
def scale_command(arguments: tuple[str, ...]) -> None:
    """Have HOST run N workers from now on; a host that was lost or drained is connected to again.

    HOST must have had workers at the start of the run, or be the learner's host.
    """
    is_run = "=" not in arguments[0] or "/" in arguments[0]  # the runs of a sweep are in folders like `lr=0.1`
    run = arguments[0] if is_run else None
    workers = {}
    for argument in arguments[is_run:]:
        host, _, count = argument.partition("=")
        if not host or not count.isdecimal():
            raise ConfigError(f"{argument!r}: write HOST=N with a number of workers")
        workers[host] = int(count)
    if not workers:
        raise ConfigError("write HOST=N: the host and its number of workers")
    _send(run, workers)


@click.command("drain")
@click.argument("arguments", nargs=-1, required=True, metavar="[RUN] HOST")
def drain_command(arguments: tuple[str, ...]) -> None:
    """Remove HOST's workers from the run after their current segments; no rows are lost.

    A host that joined by a connection file is removed at once: the rows that it has not delivered are dropped.
    """
    if len(arguments) > 2:
        raise ConfigError(f"{' '.join(arguments)!r}: write [RUN] HOST")
    _send(arguments[0] if len(arguments) == 2 else None, {arguments[-1]: 0})


def _send(run: str | None, workers: dict[str, int]) -> None:
    from zmqrl.cli.find_run import find_run
    from zmqrl.launch.requests import send_request
    from zmqrl.messages.files import ScaleRequest

    directory, info = find_run(run)
    if info.host == socket.gethostname() and not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    click.echo(send_request(directory, ScaleRequest(workers), ANSWER_S))
