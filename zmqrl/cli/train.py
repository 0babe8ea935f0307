"""Starting runs: `launch`, `train`, `presets`."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from zmqrl.cli import completion
from zmqrl.cli.hosts_options import LIMIT_WORKERS
from zmqrl.cli.hosts_options import limit as limit_option
from zmqrl.config.codec import replace
from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.config.sections import Config
    from zmqrl.launch.without_preset import WithoutPreset
    from zmqrl.types import ModeName

MODES = ("single", "sync", "async")
"""As in `zmqrl.types`, which imports numpy: `--help` need not wait for that."""
AUTO = Path("auto")
WORST_FIRST = (130, 2, 4, 1, 3, 0)
NUMBERS = (4, 5)
"""Columns of `zmqrl presets` that are aligned to the right."""


class Steps(click.IntRange):
    """A number of env steps, also written as `1e5` or `100_000`, as `--set` takes it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[\d_]+", value):
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if not number.is_integer():
                self.fail(f"{value!r}: write a whole number such as 100000 or 1e5", param, ctx)
            value = int(number)
        return super().convert(value, param, ctx)


OPTIONS = (
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=completion.keys,
        help="Override a key (`zmqrl config keys` lists all), e.g. run.seed=3; may be repeated.",
    ),
    click.option(
        "--mode", type=click.Choice(MODES), help="Mode of the run. Default: run.mode of the file or the preset."
    ),
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Number of rollout workers (in sync and async). If the run also has workers on "
        "other hosts, set hosts.NAME.workers instead.",
    ),
    click.option("--seed", type=int, metavar="N", help="Seed of all random streams."),
    click.option("--seeds", type=click.IntRange(1), metavar="N", help="Run N seeds, one after the other."),
    click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory. Default: runs/<name>-<time>."),
    click.option(
        "--resume",
        metavar="RUN|URL|auto",
        help="Continue RUN (a run directory or a run id), or the copy of a run at URL. auto: continue the run "
        "in --run-dir if there is one, else start a new run there.",
    ),
    click.option(
        "--from-scratch",
        is_flag=True,
        help="With --resume, for a run without a loadable full checkpoint: start it again at env step 0. If a full "
        "checkpoint can be loaded: with --resume RUN the command is refused (exit code 2); with --resume auto the run "
        "continues from this checkpoint.",
    ),
    click.option(
        "--for",
        "for_env_steps",
        type=Steps(1),
        metavar="N",
        help="With --resume: train N more env steps. The earlier values of run.stop_at_return, "
        "run.stop_at_updates and run.max_wall_s do not apply.",
    ),
    click.option(
        "--init-from", metavar="RUN|FILE", help="Start a new run with the weights of RUN or of the checkpoint FILE."
    ),
    limit_option(LIMIT_WORKERS),
    click.option(
        "--on", metavar="HOST", help="Start the launcher on HOST. The run then does not depend on this machine."
    ),
    click.option(
        "--detach", is_flag=True, help="Return when all processes are ready; the run continues in the background."
    ),
    click.option("--dry-run", is_flag=True, help="Print the plan without starting anything."),
    click.option("--plain", is_flag=True, help="Print plain lines instead of the live view."),
    click.option(
        "--json",
        "as_data",
        is_flag=True,
        help="Print the summary of each run as one JSON line on stdout; all other output goes to stderr.",
    ),
    click.option("--in-place", is_flag=True, hidden=True),
)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class _CommandOfARun(click.Command):
    """Answers arguments that click calls unexpected."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        if "--set" in args and not ctx.resilient_parsing:
            from zmqrl.cli.habits import blank_in_set

            if (message := blank_in_set(args)) is not None:
                raise click.UsageError(message)
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            from zmqrl.cli.habits import unexpected_arguments

            first = ctx.params.get("preset") or ctx.params.get("hosts")
            raise click.UsageError(unexpected_arguments(str(self.name), [str(first), *extra]))
        return extra


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The options of `launch` and `train`."""

    preset: str | None = None
    hosts_file: Path | None = None
    env: str | None = None
    """In place of a preset."""
    algo: str | None = None
    started_at: float
    overrides: tuple[str, ...]
    mode: ModeName | None
    workers: int | None
    seed: int | None
    seeds: int | None
    run_dir: Path | None
    resume: Path | None
    copy: str | None
    """URL of the copy that is fetched into `resume` first."""
    from_scratch: bool
    for_env_steps: int | None
    init_from: str | None
    limit: tuple[str, ...]
    on: str | None
    detach: bool
    dry_run: bool
    plain: bool
    as_data: bool
    """Print the summary of each run as JSON."""
    in_place: bool
    """Started by `--on` of another machine, see `run_in_place`."""
    may_continue: bool
    """Not with `--from-scratch` of a run that the user names. A job that repeats its command continues where it can."""


@click.command("launch", cls=_CommandOfARun)
@click.argument("hosts", type=click.Path(path_type=Path))
@_with_options
@click.option(
    "--submit",
    is_flag=True,
    help="Submit a Slurm job that launches the run; a preempted job is requeued and resumes the run.",
)
@click.pass_obj
def launch_command(started_at: float, /, hosts: Path, submit: bool, **options: Any) -> int:
    """Train on the hosts that the file HOSTS (hosts.yaml) lists."""
    request = _request_of(started_at, options, hosts_file=hosts)
    if submit and request.as_data:
        raise click.UsageError(
            "--submit cannot be combined with --json: the summary exists only after the job has ended"
        )
    return _submit(request, hosts) if submit else _run(request)


@click.command("train", cls=_CommandOfARun)
@click.argument("preset", required=False, shell_complete=completion.presets)
@click.option(
    "--env", metavar="ID", help="Train in an env without a preset. ID is a gymnasium id, package:Id or module:Class."
)
@click.option("--algo", metavar="KIND", shell_complete=completion.algorithms, help="Algorithm for --env. Default: ppo.")
@_with_options
@click.pass_obj
def train_command(started_at: float, /, preset: str | None, env: str | None, algo: str | None, **options: Any) -> int:
    """Train with PRESET on this machine.

    PRESET is a name that `zmqrl presets` lists, or a YAML file. If this file lists hosts, the workers run on these
    hosts. This machine is then the host `local`: it has workers if the file lists it. Instead of PRESET, --env ID
    selects an env without a preset.
    """
    _check_env(preset, env, algo, options["resume"])
    return _run(_request_of(started_at, options, preset=preset, env=env, algo=algo))


def _check_env(preset: str | None, env: str | None, algo: str | None, resume: str | None) -> None:
    if not preset and env is None and resume is None:
        if algo is not None:
            raise click.UsageError(f"--algo {algo} requires --env ID; with a preset, use --set algorithm.kind={algo}")
        raise click.UsageError("a preset (`zmqrl presets` lists them), --env ID or --resume RUN is required")
    for option, value, key in (("--env", env, "env.id"), ("--algo", algo, "algorithm.kind")):
        if value is not None and (preset is not None or resume not in (None, str(AUTO))):
            other = f"the preset {preset}" if preset is not None else "--resume"
            fix = f"; to change the preset: --set {key}={value}" if preset is not None else ""
            raise click.UsageError(f"{option} cannot be combined with {other}{fix}")


@click.command("presets")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def presets_command(as_data: bool) -> None:
    """List the presets.

    The columns are env, algorithm, mode, limit of env steps, and the return that ends training early.
    """
    from zmqrl.config.load import presets
    from zmqrl.launch.configure import load_config

    configs = {name: load_config(name) for name in presets()}
    if as_data:
        click.echo(json.dumps([_preset(name, config) for name, config in configs.items()]))
        return
    rows = [("PRESET", "ENV", "ALGORITHM", "MODE", "ENV STEPS", "STOP AT RETURN")]
    for name, config in configs.items():
        run, stop_at = config.run, config.run.stop_at_return
        limit, goal = f"{run.total_env_steps:,}", "-" if stop_at is None else f"{stop_at:g}"
        rows.append((name, config.env.id, config.algorithm["kind"], run.mode, limit, goal))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        click.echo("  ".join(cell.rjust(width) if at in NUMBERS else cell.ljust(width) for at, (cell, width) in cells))


def _preset(name: str, config: Config) -> dict[str, Any]:
    run = config.run
    limits = {"total_env_steps": run.total_env_steps, "stop_at_return": run.stop_at_return}
    return {"name": name, "env": config.env.id, "algorithm": config.algorithm["kind"], "mode": run.mode, **limits}


def _request_of(started_at: float, options: dict[str, Any], **named: Any) -> TrainRequest:
    resume, copy = options.pop("resume"), None
    if resume is not None and "://" in resume:
        resume, copy = None, resume
    resume = None if resume is None else Path(resume)
    if options["run_dir"] is not None and options["on"] is None:  # a shell expands no `~` after `--run-dir=`
        options["run_dir"] = expanded(options["run_dir"], "--run-dir")
    options["may_continue"] = not options["from_scratch"] or resume == AUTO
    return TrainRequest(started_at=started_at, resume=resume, copy=copy, **options, **named)


def _run(request: TrainRequest) -> int:
    if request.on is not None:
        from zmqrl.cli.launch_on import launch_on

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
    if request.copy is not None:
        request = _to_fetch(request, request.copy)
    if request.resume == AUTO:
        if request.for_env_steps is not None:
            raise click.UsageError(
                "--for cannot be combined with --resume auto: each start would train N more env steps"
            )
        request = _resumed_or_new(request)
    elif request.resume is not None:
        from zmqrl.cli.find_run import directory_of

        request = replace(request, resume=directory_of(str(request.resume)))
    if request.resume is not None and request.run_dir is not None:
        raise click.UsageError("--run-dir cannot be combined with --resume: the run directory is that of --resume")
    if request.resume is not None and request.init_from is not None:
        raise click.UsageError("--init-from starts a new run and cannot be combined with --resume")
    if request.from_scratch and request.resume is None:
        raise click.UsageError("--from-scratch requires --resume: a new run always starts at env step 0")
    if request.as_data and request.dry_run:
        raise click.UsageError("--dry-run cannot be combined with --json: it prints the configuration as YAML")
    _check_for(request)
    _note_workers(request)
    if request.resume is not None:
        return _run_one(request, request.resume, request.seed, output)
    name = "" if request.run_dir is not None else _load(request, request.seed).config.run.name
    with _new_directory(request, name) as directory:
        if request.seeds is not None:
            return _run_seeds(request, directory, request.seeds, output)
        return _run_one(request, directory, request.seed, output)


@contextlib.contextmanager
def _new_directory(request: TrainRequest, name: str) -> Iterator[Path]:
    """`--run-dir`, or a directory that no other run takes; a dry run makes none."""
    from zmqrl.launch.run_directory import default_directory, default_path

    if request.run_dir is not None:
        yield request.run_dir
    elif request.dry_run:
        yield default_path(name)
    else:
        with default_directory(name) as directory:
            yield directory


def _note_workers(request: TrainRequest) -> None:
    from zmqrl.types import MODES as by_name

    if request.workers and request.mode is not None and by_name[request.mode].in_process:
        click.echo(f"--workers {request.workers} has no effect: mode {request.mode} has no rollout workers", err=True)


def _check_for(request: TrainRequest) -> None:
    if request.for_env_steps is None:
        return
    if request.resume is None:
        raise click.UsageError("--for requires --resume; for a new run use --set run.total_env_steps=N")
    if any(pair.partition("=")[0].strip() == "run.total_env_steps" for pair in request.overrides):
        raise click.UsageError("--for sets run.total_env_steps: remove --set run.total_env_steps")


def _to_fetch(request: TrainRequest, copy: str) -> TrainRequest:
    """The copy of a run at a URL is continued in a new run directory."""
    from zmqrl.launch.checks import check_new_directory
    from zmqrl.launch.run_directory import default_path

    directory = request.run_dir or default_path(copy.rstrip("/").rpartition("/")[2])
    check_new_directory(directory)
    return replace(request, resume=directory, run_dir=None)


def _resumed_or_new(request: TrainRequest) -> TrainRequest:
    """`--resume auto`: `--run-dir` is resumed where it holds a run, else it is the directory of a new run."""
    if request.seeds is not None:
        raise click.UsageError("--resume auto cannot be combined with --seeds")
    if request.run_dir is None:
        raise click.UsageError("--resume auto requires --run-dir")
    from zmqrl.launch.checks import holds_run

    if holds_run(request.run_dir):
        return replace(request, resume=request.run_dir, run_dir=None, init_from=None)
    if request.preset is None and request.env is None and request.hosts_file is None:
        raise click.UsageError(f"{request.run_dir} holds no run: a preset or --env ID is required for a new one")
    return replace(request, resume=None, from_scratch=False)


def _submit(request: TrainRequest, hosts_file: Path) -> int:
    """The job plans the run again: a fault of the configuration ends the command here, before it waits in a queue."""
    from zmqrl.config.hosts import LOCAL
    from zmqrl.config.webhook import check_repeated
    from zmqrl.launch.checked import checked_plan, resolve_auto_workers
    from zmqrl.launch.checks import check_new_directory
    from zmqrl.launch.submit import job_script, submit

    if request.copy is not None or request.resume not in (None, AUTO) or request.seeds is not None or request.detach:
        raise click.UsageError("--submit cannot be combined with --resume DIR, --seeds or --detach")
    if request.on is not None:
        raise click.UsageError("--submit cannot be combined with --on: submit on that host (docs/slurm.md)")
    if request.from_scratch and request.resume is None:
        raise click.UsageError("--from-scratch with --submit requires --resume auto")
    if request.for_env_steps is not None:
        raise click.UsageError("--submit cannot be combined with --for")
    check_repeated(request.overrides)
    loaded = _load(replace(request, resume=None), request.seed)
    if loaded.is_auto_here:
        what = "--submit requires a number, because the job does not run on this machine"
        raise ConfigError(what, key=("hosts", LOCAL, "workers"), value="'auto'")
    with _new_directory(request, loaded.config.run.name) as directory:
        if request.resume is None:
            check_new_directory(directory)
        arguments = directory, request.started_at, False, loaded.sources, False
        plan = checked_plan(loaded.config, *arguments)
        config = resolve_auto_workers(loaded.config)
        if config is not loaded.config:
            plan = checked_plan(config, *arguments, before=plan)
        script = job_script(plan, hosts_file, list(_arguments(request)))
        if request.dry_run:
            from zmqrl.cli.dry_run import print_plan

            print_plan(plan, loaded.sources)
            click.echo(f"\n{script}", nl=False)
            return 0
        job = submit(Path(plan.run_dir), script)
        click.echo(f"job {job} submitted; when it runs: zmqrl status {plan.run_dir}")
        return 0


def _arguments(request: TrainRequest) -> Iterator[str]:
    """The arguments of the command that the job repeats."""
    named = (("--mode", request.mode), ("--workers", request.workers), ("--seed", request.seed))
    yield from (argument for name, value in named if value is not None for argument in (name, str(value)))
    yield from (argument for pair in request.overrides for argument in ("--set", pair))
    yield from (argument for hosts in request.limit for argument in ("--limit", hosts))
    if request.from_scratch:
        yield "--from-scratch"
    if request.init_from is not None:
        yield from ("--init-from", _source_of_weights(request.init_from))


def _run_seeds(request: TrainRequest, folder: Path, seeds: int, output: TextIO | None) -> int:
    """Each seed in `DIR/seed-<seed>`; the worst exit code. An interrupted or stopped one is the last."""
    for option, is_given in (("--resume", request.resume is not None), ("--detach", request.detach)):
        if is_given:
            raise click.UsageError(f"--seeds cannot be combined with {option}")
    from zmqrl.launch.checks import check_new_directory
    from zmqrl.launch.run_directory import is_run
    from zmqrl.launch.summary import line_of_seeds

    config = _load(request, request.seed).config
    if is_run(folder):
        raise ConfigError(f"run directory {folder} holds a run; choose another directory for the runs of the seeds")
    runs = {seed: folder / f"seed-{seed}" for seed in range(config.run.seed, config.run.seed + seeds)}
    for directory in runs.values():
        check_new_directory(directory)
    codes = []
    for seed, directory in runs.items():
        codes.append(_run_one(request, directory, seed, output))
        if codes[-1] == WORST_FIRST[0] or _summary(directory).get("status") == "stopped":
            break  # `zmqrl stop` means the whole series
    if len(codes) < len(runs):
        click.echo(f"{len(runs) - len(codes)} of {len(runs)} seeds were not run", err=True)
    line = line_of_seeds([_summary(directory) for directory in runs.values()])
    if line is not None and not request.as_data:
        click.echo(line)
    return min(codes, key=WORST_FIRST.index)


def _summary(directory: Path) -> Mapping[str, Any]:
    """`summary.json`; empty where there is none, as after a dry run, or it is damaged."""
    from zmqrl.launch.records import read_summary

    return read_summary(directory) or {}


def _load(request: TrainRequest, seed: int | None) -> Any:
    from zmqrl.launch.configure import load

    init_from = None if request.init_from is None else _source_of_weights(request.init_from)
    overrides = request.overrides
    if request.resume is not None and request.for_env_steps is not None:
        from zmqrl.launch.continuation import for_env_steps

        more = for_env_steps(request.resume, request.for_env_steps)
        overrides = (*(f"{key}={json.dumps(value)}" for key, value in more.items()), *overrides)
    where = (request.preset, request.hosts_file, overrides)
    base = None if request.resume is not None else without_preset(request)
    return load(*where, request.mode, request.workers, seed, request.resume, request.limit, init_from, base)


def without_preset(request: TrainRequest) -> WithoutPreset | None:
    """Env and algorithm of `--env` and `--algo`."""
    if request.env is None:
        return None
    from zmqrl.launch.without_preset import WithoutPreset

    return WithoutPreset.of(request.env, request.algo, "--algo")


def _source_of_weights(named: str) -> str:
    """The absolute path of what `--init-from` names: a run directory, a file, or the id of a run."""
    path = expanded(named, "--init-from")
    if path.exists() or "/" in named or path.suffix:
        return str(path.absolute())
    from zmqrl.cli.find_run import find_run

    try:
        return str(find_run(named)[0].absolute())
    except ConfigError as error:
        raise error.of(("--init-from",)) from error.__cause__


def _run_one(request: TrainRequest, directory: Path, seed: int | None, output: TextIO | None) -> int:
    """`output`: of the summary as JSON; None: it is shown as text."""
    before = _record(directory)
    code = _run_and_show(request, directory, seed)
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
    return json.dumps({**place, **_summary(directory)})  # where it could not be written, its content is on stderr


def _run_and_show(request: TrainRequest, directory: Path, seed: int | None) -> int:
    from zmqrl.launch.detach import run_detached, run_in_place
    from zmqrl.supervision import check_process

    run = partial(_run_in, request, directory, seed)
    if request.detach and not request.dry_run:
        check_process.end()  # the launcher, a fork of this process, starts its own
        return run_detached(directory, run)
    return run_in_place(directory, run) if request.in_place else run(lambda: None)


def _run_in(request: TrainRequest, directory: Path, seed: int | None, on_ready: Callable[[], None]) -> int:
    if request.copy is None:
        return _plan_and_launch(request, directory, seed, on_ready)
    from zmqrl.launch.url_mirror import fetch

    fetch(request.copy, directory, to_resume=True)
    fetched = _record(directory)
    is_refused = True
    try:
        code = _plan_and_launch(request, directory, seed, on_ready)
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


def _plan_and_launch(request: TrainRequest, directory: Path, seed: int | None, on_ready: Callable[[], None]) -> int:
    from zmqrl.launch.checked import checked_plan, resolve_auto_workers
    from zmqrl.launch.checks import check_new_directory, check_resume, check_run_directory
    from zmqrl.launch.continuation import nothing_to_train, reached, record_nothing_trained
    from zmqrl.launch.logins import check_participants

    if request.resume is not None:
        check_run_directory(request.resume)
    loaded = _load(request, seed)
    if request.resume is not None:
        check_resume(directory, loaded.config, request.preset, loaded.sources)
        if request.preset is not None:
            text = f"the run in {directory} keeps its configuration; the preset {request.preset} is not read again"
            click.echo(text, err=True)
        condition = reached(directory, loaded.config) if request.may_continue else None
        if condition is not None:
            click.echo(nothing_to_train(directory, condition))
            if not request.dry_run:
                record_nothing_trained(directory)
            return 0
    else:
        check_new_directory(directory)
    started_at = request.started_at if request.seeds is None else time.time()
    if not request.dry_run:
        from zmqrl.launch.launcher import launch  # while the template of the check processes starts
    arguments = directory, started_at, request.resume is not None, loaded.sources
    plan = checked_plan(loaded.config, *arguments)
    if request.dry_run:
        from zmqrl.cli.dry_run import print_plan

        print_plan(plan, loaded.sources)
        return 0
    check_participants(loaded.config)
    config = resolve_auto_workers(loaded.config)  # a fault of the configuration has been reported by now
    if config is not loaded.config:
        plan = checked_plan(config, *arguments, before=plan)
    plan = replace(plan, may_continue=request.may_continue)
    return launch(plan, request.plain or request.detach or request.in_place, request.from_scratch, on_ready)
