"""`sweep run|status|stop|resume|plot|table`: many runs with other values of some keys, as jobs of a queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.queue import IN, check_one_host, made_queue
from zmqrl.errors import ConfigError
from zmqrl.logs.standard_output import lossy_output
from zmqrl.views.base import UNKNOWN, aligned

if TYPE_CHECKING:
    from zmqrl.sweeps.folder import SweepFolder
    from zmqrl.sweeps.report import SweepReport
    from zmqrl.sweeps.sweep_file import Sweep, SweepFile

SWEEP = click.argument("sweep", type=click.Path(path_type=Path), metavar="DIR")
HOSTS = click.argument("hosts", type=click.Path(path_type=Path), required=False)
MOST_CHECKED = 16
"""Configurations that are checked before the first trial."""


class _SweepGroup(click.Group):
    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_file = args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(context, ["run", *args] if is_file else args)


@click.group("sweep", cls=_SweepGroup)
def sweep_command() -> None:
    """Find the best values of some keys.

    `zmqrl sweep FILE [HOSTS]` is `zmqrl sweep run FILE [HOSTS]`.
    """


@sweep_command.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@HOSTS
@click.option("--dir", "sweep", type=click.Path(path_type=Path), help="Folder of the sweep. Default: runs/<FILE>.")
@IN
def run_command(file: Path, hosts: Path | None, sweep: Path | None, folder: Path) -> int:
    """Run the sweep that FILE describes, or continue it.

    Its runs are jobs of the queue. Unless your runner is active, this command is the runner too: on the hosts of HOSTS
    (hosts.yaml) that have a capacity. Default: this machine.
    """
    from zmqrl.config.codec import replace
    from zmqrl.sweeps.folder import SweepFolder
    from zmqrl.sweeps.sweep_file import located, read_sweep

    keys = read_sweep(file)
    with located(file):
        made = _resolved(keys, folder)
    made = replace(made, jobs_before=max(made_queue(folder).read().jobs, default=0))
    return _run(SweepFolder.create(sweep or Path("runs", file.stem), made), hosts)


@sweep_command.command("resume")
@SWEEP
@HOSTS
def resume_command(sweep: Path, hosts: Path | None) -> int:
    """Continue the sweep in DIR after a stop or an interruption."""
    from zmqrl.sweeps.folder import SweepFolder

    return _run(SweepFolder(sweep), hosts)


@sweep_command.command("stop")
@SWEEP
def stop_command(sweep: Path) -> None:
    """Stop the sweep in DIR.

    Its jobs are held, running ones with a checkpoint, and its driver ends.
    """
    from zmqrl.sweeps.driver import request
    from zmqrl.sweeps.folder import SweepFolder
    from zmqrl.sweeps.trials import has_ended, holds

    folder = SweepFolder(sweep)
    queue = made_queue(Path(folder.sweep.queue))
    if has_ended(folder.sweep.keys, folder.trials(queue.read())):
        click.echo("all trials have ended")
        return
    folder.set_stopped(True)  # the driver may have ended: its jobs are held here too
    for action in holds(folder.trials(queue.read())):
        request(folder, queue, action)
    click.echo(f"stopped; to continue: zmqrl sweep resume {sweep}")


@sweep_command.command("status")
@SWEEP
def status_command(sweep: Path) -> None:
    """Count the trials of the sweep in DIR, and print the best."""
    report = _report(sweep)
    click.echo("\n".join(filter(None, (*report.summary(), report.hint()))))


@sweep_command.command("table")
@SWEEP
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def table_command(sweep: Path, as_data: bool) -> None:
    """Print the trials of the sweep in DIR, the best first."""
    report = _report(sweep)
    head, *rows = report.table()
    if as_data:
        click.echo(json.dumps([dict(zip(head, row, strict=True)) for row in rows]))
        return
    titles = [*map(str.upper, head[:3]), *head[3:]]
    click.echo("\n".join(aligned([titles, *([_cell(value) for value in row] for row in rows)])))
    if hint := report.hint():
        click.echo(hint, err=True)


@sweep_command.command("plot")
@SWEEP
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("sweep.png"), show_default=True, help="Image file."
)
def plot_command(sweep: Path, out: Path) -> None:
    """Draw the trials of the sweep in DIR as parallel coordinates."""
    from zmqrl.sweeps.report import draw

    report = _report(sweep)
    if not report.drawn:
        raise ConfigError.about(sweep, "has no trial with a value yet")
    try:
        draw(report, out)
    except (OSError, ValueError) as error:  # a suffix that matplotlib does not know
        raise ConfigError(f"cannot be written: {error}", key=("--out",), value=str(out)) from error
    click.echo(str(out))


def _resolved(keys: SweepFile, queue: Path) -> Sweep:
    """The sweep with what its configuration states. ConfigError: that of a trial is invalid."""
    from zmqrl.config.codec import replace
    from zmqrl.config.presets import preset_name
    from zmqrl.config.webhook import check_repeated
    from zmqrl.planning.configure import load_config
    from zmqrl.supervision import check_process
    from zmqrl.sweeps.optuna_trials import optuna_of
    from zmqrl.sweeps.sweep_file import Sweep

    if keys.method == "optuna":
        optuna_of()
    keys = replace(keys, preset=str(preset_name(keys.preset)))
    sweep = Sweep(keys, str(Path.cwd()), str(queue.absolute()))
    check_repeated(sweep.overrides({}))
    with check_process.none_left():
        trials = range(min(keys.count, MOST_CHECKED))
        configs = [load_config(keys.preset, overrides=sweep.overrides(keys.parameters_of(each))) for each in trials]
    first = configs[0]
    check_one_host(first)
    total = min(config.run.total_env_steps for config in configs)
    if keys.rungs and keys.rungs[-1] > total and not first.mode.offline:
        what, fix = "is above run.total_env_steps", f"write rungs up to {total:,}, or raise run.total_env_steps"
        raise ConfigError(what, key=("rungs",), value=f"{keys.rungs[-1]:,}", is_subject=True, fix=fix)
    if keys.rungs and first.store.kind != "directory":
        fix = "remove rungs, or the store"
        raise ConfigError("cannot be used with rungs", key=("store", "kind"), value=first.store.kind, fix=fix)
    return replace(sweep, first_seed=first.run.seed, best_by=first.evaluator.best_by)


@lossy_output()  # a sweep does not end where its output is closed, as a run does not
def _run(folder: SweepFolder, hosts: Path | None) -> int:
    """Exit code: 1 if no trial is complete at the end."""
    from zmqrl.queue.hosts import RunnerHosts
    from zmqrl.sweeps.driver import PRESET, drive

    try:
        drive(folder, made_queue(Path(folder.sweep.queue)), RunnerHosts.of(hosts), click.echo)
    except KeyboardInterrupt:
        click.echo(f"to continue: zmqrl sweep resume {folder.path}")
        raise
    click.get_current_context().invoke(status_command, sweep=folder.path)
    return 0 if folder.is_stopped or (folder.path / PRESET).exists() else 1


def _report(sweep: Path) -> SweepReport:
    from zmqrl.queue.folder import open_queue
    from zmqrl.sweeps.folder import SweepFolder
    from zmqrl.sweeps.report import SweepReport

    folder = SweepFolder(sweep)
    return SweepReport(folder, open_queue(Path(folder.sweep.queue)))


def _cell(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
