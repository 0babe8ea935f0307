"""`zmqrl train`, and the start of a run of `train` and `launch`."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from zmqrl.cli import completion
from zmqrl.cli.start.seeds import run_seeds, summary_of
from zmqrl.cli.start.start_options import CommandOfARun, TrainRequest, check_env, request_of, with_options
from zmqrl.config.codec import replace
from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError


@click.command("train", cls=CommandOfARun)
@click.argument("preset", required=False, shell_complete=completion.presets)
@click.option(
    "--env", metavar="ID", help="Train in an env without a preset. ID is a gymnasium id, package:Id or module:Class."
)
@click.option("--algo", metavar="KIND", shell_complete=completion.algorithms, help="Algorithm for --env. Default: ppo.")
@click.option("--parallel", is_flag=True, help="Run the seeds of --seeds at the same time, in a queue.")
@with_options
@click.pass_obj
def train_command(started_at: float, /, preset: str | None, env: str | None, algo: str | None, **options: Any) -> int:
    """Train with PRESET on this machine.

    PRESET is a name that `zmqrl presets` lists, or a YAML file. If this file lists hosts, the workers run on these
    hosts. This machine is then the host `local`: it has workers if the file lists it. Instead of PRESET, --env ID
    selects an env without a preset.
    """
    check_env(preset, env, algo, options["resume"])
    return run(request_of(started_at, options, preset=preset, env=env, algo=algo))


def run(request: TrainRequest) -> int:
    """Start a run, on this machine or on the one of `--on`. Exit code of the command."""
    if request.on is not None:
        from zmqrl.cli.start.launch_on import launch_on

        return launch_on(request, request.on)
    from zmqrl.logs.standard_output import output_as_errors
    from zmqrl.supervision import check_process

    if not request.detach:  # which forks: its template is started later
        check_process.start()
    # with --json all else that is printed, also by modules of the user, goes to stderr
    summaries = output_as_errors(forks=request.detach) if request.as_data else contextlib.nullcontext()
    with check_process.none_left(), summaries as output:
        return _run_here(request, output)


def _run_here(request: TrainRequest, output: TextIO | None) -> int:
    request = _located(request)
    _note_workers(request)
    if request.resume is not None:
        return _run_one(request, output)
    with directory_for(request) as directory:
        request = replace(request, run_dir=directory)
        return (
            _run_one(request, output) if request.seeds is None else run_seeds(request, partial(_run_one, output=output))
        )


def _located(request: TrainRequest) -> TrainRequest:
    from zmqrl.planning.directory_checks import check_new_directory, holds_run
    from zmqrl.run_files.run_directory import default_path

    if request.copy is not None:  # it is continued in a new run directory
        directory = request.run_dir or default_path(request.copy.rstrip("/").rpartition("/")[2])
        check_new_directory(directory)
        return request.resumed(directory)
    if request.is_resume:
        from zmqrl.cli.run.find_run import directory_of

        return request.resumed(directory_of(str(request.resume)))
    if request.is_auto and request.run_dir is not None:
        if holds_run(request.run_dir):
            return request.resumed(request.run_dir)
        if request.preset is None and request.env is None and request.hosts_file is None:
            raise click.UsageError(f"{request.run_dir} holds no run: a preset or --env ID is required for a new one")
    return new(request)


def new(request: TrainRequest) -> TrainRequest:
    """`request` for a new run, with the place of what `--init-from` names."""
    init_from = None if request.init_from is None else _source_of_weights(request.init_from)
    return replace(request.new(), init_from=init_from)


def directory_for(request: TrainRequest) -> contextlib.AbstractContextManager[Path]:
    """See `new_directory`; a dry run makes none."""
    from zmqrl.launch.start import configured, new_directory
    from zmqrl.run_files.run_directory import default_path

    if request.dry_run and request.run_dir is None:
        return contextlib.nullcontext(default_path(configured(request).config.run.name))
    return new_directory(request)


def _note_workers(request: TrainRequest) -> None:
    from zmqrl.types import MODES as by_name

    if request.workers and request.mode is not None and by_name[request.mode].in_process:
        click.echo(f"--workers {request.workers} has no effect: mode {request.mode} has no rollout workers", err=True)


def _source_of_weights(named: str) -> str:
    """The absolute path of what `--init-from` names: a run directory, a file, or the id of a run."""
    path = expanded(named, "--init-from")
    if path.exists() or "/" in named or path.suffix:
        return str(path.absolute())
    from zmqrl.cli.run.find_run import find_run

    try:
        return str(find_run(named)[0].absolute())
    except ConfigError as error:
        raise error.of(("--init-from",)) from error.__cause__


def _run_one(request: TrainRequest, output: TextIO | None) -> int:
    """`output`: of the summary as JSON; None: it is shown as text."""
    directory = request.directory
    before = _record(directory)
    code = _run_and_show(request)
    has_begun = code == 0 or _record(directory) not in (before, None)
    if output is not None and has_begun:
        print(_result(directory, request.detach), file=output, flush=True)
    return code


def _result(directory: Path, is_detached: bool) -> str:
    """The line of `--json`: the summary of the run; of one that continues in the background, its id and process."""
    info = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    place = {"run_dir": str(directory.absolute()), "run_id": info["run_id"]}
    if is_detached:
        return json.dumps({**place, "pid": info["pid"]})
    return json.dumps({**place, **summary_of(directory)})  # where it could not be written, its content is on stderr


def _run_and_show(request: TrainRequest) -> int:
    from zmqrl.launcher_place.detach import run_detached, run_in_place
    from zmqrl.supervision import check_process

    run = partial(_run_in, request)
    if request.detach and not request.dry_run:
        check_process.end()  # the launcher, a fork of this process, starts its own
        return run_detached(request.directory, run)
    return run_in_place(request.directory, run) if request.in_place else run(lambda: None)


def _run_in(request: TrainRequest, on_ready: Callable[[], None]) -> int:
    if request.copy is None:
        return _prepare_and_launch(request, on_ready)
    from zmqrl.run_files.url_mirror import fetch

    directory = request.directory
    fetch(request.copy, directory, to_resume=True)
    fetched = _record(directory)
    is_refused = True
    try:
        code = _prepare_and_launch(request, on_ready)
        is_refused = code == ConfigError.exit_code or request.dry_run
        return code
    finally:
        if is_refused and _record(directory) == fetched:  # else an attempt has begun
            shutil.rmtree(directory, ignore_errors=True)


def _record(directory: Path) -> bytes | None:
    """`run.json`, which each attempt replaces; a refused one restores it."""
    try:
        return (directory / "run.json").read_bytes()
    except OSError:
        return None


def _prepare_and_launch(request: TrainRequest, on_ready: Callable[[], None]) -> int:
    from zmqrl.launch.start import NothingToTrain, Prepared, examined, planned, prepare
    from zmqrl.planning.continuation import nothing_to_train

    found = examined(request) if request.dry_run else prepare(request)
    if request.resume is not None and request.preset is not None:
        text = f"the run in {request.resume} keeps its configuration; the preset {request.preset} is not read again"
        click.echo(text, err=True)
    if isinstance(found, NothingToTrain):
        click.echo(nothing_to_train(found.run_dir, found.condition))
        return 0
    if isinstance(found, Prepared):
        return found.launcher(request.plain or request.detach or request.in_place, on_ready).run()
    from zmqrl.cli.start.dry_run import print_plan

    print_plan(planned(request, found, connects=False), found.sources)
    return 0
