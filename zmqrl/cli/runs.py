"""Runs that are there: `status`, `logs`, `stop`, `clean`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from zmqrl.cli.find_run import RUNS, find_run
from zmqrl.errors import ConfigError
from zmqrl.launch.run_directory import RunInfo, read_info

FOLLOW_S = 1.0
LINES = 20


@click.command("status")
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Repeat until the run ends.")
def status_command(run: str | None, follow: bool) -> None:
    """Show where RUN stands."""
    directory, info = find_run(run)
    while True:
        click.echo(_status(directory, info))
        if not follow or not info.live:
            return
        time.sleep(FOLLOW_S)  # the pace of the display, as status.json's


def _status(directory: Path, info: RunInfo) -> str:
    try:
        status: dict[str, Any] = json.loads((directory / "status.json").read_text())
    except (OSError, ValueError):
        return f"{info.run_id}: {'starting' if info.live else 'ended without a status'}"
    metrics, shown = status["metrics"], [f"{info.run_id}: {status['phase'] if info.live else 'ended'}"]
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
    directory, info = find_run(run)
    paths = sorted(path for path in (directory / "logs").glob("*.log") if who is None or who in path.stem)
    if not paths:
        there = ", ".join(sorted(path.stem for path in (directory / "logs").glob("*.log"))) or "none"
        raise ConfigError(f"{directory} has no log of {who!r}; there are: {there}")
    at = dict.fromkeys(paths, 0)
    for path in paths:
        for line in _new_lines(path, at)[-lines:]:
            click.echo(f"{path.stem}: {line}")
    while follow and info.live:
        time.sleep(FOLLOW_S)  # a log is a file: there is nothing to wait on
        for path in paths:
            for line in _new_lines(path, at):
                click.echo(f"{path.stem}: {line}")


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
    directory, info = find_run(run)
    if not info.live:
        raise ConfigError(f"run {info.run_id} in {directory} is not running")
    os.kill(info.pid, signal.SIGUSR1)
    click.echo(f"{info.run_id} is asked to stop; its summary will be in {directory}/summary.json")


@click.command("clean")
def clean_command() -> None:
    """Remove what dead runs of this user left (socket folders); results stay."""
    from zmqrl.agent.ipc_folder import run_folder_root

    root = run_folder_root(os.environ.get("XDG_RUNTIME_DIR"), os.getuid())
    live = {info.run_id for info in _live_runs()}
    removed = 0
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name not in live and not _in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)
            click.echo(f"removed {folder}")
            removed += 1
    click.echo(f"{removed} folders of dead runs removed")


def _live_runs() -> Iterator[RunInfo]:
    for path in RUNS.glob("**/run.json"):
        info = read_info(path.parent)
        if info is not None and info.live:
            yield info


def _in_use(folder: Path) -> bool:
    """Whether any process holds a socket that is bound in `folder`: a live run of another directory."""
    try:
        return any(str(folder) in line for line in Path("/proc/net/unix").read_text().splitlines())
    except OSError:
        return True
