"""`zmqrl launch`: a run on the hosts of a file, or a Slurm job that launches it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zmqrl.cli.start.start_options import CommandOfARun, TrainRequest, request_of, with_options
from zmqrl.cli.start.train import directory_for, new, run
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError


@click.command("launch", cls=CommandOfARun)
@click.argument("hosts", type=click.Path(path_type=Path))
@with_options
@click.option(
    "--submit",
    is_flag=True,
    help="Submit a Slurm job that launches the run; a preempted job is requeued and resumes the run.",
)
@click.option(
    "--after",
    type=click.IntRange(1),
    multiple=True,
    metavar="JOB",
    help="With --submit: start when the Slurm job JOB has ended with exit code 0; may be repeated.",
)
@click.pass_obj
def launch_command(started_at: float, /, hosts: Path, submit: bool, after: tuple[int, ...], **options: Any) -> int:
    """Train on the hosts that the file HOSTS (hosts.yaml) lists."""
    request = request_of(started_at, options, hosts_file=hosts, submit=submit)
    if after and not submit:
        raise click.UsageError("--after requires --submit")
    return _submit(request, hosts, after) if submit else run(request)


def _submit(request: TrainRequest, hosts_file: Path, after: tuple[int, ...]) -> int:
    """The job plans the run again: a fault of the configuration ends the command here, before it waits in a queue."""
    from zmqrl.config.hosts import LOCAL
    from zmqrl.config.webhook import check_repeated
    from zmqrl.launch.start import configured, planned
    from zmqrl.launcher_place.submit import job_script, submit
    from zmqrl.planning.directory_checks import check_new_directory

    check_repeated(request.overrides)
    is_auto, request = request.is_auto, new(request)
    loaded = configured(request)
    if loaded.is_auto_here:
        what = "--submit requires a number, because the job does not run on this machine"
        raise ConfigError(what, key=("hosts", LOCAL, "workers"), value="'auto'")
    with directory_for(request) as directory:
        if not is_auto:
            check_new_directory(directory)
        plan = planned(replace(request, run_dir=directory), loaded, is_here=False)
        script = job_script(plan, hosts_file, list(request.flags()))
        if request.dry_run:
            from zmqrl.cli.start.dry_run import print_plan

            print_plan(plan, loaded.sources)
            click.echo(f"\n{script}", nl=False)
            return 0
        job = submit(Path(plan.run_dir), script, after)
        click.echo(f"job {job} submitted; when it runs: zmqrl status {plan.run_dir}")
        return 0
