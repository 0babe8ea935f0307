"""Runs that are there: `status`, `logs`, `stop`, `clean`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.launch.run_directory import RunInfo

FOLLOW_S = 1.0
LINES = 20


@click.command("status")
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Repeat until the run ends.")
def status_command(run: str | None, follow: bool) -> None:
    """Show where RUN stands."""
    from zmqrl.cli.find_run import find_run

    directory, info = find_run(run)
    while True:
        live = _is_live(directory, info)
        click.echo(_live_status(directory, info) if live else _last_status(directory, info))
        if not follow or not live:
            return
        time.sleep(FOLLOW_S)  # the pace of the display, as status.json's


def _last_status(directory: Path, info: RunInfo) -> str:
    """Of a run that has ended: its summary, where it lived to write one."""
    summary = _read(directory / "summary.json")
    if summary is None or summary["run_id"] != info.run_id:
        return f"{info.run_id}: ended without a summary; `--resume {directory}` goes on with it"
    shown = [f"{info.run_id}: {summary['status']} with exit code {summary['exit_code']}"]
    if summary["env_steps"] is not None:
        shown.append(f"{summary['env_steps']:,} env steps in {summary['wall_s']:.1f} s")
    if summary["train_return_mean_100"] is not None:
        shown.append(f"return {summary['train_return_mean_100']:.1f}")
    shown += ["solved"] if summary["solved_at_env_steps"] is not None else []
    return "\n".join([", ".join(shown), *([summary["error"]] if summary["error"] else [])])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        return data
    except (OSError, ValueError):
        return None


def _live_status(directory: Path, info: RunInfo) -> str:
    status = _read(directory / "status.json")
    if status is None or status["run_id"] != info.run_id:
        return f"{info.run_id}: starting"
    metrics, shown = status["metrics"], [f"{info.run_id}: {status['phase']}"]
    shown.append(f"{status['env_steps']:,} of {status['total_env_steps']:,} env steps in {status['wall_s']:.0f} s")
    for label, name in (("env steps/s", "env_steps_per_s"), ("updates/s", "updates_per_s"), ("lag", "policy_lag_mean")):
        if name in metrics:
            shown.append(f"{metrics[name]:,.1f} {label}")
    if "train_return_mean_100" in metrics:
        shown.append(f"return {metrics['train_return_mean_100']:.1f}")
    shown += [f"bottleneck {status['bottleneck']}"] if status["bottleneck"] else []
    lines = [", ".join(shown)]
    lines += ["  " + "  ".join(f"{key} {value}" for key, value in row.items()) for row in status["workers"]]
    return "\n".join([*lines, *status["problems"]])


@click.command("logs")
@click.argument("run", required=False)
@click.argument("who", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written.")
@click.option("-n", "lines", type=click.IntRange(1), default=LINES, show_default=True, help="Last lines of each log.")
def logs_command(run: str | None, who: str | None, follow: bool, lines: int) -> None:
    """Show the logs of RUN; WHO narrows them, e.g. worker-0 or learner."""
    from zmqrl.cli.find_run import find_run

    directory, info = find_run(run)
    paths = sorted(path for path in (directory / "logs").glob("*.log") if who is None or who in path.stem)
    if not paths:
        there = ", ".join(sorted(path.stem for path in (directory / "logs").glob("*.log"))) or "none"
        raise ConfigError(f"{directory} has no log of {who!r}; there are: {there}")
    at = dict.fromkeys(paths, 0)
    for path in paths:
        for line in _new_lines(path, at)[-lines:]:
            click.echo(f"{path.stem}: {line}")
    while follow and _is_live(directory, info):
        time.sleep(FOLLOW_S)  # a log is a file: there is nothing to wait on
        for path in paths:
            for line in _new_lines(path, at):
                click.echo(f"{path.stem}: {line}")


def _is_live(directory: Path, info: RunInfo) -> bool:
    from zmqrl.launch.run_directory import read_info

    now = read_info(directory)
    return now is not None and now.run_id == info.run_id and now.live


def _new_lines(path: Path, at: dict[Path, int]) -> list[str]:
    with path.open(errors="replace") as file:
        file.seek(at[path] if at[path] <= path.stat().st_size else 0)
        lines = file.read().splitlines()
        at[path] = file.tell()
    return lines


@click.command("stop")
@click.argument("run", required=False)
def stop_command(run: str | None) -> None:
    """Stop RUN at its next version boundary, with a checkpoint and a summary."""
    from zmqrl.cli.find_run import find_run

    directory, info = find_run(run)
    if info.host != socket.gethostname():
        raise ConfigError(f"run {info.run_id} was started on {info.host}: stop it there")
    if not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    os.kill(info.pid, signal.SIGUSR1)
    click.echo(f"{info.run_id} is asked to stop; its summary will be in {directory}/summary.json")


@click.command("clean")
def clean_command() -> None:
    """Remove what dead runs of this user left (socket folders); results stay."""
    from zmqrl.agent.ipc_folder import run_folder_root
    from zmqrl.cli.find_run import agents

    root = run_folder_root(os.environ.get("XDG_RUNTIME_DIR"), os.getuid())
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
