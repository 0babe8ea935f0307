"""`train --seeds N`: a run for each seed, one after the other, or as jobs of a queue in their folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.cli.start.start_options import TrainRequest
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError, ZmqrlError
from zmqrl.logs.standard_output import lossy_output

if TYPE_CHECKING:
    from zmqrl.config.sections import Config
    from zmqrl.queue.hosts import RunnerHosts
    from zmqrl.queue.records import JobNeeds

WORST_FIRST = (130, 2, 4, 1, 3, 0)
QUEUE = "queue"
TO_CONTINUE = "to continue: zmqrl queue run --until-empty --queue"
CORES = 2
"""What a seed takes with --parallel; with --workers N one more than N."""


@lossy_output()  # as one run
def run_seeds(request: TrainRequest, run_one: Callable[[TrainRequest], int]) -> int:
    """Each seed in `DIR/seed-<seed>`; the worst exit code."""
    from zmqrl.launch.start import configured
    from zmqrl.launch.summary import line_of_seeds
    from zmqrl.planning.directory_checks import check_new_directory
    from zmqrl.run_files.run_info import is_run

    config, folder = configured(request).config, request.directory
    if is_run(folder):
        fix = "choose another directory for the runs of the seeds"
        raise ConfigError.about(f"run directory {folder}", "holds a run", fix)
    first = config.run.seed
    runs = {seed: folder / f"seed-{seed}" for seed in range(first, first + (request.seeds or 0))}
    if request.parallel:
        _check_queue(folder.absolute() / QUEUE)
    for directory in runs.values():
        check_new_directory(directory)
    codes = _in_parallel(request, config, runs) if request.parallel else _one_by_one(request, runs, run_one)
    if len(codes) < len(runs):
        click.echo(f"{len(runs) - len(codes)} of {len(runs)} seeds were not run", err=True)
    line = line_of_seeds([summary_of(directory) for directory in runs.values()])
    if line is not None and not request.as_data:
        click.echo(line)
    return min(codes, key=WORST_FIRST.index)


def summary_of(directory: Path) -> Mapping[str, Any]:
    """`summary.json`; empty where there is none, as after a dry run, or it is damaged."""
    from zmqrl.run_files.records import read_summary

    return read_summary(directory) or {}


def _one_by_one(request: TrainRequest, runs: Mapping[int, Path], run_one: Callable[[TrainRequest], int]) -> list[int]:
    """Exit codes of the seeds up to one that was interrupted or stopped."""
    codes = []
    for seed, directory in runs.items():
        codes.append(run_one(replace(request, run_dir=directory, seed=seed, started_at=time.time())))
        if codes[-1] == WORST_FIRST[0] or summary_of(directory).get("status") == "stopped":
            break  # `zmqrl stop` means the whole series
    return codes


def _check_queue(queue: Path) -> None:
    """Raise `ConfigError` for jobs of a start that was interrupted, maybe with another configuration."""
    from zmqrl.queue.folder import QueueFolder

    if queue.exists() and any(job.end is None for job in QueueFolder(queue).read().jobs.values()):
        fix = f"{TO_CONTINUE} {queue}; or choose another directory"
        raise ConfigError.about(queue, "has jobs that have not ended", fix)


def _in_parallel(request: TrainRequest, config: Config, runs: Mapping[int, Path]) -> list[int]:
    """Run each seed as a job of this machine, as many at a time as it has slots for. Exit codes of these jobs."""
    from zmqrl.cli.queue import check_one_host, made_queue
    from zmqrl.config.presets import preset_name
    from zmqrl.config.webhook import check_repeated
    from zmqrl.queue.hosts import RunnerHosts
    from zmqrl.queue.records import JobNeeds, JobRecord
    from zmqrl.queue.runner import JobRunner, serve

    check_repeated(request.overrides)
    check_one_host(config)
    queue, hosts = made_queue(request.directory.absolute() / QUEUE), RunnerHosts.of(None)
    needs, preset = _needs(request, config, hosts), str(preset_name(str(request.preset)))
    (here,) = hosts.capacity.values()
    at_a_time = min(here.cores // needs.cores, here.gpus // needs.gpus if needs.gpus else len(runs))
    if at_a_time < len(runs):
        has = JobNeeds(here.cores, here.gpus)
        click.echo(f"{at_a_time} of {len(runs)} seeds at a time: each needs {needs}, and this machine has {has}")
    options = {"run.mode": request.mode, "hosts.local.workers": request.workers, "run.init_from": request.init_from}
    given = [*request.overrides, *(f"{key}={json.dumps(it)}" for key, it in options.items() if it is not None)]
    try:
        with JobRunner(queue, hosts, click.echo) as runner:
            numbers = list[int]()
            for seed, directory in runs.items():
                what = preset, (*given, f"run.seed={seed}"), os.getcwd(), str(directory.absolute())
                record = JobRecord(os.geteuid(), *what, 0, needs, ())
                numbers.append(queue.add(record, is_numbered=False).number)
            serve(runner.step, lambda: not runner.has_jobs(), click.echo)
    except KeyboardInterrupt:
        click.echo(f"{TO_CONTINUE} {queue.path}")
        raise
    ends = {job.number: job.end for job in queue.read().jobs.values()}
    codes = (None if end is None else end.exit_code for end in map(ends.get, numbers))
    return [code if code in WORST_FIRST else ZmqrlError.exit_code for code in codes]  # others: of a signal, or none


def _needs(request: TrainRequest, config: Config, hosts: RunnerHosts) -> JobNeeds:
    """Slots of a seed: on a machine with GPUs also one of these if the learner looks for one."""
    from zmqrl.queue.records import JobNeeds

    (here,) = hosts.capacity.values()
    device = config.learner.device
    takes_gpu = device.startswith("cuda") or (device == "auto" and config.network.kind != "mlp")
    cores = CORES if request.workers is None else request.workers + 1
    return JobNeeds(min(here.cores, cores), min(here.gpus, int(takes_gpu)))
