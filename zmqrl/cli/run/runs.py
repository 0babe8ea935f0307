"""Commands for a run: `stop`, `clean`, `scale`, `drain`."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.cli.run.on import RUN_HELP, OnCommand
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError, DeadlineExceeded, TrainingFailed

if TYPE_CHECKING:
    from zmqrl.config.sections import HostSection
    from zmqrl.run_files.run_info import RunInfo

WAIT_S = 600.0
"""Longer than a clean end takes, in which the last checkpoint is written."""
POLL_EVERY_S = 0.1
JSON = click.option("--json", "as_data", is_flag=True, help="Print one JSON object.")

SSH = "ssh-"
"""Begin of the folders of SSH connections, which no run id names."""
ANSWER_S = 10.0
MISSING = "HOST=N is required: a host and its number of workers"


class _Limit(click.ParamType[float]):
    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds; write the run before --wait: zmqrl stop RUN --wait 60")


@click.command("stop", cls=OnCommand, epilog=RUN_HELP)
@click.argument("run", required=False)
@click.option(
    "--wait",
    "wait_s",
    type=_Limit(),
    is_flag=False,
    flag_value=WAIT_S,
    metavar="[SECONDS]",
    help=f"Wait for the end of the run, and exit with its exit code; wait at most SECONDS ({WAIT_S:g} if not given).",
)
@JSON
def stop_command(run: str | None, wait_s: float | None, as_data: bool) -> int:
    """Stop RUN cleanly, with a checkpoint and a summary.

    The learner first completes the version of the weights that it is computing; then the run ends. If
    `train --seeds` started the run, the remaining seeds are not started.
    """
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.launch.stop_signals import request_stop
    from zmqrl.run_files.run_info import launcher_state
    from zmqrl.supervision.run_owner import OwnerState

    directory, info = find_run(run)
    state = launcher_state(directory, info)
    if state is OwnerState.ENDED:
        raise _not_running(directory, info)
    if state is not OwnerState.HERE:
        known = "is running" if state is OwnerState.ELSEWHERE else "may be running"
        what, fix = f"run {info.run_id} {known} {info.place}", f"stop it there: zmqrl stop {directory}"
        raise ConfigError(what, key=(), fix=fix)
    request_stop(directory, info)
    if wait_s is None:
        text = f"{info.run_id}: stop requested; the summary will be in {directory}/summary.json"
        click.echo(json.dumps({**place(directory, info), "ended": False, "summary": None}) if as_data else text)
        return 0
    _await_end(directory, info, wait_s)
    from zmqrl.run_files.records import read_summary

    summary = read_summary(directory, info.run_id)
    if summary is None:
        raise TrainingFailed(
            f"run {info.run_id} in {directory} ended without a summary; see its logs: zmqrl logs {directory}"
        )
    env_steps = summary["env_steps"]
    counted = "" if env_steps is None else f", {env_steps:,} env steps"
    text = f"{info.run_id}: {summary['status']}{counted}; see {directory}/summary.json"
    click.echo(json.dumps({**place(directory, info), "ended": True, "summary": summary}) if as_data else text)
    return int(summary["exit_code"])


def place(directory: Path, info: RunInfo) -> dict[str, str]:
    """What every JSON object of a command about a run begins with."""
    return {"run_dir": str(directory.absolute()), "run_id": info.run_id}


def _await_end(directory: Path, info: RunInfo, wait_s: float) -> None:
    from zmqrl.run_files.run_info import is_live

    until = time.monotonic() + wait_s
    while is_live(directory, info):
        if time.monotonic() > until:
            raise DeadlineExceeded(
                f"run {info.run_id} in {directory} has not ended within {wait_s:g} s; the stop request "
                f"remains in effect. To end the run at once without a checkpoint: zmqrl down {directory}"
            )
        time.sleep(POLL_EVERY_S)  # a file is all that two processes of any two times share


@click.command("clean", cls=OnCommand)
@click.argument("ids", nargs=-1, metavar="[RUN_ID]...")
@JSON
def clean_command(ids: tuple[str, ...], as_data: bool) -> None:
    """Remove the socket folders of ended runs.

    A run that was killed leaves such a folder on this machine, outside its run directory. Run directories are not
    changed. Default: the socket folders of the runs in runs/. Temporary folders of killed processes are also removed.
    """
    from zmqrl.cli.run.find_run import agents, runs_here
    from zmqrl.run_files.run_info import launcher_state
    from zmqrl.supervision.run_owner import OwnerState
    from zmqrl.wire.runtime_folder import TEMPORARY, is_held, remove_left_folders, run_folder_root

    root, left = run_folder_root(), remove_left_folders()
    # The folders first: a run that begins while we look has its agent before it has its folder.
    folders = [path for path in sorted(root.iterdir()) if not path.name.startswith(TEMPORARY)] if root.is_dir() else []
    live = {run_id for _, run_id in agents()}
    known = {info.run_id: (directory, info) for directory, info in runs_here()}
    held = {folder.name for folder in folders}
    live |= {run_id for run_id, run in known.items() if run_id in held and launcher_state(*run) is not OwnerState.ENDED}
    dead = [folder for folder in folders if folder.name not in live and not _in_use(folder) and not is_held(folder)]
    wanted = set(ids) or set(known)
    removed = [folder for folder in dead if folder.name in wanted or folder.name.startswith(SSH)]
    elsewhere = [folder.name for folder in dead if folder not in removed]
    for name in ids:
        if name not in {folder.name for folder in removed}:
            active = "the run is active, or it is unknown whether it has ended"
            cause = active if name in held else f"no socket folder has this name in {root}"
            click.echo(f"{name}: not removed: {cause}", err=True)
    for folder in removed:
        shutil.rmtree(folder)
    removed += left
    if as_data:
        click.echo(json.dumps({"removed": [str(folder) for folder in removed], "elsewhere": elsewhere}))
        return
    count = "1 folder" if len(removed) == 1 else f"{len(removed)} folders"
    click.echo("\n".join([*(f"removed {folder}" for folder in removed), f"{count} of dead runs removed"]))
    if elsewhere:
        click.echo(f"of dead runs elsewhere: zmqrl clean {' '.join(elsewhere)}")


def _in_use(folder: Path) -> bool:
    """Whether any process still holds a socket that is bound in `folder`."""
    try:
        return bytes(folder) + b"/" in Path("/proc/net/unix").read_bytes()
    except OSError:
        return True


@click.command("scale", cls=OnCommand, epilog=RUN_HELP)
@click.argument("arguments", nargs=-1, metavar="[RUN] HOST=N...")
@JSON
def scale_command(arguments: tuple[str, ...], as_data: bool) -> None:
    """Set the number of workers of HOST to N.

    A failed or drained host is reconnected. A HOST that is not part of the run is added, with the `defaults` of the
    run: HOST must then be an address or a name of ~/.ssh/config.
    """
    if not arguments:
        raise ConfigError(MISSING)
    is_run = "=" not in arguments[0] or "/" in arguments[0]  # the runs of a sweep are in folders like `lr=0.1`
    run = arguments[0] if is_run else None
    workers = {}
    for argument in arguments[is_run:]:
        host, _, count = argument.partition("=")
        if not host or not count.isdecimal():
            what = "expected HOST=N, where N is the number of workers, 0 or more"
            raise ConfigError(what, key=(), value=repr(argument))
        if host in workers:
            fix = "write each host once"
            raise ConfigError(f"{host} is listed twice", key=(), value=repr(argument), fix=fix)
        workers[host] = int(count)
    if not workers:
        raise ConfigError(MISSING)
    _send(run, workers, as_data)


@click.command("drain", cls=OnCommand, epilog=RUN_HELP)
@click.argument("arguments", nargs=-1, metavar="[RUN] HOST")
@JSON
def drain_command(arguments: tuple[str, ...], as_data: bool) -> None:
    """Remove the workers of HOST from the run.

    The workers first complete and deliver their current segments: no env steps are lost. Exception: a host that joined
    by `zmqrl worker` is removed at once, and env steps that it has not delivered are dropped.
    """
    if not arguments:
        raise ConfigError("HOST is required: zmqrl drain [RUN] HOST")
    if len(arguments) > 2:
        raise ConfigError(f"{' '.join(arguments)!r}: write [RUN] HOST")
    if len(arguments) == 1 and _is_run(arguments[0]):
        raise ConfigError(f"HOST is required: zmqrl drain {shlex.quote(arguments[0])} HOST")
    _send(arguments[0] if len(arguments) == 2 else None, {arguments[-1]: 0}, as_data)


def _is_run(argument: str) -> bool:
    from zmqrl.cli.run.find_run import find_run

    try:
        find_run(argument)
    except ConfigError:
        return any(Path(argument).glob("*/run.json"))
    return True


def _send(run: str | None, workers: dict[str, int], as_data: bool) -> None:
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.launch.requests import send_request
    from zmqrl.messages.files import ScaleRequest

    directory, info = find_run(run)
    check_running(directory, info)
    joining = _joining(directory, workers)
    done = send_request(directory, ScaleRequest(workers, joining), ANSWER_S)
    click.echo(json.dumps({**place(directory, info), "workers": workers, "done": done}) if as_data else done)


def check_running(directory: Path, info: RunInfo) -> None:
    """ConfigError when the run has ended, as far as this machine knows."""
    from zmqrl.run_files.run_info import launcher_state
    from zmqrl.supervision.run_owner import OwnerState

    if launcher_state(directory, info, watch=False) is OwnerState.ENDED:
        raise _not_running(directory, info)


def _not_running(directory: Path, info: RunInfo) -> ConfigError:
    return ConfigError.about(f"run {info.run_id} in {directory}", "is not running")


def _joining(directory: Path, workers: dict[str, int]) -> dict[str, HostSection]:
    """Sections of the hosts that the run does not have; each was reached just now."""
    from zmqrl.config.host_checks import check_hosts
    from zmqrl.config.hosts import near, shortened
    from zmqrl.config.sections import HostSection
    from zmqrl.launch.host_changes import reach
    from zmqrl.planning.logins import check_logins
    from zmqrl.run_files.trust import opened

    config = opened(directory)
    running = list(dict.fromkeys([config.learner.host, *config.hosts]))
    new = [host for host in workers if workers[host] and host not in running]
    if not new:
        return {}
    joining = {host: HostSection(workers=workers[host]) for host in new}
    config = replace(config, hosts={**config.hosts, **joining})
    check_hosts(config)
    check_logins(config, new)
    try:
        reach(config, new)
    except ConfigError as error:
        hint = near(new[0], running)
        hosts = f"{hint}hosts of this run: {shortened(running)}"
        raise ConfigError(f"{', '.join(new)} cannot join the run ({hosts}):\n{error}") from error
    return joining
