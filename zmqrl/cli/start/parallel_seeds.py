"""`train --seeds N --parallel`: the seeds as jobs of a queue of their own, in the folder of their runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import click

from zmqrl.cli.start.start_options import TrainRequest

QUEUE = "queue"
CORES = 2
"""What a seed takes; with --workers N one more than N."""


def run_in_parallel(request: TrainRequest, runs: Mapping[int, Path]) -> list[int]:
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
