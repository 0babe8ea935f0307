"""`queue add|run|list|stop|hold|log`: jobs of several users in one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from zmqrl.cli import completion
from zmqrl.errors import ConfigError
from zmqrl.logs.standard_output import lossy_output

if TYPE_CHECKING:
    from zmqrl.config.sections import Config
    from zmqrl.queue.folder import QueueFolder
    from zmqrl.queue.records import Job, JobNeeds, Records

IN = click.option(
    "--queue",
    "folder",
    type=click.Path(path_type=Path, readable=False),
    envvar="ZMQRL_QUEUE",
    default=Path("queue"),
    show_default=True,
    help="Folder of the queue. $ZMQRL_QUEUE replaces the default.",
)
PRIORITIES = click.IntRange(-1000, 1000)
BLOCK = 65_536
"""Characters of an output that are printed at once."""
JOBS = click.argument("jobs", nargs=-1, required=True, type=click.IntRange(1), metavar="JOB...")


@click.group("queue")
def queue_command() -> None:
    """Run the jobs of several users in order."""


@queue_command.command("add")
@click.argument("preset", shell_complete=completion.presets)
@click.option("--priority", type=PRIORITIES, default=0, show_default=True, metavar="N", help="Higher ones start first.")
@click.option("--needs", metavar="cores=N,gpus=N", default="cores=2", show_default=True, help="Slots on one host.")
@click.option("--after", type=click.IntRange(1), multiple=True, metavar="JOB", help="Start when JOB is done.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completion.keys,
    help="Override a key, e.g. run.seed=3; may be repeated.",
)
@IN
def add_command(
    preset: str, priority: int, needs: str, after: tuple[int, ...], overrides: tuple[str, ...], folder: Path
) -> None:
    """Add a job that trains with PRESET.

    PRESET is a name that `zmqrl presets` lists, or a YAML file. The job starts when your runner is active (`zmqrl queue
    run`) and a host has the slots. Its run is an ordinary one, in runs/. A file with `orchestrator: {kind: slurm}` is
    submitted to Slurm: JOB is then a job of Slurm.
    """
    from zmqrl.config.presets import preset_name
    from zmqrl.config.webhook import check_repeated
    from zmqrl.planning.configure import load_config
    from zmqrl.queue.records import JobRecord
    from zmqrl.run_files.run_directory import default_path
    from zmqrl.supervision import check_process

    check_repeated(overrides)
    slots = _needs(needs)
    with check_process.none_left():
        config = load_config(preset, overrides=overrides)
    if config.orchestrator.kind == "slurm":
        _submit(slots)
        return
    check_one_host(config)
    queue = made_queue(folder)
    _check_after(queue, after)
    run_dir = str(default_path(config.run.name).absolute())
    name = str(preset_name(preset))
    record = JobRecord(os.geteuid(), name, overrides, os.getcwd(), run_dir, priority, slots, after)
    job = queue.add(record)
    where = queue.path.absolute()
    click.echo(f"job {job.number} added to {where}; zmqrl queue run starts it; its run directory: {job.record.run_dir}")


@queue_command.command("run")
@click.argument("hosts", type=click.Path(path_type=Path), required=False)
@click.option("--until-empty", is_flag=True, help="End when all your jobs have ended.")
@IN
def run_command(hosts: Path | None, until_empty: bool, folder: Path) -> None:
    """Start and watch your own jobs.

    They run on the hosts of HOSTS (hosts.yaml) that have a capacity. Default: this machine. One runner serves all jobs
    of a user. When it ends, its runs end with a checkpoint, and the next runner continues them.
    """
    from zmqrl.queue.folder import open_queue
    from zmqrl.queue.hosts import RunnerHosts
    from zmqrl.queue.listing import own_jobs
    from zmqrl.queue.records import JobNeeds
    from zmqrl.queue.runner import JobRunner, serve

    found, queue = RunnerHosts.of(hosts), open_queue(folder, writes=True)
    try:
        runner = JobRunner(queue, found, click.echo)
        for name, capacity in found.capacity.items():
            click.echo(f"{name}: {JobNeeds(capacity.cores, capacity.gpus)}")
        with lossy_output(), runner:
            if held := [job.number for job in own_jobs(queue.read()) if job.is_held]:
                click.echo(f"held until zmqrl queue hold JOB --release: {', '.join(map(str, held))}")
            serve(runner.step, lambda: until_empty and not runner.has_jobs(), click.echo)
    except KeyboardInterrupt:
        click.echo("ended; the next zmqrl queue run continues the jobs")


@queue_command.command("list")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@IN
def list_command(as_data: bool, folder: Path) -> None:
    """List the jobs of all users."""
    from zmqrl.config.codec import names_of, to_json
    from zmqrl.queue.folder import open_queue
    from zmqrl.queue.listing import JobRow, job_rows
    from zmqrl.views.base import UNKNOWN, aligned

    queue = open_queue(folder)
    records = queue.read()
    rows = [to_json(row) for row in job_rows(records)]
    if as_data:
        click.echo(json.dumps(rows))
        return
    head = [name.upper() for name in names_of(JobRow)]
    cells = [[UNKNOWN if cell is None else str(cell) for cell in row.values()] for row in rows]
    click.echo("\n".join(aligned([head, *cells])))
    _report_no_runner(queue, records)


@queue_command.command("stop")
@JOBS
@IN
def stop_command(jobs: tuple[int, ...], folder: Path) -> None:
    """End your jobs.

    A running one ends with a checkpoint and a summary, a waiting one before it starts.
    """
    from zmqrl.queue.folder import STOP

    queue = _request(folder, jobs, lambda queue, number: queue.request(number, STOP))
    click.echo("stop requested; your runner ends the jobs")
    _report_no_runner(queue, queue.read())


@queue_command.command("hold")
@JOBS
@click.option("--release", is_flag=True, help="Let the jobs continue.")
@IN
def hold_command(jobs: tuple[int, ...], release: bool, folder: Path) -> None:
    """Keep your jobs from running.

    A running one is stopped with a checkpoint, from which it continues.
    """
    from zmqrl.queue.folder import HOLD

    change = "withdraw" if release else "request"
    _request(folder, jobs, lambda queue, number: getattr(queue, change)(number, HOLD))
    click.echo("released" if release else "held")


@queue_command.command("log")
@click.argument("job", type=click.IntRange(1))
@IN
def log_command(job: int, folder: Path) -> None:
    """Print the output of the run of JOB.

    `zmqrl logs RUN` prints the logs of its processes.
    """
    from zmqrl.config.paths import no_link
    from zmqrl.logs.printable import printable
    from zmqrl.queue.folder import OUTPUT, open_queue

    queue = open_queue(folder)
    found = next(_found(queue, [job]))
    try:
        with open(queue.job_folder(job) / OUTPUT, encoding="utf-8", errors="replace", opener=no_link) as file:
            for text in iter(lambda: file.read(BLOCK), ""):
                click.echo(printable(text), nl=False)
    except FileNotFoundError:
        run = f"; its run directory will be {printable(found.record.run_dir)}" if found.end is None else ""
        click.echo(f"job {job} has not started{run}", err=True)


def check_one_host(config: Config) -> None:
    """Raise `ConfigError` for the configuration of a job that names other hosts."""
    from zmqrl.config.hosts import LOCAL

    if others := sorted(set(config.hosts) - {LOCAL}):
        fix = "remove the hosts: the queue selects one (zmqrl queue run hosts.yaml)"
        raise ConfigError("a job runs on one host", key=("hosts",), value=", ".join(others), fix=fix)


def made_queue(folder: Path) -> QueueFolder:
    """The queue in a folder, which is created if it is absent."""
    from zmqrl.queue.folder import open_queue

    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    return open_queue(folder, writes=True)


def _needs(text: str) -> JobNeeds:
    """`cores=4,gpus=1`. ConfigError: something else."""
    import msgspec

    from zmqrl.queue.records import JobNeeds

    pairs = dict(pair.strip().partition("=")[::2] for pair in text.split(","))
    try:
        return msgspec.convert(pairs, JobNeeds, strict=False)
    except msgspec.ValidationError as error:
        fix = "write cores=N,gpus=M with N from 1 to 65,535 and M from 0 to 1,023"
        what = "is not a number of cores and of GPUs"
        raise ConfigError(what, key=("--needs",), value=repr(text), is_subject=True, fix=fix) from error


def _report_no_runner(queue: QueueFolder, records: Records) -> None:
    from zmqrl.queue.listing import lacks_runner

    if lacks_runner(queue, records):
        click.echo("you have no runner; to continue your jobs: zmqrl queue run", err=True)


def _check_after(queue: QueueFolder, after: Sequence[int]) -> None:
    """Raise `ConfigError` for a job that is unknown, or whose end would skip the job that follows it."""
    from zmqrl.queue.listing import job_rows

    states = {row.job: row.state for row in job_rows(queue.read())} if after else {}
    for number in after:
        state = states.get(number)
        if state is None:
            raise ConfigError("no such job", key=("--after",), value=str(number), fix="see: zmqrl queue list")
        if state in ("failed", "stopped", "skipped", "stopping"):
            what = f"the job is {state}: one that is to follow it would be skipped"
            fix = "add that job again and name its new number, or leave --after out"
            raise ConfigError(what, key=("--after",), value=str(number), fix=fix)


def _submit(needs: JobNeeds) -> None:
    """Submit the job of `queue add` to Slurm. ConfigError: it has a priority here."""
    from zmqrl.cli.start.launch import launch_command

    context = click.get_current_context()
    given, pairs = context.params, list[str]()
    if given["priority"]:
        fix = "set orchestrator.qos, or --nice in orchestrator.extra_args"
        raise ConfigError("the order of jobs is Slurm's", key=("--priority",), value=str(given["priority"]), fix=fix)
    if context.get_parameter_source("needs") is ParameterSource.COMMANDLINE:
        pairs = [f"orchestrator.cpus_per_task={needs.cores}"]
        pairs += [f"orchestrator.gres=gpu:{needs.gpus}"] if needs.gpus else []
    overrides = (*pairs, *given["overrides"])
    context.invoke(launch_command, hosts=Path(given["preset"]), submit=True, after=given["after"], overrides=overrides)


def _found(queue: QueueFolder, numbers: Sequence[int]) -> Iterator[Job]:
    jobs = queue.read().jobs
    for number in numbers:
        if number not in jobs:
            raise ConfigError("no such job", key=(), value=str(number), fix="see: zmqrl queue list")
        yield jobs[number]


def _request(folder: Path, numbers: Sequence[int], act: Callable[[QueueFolder, int], None]) -> QueueFolder:
    """Change the requests of jobs of this user. ConfigError: one is of another, or has ended; none is changed."""
    from zmqrl.queue.folder import open_queue

    queue = open_queue(folder)
    for job in list(_found(queue, numbers)):
        if job.record.uid != os.geteuid():
            raise ConfigError.about(job.number, "is a job of another user")
        if job.end is not None:
            raise ConfigError.about(job.number, f"has ended: {job.end.status}", "leave it out; no job was changed")
    for number in numbers:
        act(queue, number)
    return queue
