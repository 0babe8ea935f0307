"""Runs that are there: `stop`, `clean`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import click

from zmqrl.errors import ConfigError


@click.command("stop")
@click.argument("run", required=False)
def stop_command(run: str | None) -> None:
    """Stop RUN at its next version boundary, with a checkpoint and a summary; also the remaining --seeds."""
    from zmqrl.cli.find_run import find_run

    directory, info = find_run(run)
    if info.host != socket.gethostname():
        raise ConfigError(f"run {info.run_id} was started on {info.host}; stop it on that host")
    if not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    os.kill(info.pid, signal.SIGUSR1)
    click.echo(f"{info.run_id}: stop requested; the summary will be in {directory}/summary.json")


@click.command("clean")
def clean_command() -> None:
    """Remove socket folders of this user's dead runs; results are kept."""
    from zmqrl.agent.ipc_folder import run_folder_root
    from zmqrl.cli.find_run import agents

    root = run_folder_root()
    # The folders first: a run that begins while we look has its agent before it has its folder.
    folders = sorted(root.iterdir()) if root.is_dir() else []
    live = {run_id for _, run_id in agents()}
    removed = 0
    for folder in folders:
        if folder.name not in live and not _in_use(folder):
            shutil.rmtree(folder)
            click.echo(f"removed {folder}")
            removed += 1
    click.echo(f"{removed} folders of dead runs removed")


def _in_use(folder: Path) -> bool:
    """Whether any process still holds a socket that is bound in `folder`."""
    try:
        return any(f"{folder}/" in line for line in Path("/proc/net/unix").read_text().splitlines())
    except OSError:
        return True
