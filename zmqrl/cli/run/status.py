"""`status`: state of a run, from any shell."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.cli.run.on import RUN_HELP, OnCommand, run_on
from zmqrl.logs.printable import printable_data
from zmqrl.views.base import HOST_COLUMNS, UNKNOWN, aligned, bottleneck_of, host_cells, reports_of
from zmqrl.views.problem import report_cells, short, shown_problems

if TYPE_CHECKING:
    from zmqrl.run_files.run_info import RunInfo

FOLLOW_S = 1.0
SILENT_S = 5.0
"""status.json is written every second; a stopped or swapping launcher does not write it."""


class _StatusCommand(OnCommand):
    """On a terminal `-f --on` draws here what the other host sends."""

    def invoke(self, ctx: click.Context) -> Any:
        asked = ctx.params
        if asked["on"] is None or not asked["follow"] or asked["as_data"] or not sys.stdout.isatty():
            return super().invoke(ctx)
        return _watch_on(asked["on"], asked["hosts_file"], [asked["run"]] if asked["run"] else [])


@click.command("status", cls=_StatusCommand, epilog=RUN_HELP)
@click.argument("run", required=False)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print the status each second until the run ends; on a terminal, show the launcher's live view.",
)
@click.option("--json", "as_data", is_flag=True, help="Print a JSON object; with -f, one per second.")
@click.option("--prometheus", is_flag=True, help="Print the figures for the textfile collector of the node exporter.")
def status_command(run: str | None, follow: bool, as_data: bool, prometheus: bool) -> None:
    """Show the state of RUN. The first line of the output names the run."""
    from zmqrl.cli.run.find_run import find_run
    from zmqrl.run_files.records import damaged_records
    from zmqrl.run_files.run_info import launcher_state
    from zmqrl.supervision.run_owner import ACTIVE, OwnerState

    if prometheus and (follow or as_data):
        raise click.UsageError("--prometheus cannot be used with -f or --json")
    directory, info = find_run(run)
    for text in damaged_records(directory):
        click.echo(text, err=True)
    if prometheus:
        click.echo(_prometheus(directory, info))
        return
    if follow and sys.stdout.isatty() and not as_data:
        _watch(directory, info)
    state = launcher_state(directory, info)
    if run is None and not as_data and state not in ACTIVE:
        click.echo(
            f"no active run here; the last one is {info.run_id} in {directory}, {_state(directory, info, False)}"
        )
    while state in ACTIVE:
        click.echo(_data(directory, info, True) if as_data else _live_status(directory, info))
        if not follow:
            return
        time.sleep(FOLLOW_S)  # the pace of the display, as status.json's
        state = launcher_state(directory, info)
    is_known = state is OwnerState.ENDED
    click.echo(_data(directory, info, False) if as_data else _last_status(directory, info, is_known))


def _data(directory: Path, info: RunInfo, live: bool) -> str:
    return json.dumps(_record(directory, info, live))


def _record(directory: Path, info: RunInfo, live: bool) -> dict[str, Any]:
    """`status` and `summary` are status.json and summary.json; null: this attempt has not written it."""
    place = {"run_id": info.run_id, "run_dir": os.path.abspath(directory), "live": live}
    place["state"] = _state(directory, info, live)
    return {**place, "status": _status(directory, info), "summary": _summary(directory, info)}


def _prometheus(directory: Path, info: RunInfo) -> str:
    from zmqrl.run_files.run_info import is_live
    from zmqrl.run_files.stored_config import read_config
    from zmqrl.views.prometheus import prometheus_text

    record, config = _record(directory, info, is_live(directory, info)), read_config(directory)
    labels = {"run": record["run_dir"], "env": config.env.id, "algorithm": str(config.algorithm.get("kind"))}
    return prometheus_text({**labels, "host": info.host}, {**record, "attempt": info.attempt})


def _state(directory: Path, info: RunInfo, live: bool) -> str:
    from zmqrl.run_files.records import state_of

    return state_of(live, _status(directory, info) if live else _summary(directory, info))


def _watch(directory: Path, info: RunInfo) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from zmqrl.run_files.run_info import is_live
    from zmqrl.views.tables import render

    with Live(Text("starting"), console=Console(), auto_refresh=False) as view:
        while is_live(directory, info):
            status = _status(directory, info)
            if status is not None:
                notes = [Text(text, style="red") for text in _silence(time.time() - status["written_at"])]
                view.update(Group(render(status), *notes, Text()), refresh=True)  # see LiveView
            time.sleep(FOLLOW_S)  # the pace of status.json


def _watch_on(host: str, hosts_file: Path | None, run: Sequence[str]) -> int:
    """The launcher's view of a run on another host; at its end its last status."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from zmqrl.views.tables import render

    with Live(Text("starting"), console=Console(), auto_refresh=False) as view:

        def show(status: Mapping[str, Any], notes: Sequence[str]) -> None:
            view.update(Group(render(status), *(Text(note, style="red") for note in notes)), refresh=True)

        code = run_on(host, hosts_file, ["status", *run, "-f", "--json"], StatusLines(show).take)
    return code or run_on(host, hosts_file, ["status", *run])


class StatusLines:
    """The lines of `status -f --json` of another host, whose clock may differ from this one's."""

    def __init__(
        self, show: Callable[[Mapping[str, Any], Sequence[str]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`show` receives each status.json, and notes for the user."""
        self._show, self._clock = show, clock
        self._line, self._written_at, self._new_at = b"", 0.0, clock()

    def take(self, chunk: bytes) -> bool:
        """The next bytes; more are wanted."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            _, begins, text = line.partition(b"{")  # a login shell may print before it
            status = json.loads(begins + text)["status"] if begins else None
            if status is not None:
                self._take(printable_data(status))
        return True

    def _take(self, status: Mapping[str, Any]) -> None:
        if status["written_at"] != self._written_at:
            self._written_at, self._new_at = status["written_at"], self._clock()
        self._show(status, _silence(self._clock() - self._new_at))


def _last_status(directory: Path, info: RunInfo, is_known: bool) -> str:
    """Status of a run that has ended, as far as `is_known`: its summary, where it wrote one."""
    summary = _summary(directory, info)
    if summary is None:
        return _without_summary(directory, info, is_known)
    shown = [f"{info.run_id}: {summary['status']} with exit code {summary['exit_code']}"]
    if summary["env_steps"] is not None:
        shown.append(f"{summary['env_steps']:,} env steps in {summary['wall_s']:.1f} s")
    if summary["train_return_mean_100"] is not None:
        shown.append(f"return {summary['train_return_mean_100']:.1f}")
    shown += report_cells(summary.get("train_reports", {}))
    shown += ["solved"] if summary["solved_at_env_steps"] is not None else []
    lines = [", ".join(shown), *([summary["error"]] if summary["error"] else [])]
    return "\n".join(lines if summary["status"] == "done" else [*lines, _resume(directory)])


def _without_summary(directory: Path, info: RunInfo, is_known: bool) -> str:
    """Its launcher wrote none: it was killed, or its machine went down; or the file cannot be used."""
    from zmqrl.agent.run_processes import agents
    from zmqrl.run_files.records import read_record
    from zmqrl.run_files.run_directory import SUMMARY

    path = directory / SUMMARY
    if info.ended_at is not None and path.exists() and read_record(path) is None:  # stderr has the cause
        return f"{info.run_id}: ended; how is unknown, since {path} cannot be used"
    launcher, status = f"the launcher (pid {info.pid} on {info.host})", _status(directory, info)
    lines = [f"{info.run_id}: ended without a summary: {launcher} has exited"]
    if not is_known:
        silent = f"its {launcher.removeprefix('the ')} is {info.place} and does not renew its record"
        lines = [f"{info.run_id}: unknown whether it has ended: {silent} in {directory / '.owner'}"]
    if status is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["written_at"]))
        steps = f"{status['env_steps']:,} of {status['total_env_steps']:,} env steps"
        lines += [f"  last status at {at}, after {steps}", *shown_problems(status)]
    log = directory / "logs" / "launcher.log"
    lines += [f"  log: {log}"] if log.exists() else []
    if not is_known or info.host != socket.gethostname():
        lines.append(f"  end what may be left of it: zmqrl down {directory.absolute()}")
    elif any(run_id == info.run_id for _, run_id in agents()):
        lines.append(f"  some of its processes are still running: zmqrl down {info.run_id}")
    else:
        lines.append("  its processes on this machine have ended")
    return "\n".join([*lines, _resume(directory)])


def _resume(directory: Path) -> str:
    from zmqrl.run_files.run_directory import resume_command

    return f"  resume with: {resume_command(directory.absolute())}"


def _live_status(directory: Path, info: RunInfo) -> str:
    status = _status(directory, info)
    if status is None:
        return f"{info.run_id}: starting"
    metrics, shown = status["metrics"], [f"{info.run_id}: {status['phase']}"]
    shown.append(f"{status['env_steps']:,} of {status['total_env_steps']:,} env steps in {status['wall_s']:.0f} s")
    for label, name in (("env steps/s", "env_steps_per_s"), ("updates/s", "updates_per_s"), ("lag", "policy_lag_mean")):
        if name in metrics:
            shown.append(f"{metrics[name]:,.1f} {label}")
    if "train_return_mean_100" in metrics:
        shown.append(f"return {metrics['train_return_mean_100']:.1f}")
    shown += report_cells(reports_of(metrics))
    shown += [f"bottleneck {bottleneck_of(status)}"] if status["bottleneck"] else []
    interval_s = metrics.get("checkpoint_interval_s", 0.0)
    if interval_s > status.get("checkpoint_every_s", interval_s):
        shown.append(f"a durable checkpoint every {interval_s:.0f} s (slow writes)")
    shown += ["env.recovery restart_episode"] if status.get("recovery") == "restart_episode" else []
    shown += [f"rejected {what}: {count}" for what, count in status.get("refused", {}).items()]
    lines = [", ".join(shown), *_silence(time.time() - status["written_at"]), *_hosts(status.get("hosts", []))]
    lines += ["  " + "  ".join(f"{key} {short(value)}" for key, value in row.items()) for row in status["workers"]]
    return "\n".join([*lines, *shown_problems(status)])


def _silence(silent_s: float) -> list[str]:
    return [f"no status from the launcher for {silent_s:.0f} s"] if silent_s > SILENT_S else []


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table as wide as it has to be; columns that no host has anything in are left out."""
    if not hosts:
        return []
    rows = [[*HOST_COLUMNS, ""], *map(host_cells, hosts)]
    columns = [column for column in zip(*rows, strict=True) if {*column[1:]} != {UNKNOWN}]
    return [f"  {line}" for line in aligned([*zip(*columns, strict=True)])]


def _status(directory: Path, info: RunInfo) -> dict[str, Any] | None:
    from zmqrl.run_files.records import read_record

    status: dict[str, Any] | None = printable_data(read_record(directory / "status.json"))
    return status if status is not None and status["run_id"] == info.run_id else None


def _summary(directory: Path, info: RunInfo) -> dict[str, Any] | None:
    from zmqrl.run_files.records import read_summary

    summary: dict[str, Any] | None = printable_data(read_summary(directory, info.run_id))
    return summary
