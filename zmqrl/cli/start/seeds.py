"""`train --seeds N`: a run for each seed, one after the other, or as jobs of a queue in their folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from zmqrl.cli.start.start_options import TrainRequest
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError

WORST_FIRST = (130, 2, 4, 1, 3, 0)
QUEUE = "queue"
CORES = 2
"""What a seed takes with --parallel; with --workers N one more than N."""


def run_seeds(request: TrainRequest, run_one: Callable[[TrainRequest], int]) -> int:
    """Each seed in `DIR/seed-<seed>`; the worst exit code. An interrupted or stopped one is the last."""
    from zmqrl.launch.start import configured
    from zmqrl.launch.summary import line_of_seeds
    from zmqrl.planning.directory_checks import check_new_directory
    from zmqrl.run_files.run_info import is_run

    first, folder = configured(request).config.run.seed, request.directory
    if is_run(folder):
        fix = "choose another directory for the runs of the seeds"
        raise ConfigError.about(f"run directory {folder}", "holds a run", fix)
    runs = {seed: folder / f"seed-{seed}" for seed in range(first, first + (request.seeds or 0))}
    for directory in runs.values():
        check_new_directory(directory)
    codes = _in_parallel(request, runs) if request.parallel else _one_by_one(request, runs, run_one)
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
    codes = []
    for seed, directory in runs.items():
        codes.append(run_one(replace(request, run_dir=directory, seed=seed, started_at=time.time())))
        if codes[-1] == WORST_FIRST[0] or summary_of(directory).get("status") == "stopped":
            break  # `zmqrl stop` means the whole series
    return codes


def _in_parallel(request: TrainRequest, runs: Mapping[int, Path]) -> list[int]:
    """Run the seeds, as many at a time as this machine has cores for; the exit code of each."""
    from zmqrl.capacity import usable_cores
    from zmqrl.cli.queue import made_queue
    from zmqrl.config.presets import preset_name
    from zmqrl.queue.hosts import RunnerHosts
    from zmqrl.queue.records import JobNeeds, JobRecord
    from zmqrl.queue.runner import JobRunner, serve

    queue, preset = made_queue(request.directory.absolute() / QUEUE), str(preset_name(str(request.preset)))
    options = {"run.mode": request.mode, "hosts.local.workers": request.workers, "run.init_from": request.init_from}
    given = [*request.overrides, *(f"{key}={json.dumps(it)}" for key, it in options.items() if it is not None)]
    cores = min(usable_cores(), CORES if request.workers is None else int(request.workers) + 1)
    known = {job.record.run_dir for job in queue.read().jobs.values()}  # of a start that was interrupted
    for seed, directory in runs.items():
        if str(directory.absolute()) in known:
            continue
        what = preset, (*given, f"run.seed={seed}"), os.getcwd(), str(directory.absolute())
        queue.add(JobRecord(os.geteuid(), *what, 0, JobNeeds(cores), (), time.time()), is_numbered=False)
    try:
        with JobRunner(queue, RunnerHosts.of(None), click.echo) as runner:
            serve(runner.step, lambda: not runner.has_jobs(), click.echo)
    except KeyboardInterrupt:
        click.echo(f"to continue: zmqrl queue run --until-empty --queue {queue.path}")
        raise
    ends = [job.end for job in queue.read().jobs.values()]
    return [1 if end is None or end.exit_code is None else end.exit_code for end in ends]
