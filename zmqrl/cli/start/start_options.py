"""The options of `launch` and `train`, and which of them cannot be combined."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.cli import completion
from zmqrl.cli.hosts.hosts_options import LIMIT_WORKERS
from zmqrl.cli.hosts.hosts_options import limit as limit_option
from zmqrl.config.codec import replace
from zmqrl.config.paths import expanded
from zmqrl.planning.start_request import StartRequest

if TYPE_CHECKING:
    from typing_extensions import Self

STEPPED = ("single", "sync", "pipelined", "async")
"""Modes that step envs."""
MODES = (*STEPPED, "offline")
"""Modes as in `zmqrl.types`, which imports numpy: `--help` need not wait for that."""
AUTO = Path("auto")
TOTAL = "run.total_env_steps"


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
        help="Number of rollout workers (in sync, pipelined and async). If the run also has workers on "
        "other hosts, set hosts.NAME.workers instead.",
    ),
    click.option("--seed", type=int, metavar="N", help="Seed of all random streams."),
    click.option(
        "--seeds",
        type=click.IntRange(1),
        metavar="N",
        help="Train a run for each of N seeds: run.seed, run.seed + 1, ...",
    ),
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


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with `OPTIONS`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class CommandOfARun(click.Command):
    """Answers arguments that click calls unexpected."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        if any(argument.startswith("-") for argument in args) and not ctx.resilient_parsing:
            from zmqrl.cli.habits import blank_in_set, check_options

            if (message := blank_in_set(args)) is not None:
                raise click.UsageError(message)
            check_options(args, ctx)
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            from zmqrl.cli.habits import unexpected_arguments

            first = ctx.params.get("preset") or ctx.params.get("hosts")
            raise click.UsageError(unexpected_arguments(str(self.name), [str(first), *extra]))
        return extra


@dataclass(frozen=True, kw_only=True)
class TrainRequest(StartRequest):
    """The options of `launch` and `train`. `resume` may be the id of a run or `AUTO`, `init_from` the id of a run."""

    overrides: tuple[str, ...]
    env: str | None = None
    """Env that is trained in place of a preset."""
    algo: str | None = None
    seeds: int | None
    copy: str | None
    """URL of the copy that is fetched and continued."""
    on: str | None
    detach: bool
    dry_run: bool
    plain: bool
    as_data: bool
    """Print the summary of each run as JSON."""
    in_place: bool
    """Started by `--on` of another machine, see `run_in_place`."""
    submit: bool = False
    parallel: bool = False
    """Run the seeds at the same time."""

    @property
    def is_auto(self) -> bool:
        """`--resume auto`: `run_dir` is resumed where it holds a run, else it is the directory of a new run."""
        return self.resume == AUTO

    @property
    def is_resume(self) -> bool:
        """Whether the user names the run to continue."""
        return self.copy is not None or (self.resume is not None and not self.is_auto)

    def new(self) -> Self:
        """A run that continues no other."""
        if self.env is None:
            return replace(self, resume=None)
        from zmqrl.planning.without_preset import WithoutPreset

        return replace(self, resume=None, without_preset=WithoutPreset.of(self.env, self.algo, "--algo"))

    def resumed(self, directory: Path) -> Self:
        """Continue the run in `directory`."""
        return replace(self, resume=directory, run_dir=None, init_from=None)


def request_of(started_at: float, options: dict[str, Any], **named: Any) -> TrainRequest:
    """UsageError: two of `options` cannot be combined."""
    resume, copy = options.pop("resume"), None
    if resume is not None and "://" in resume:
        resume, copy = None, resume
    if options["run_dir"] is not None and options["on"] is None:  # a shell expands no `~` after `--run-dir=`
        options["run_dir"] = expanded(options["run_dir"], "--run-dir")
    resume = None if resume is None else Path(resume)
    options["may_continue"] = not options["from_scratch"] or resume == AUTO
    request = TrainRequest(started_at=started_at, resume=resume, copy=copy, **options, **named)
    for is_given, message in (*_refused(request), _refused_parallel(request)):
        if is_given:
            raise click.UsageError(message)
    return request


def _refused(request: TrainRequest) -> Iterator[tuple[bool, str]]:
    """Combinations of options, each with whether it is given."""
    is_auto, is_resume, on = request.is_auto, request.is_resume, request.on is not None
    is_new = not is_auto and not is_resume
    has_for, has_seeds = request.for_env_steps is not None, request.seeds is not None
    if request.submit:
        ends = "the summary exists only after the job has ended"
        yield request.as_data, f"--submit cannot be combined with --json: {ends}"
        other = is_resume or has_seeds or request.detach
        yield other, "--submit cannot be combined with --resume DIR, --seeds or --detach"
        yield on, "--submit cannot be combined with --on: submit on that host (docs/slurm.md)"
        yield request.from_scratch and is_new, "--from-scratch with --submit requires --resume auto"
        yield has_for, "--submit cannot be combined with --for"
        return
    if on:
        yield request.copy is not None or has_seeds, "--on cannot be combined with --resume URL or --seeds"
        yield (
            request.as_data,
            "--on cannot be combined with --json; to print its state as JSON: zmqrl status --json --on HOST",
        )
        yield has_for and not is_resume, "--for requires --resume RUN"
        yield request.in_place, "--on cannot be used by a launcher that was itself started with --on"
    if is_auto:
        yield has_for, "--for cannot be combined with --resume auto: each start would train N more env steps"
        yield has_seeds, "--resume auto cannot be combined with --seeds"
        yield request.run_dir is None, "--resume auto requires --run-dir"
    if is_resume:
        has_directory = request.run_dir is not None and request.copy is None
        yield has_directory, "--run-dir cannot be combined with --resume: the run directory is that of --resume"
        yield request.init_from is not None, "--init-from starts a new run and cannot be combined with --resume"
        yield has_seeds, "--seeds cannot be combined with --resume"
    yield has_seeds and request.detach, "--seeds cannot be combined with --detach"
    yield request.from_scratch and is_new, "--from-scratch requires --resume: a new run always starts at env step 0"
    yield (
        request.as_data and request.dry_run,
        "--dry-run cannot be combined with --json: it prints the configuration as YAML",
    )
    yield has_for and is_new, f"--for requires --resume; for a new run use --set {TOTAL}=N"
    sets_total = any(pair.partition("=")[0].strip() == TOTAL for pair in request.overrides)
    yield has_for and sets_total, f"--for sets {TOTAL}: remove --set {TOTAL}"


def _refused_parallel(request: TrainRequest) -> tuple[bool, str]:
    others = request.env, request.dry_run, request.as_data, request.on, request.limit
    what = "--parallel requires --seeds N, and cannot be combined with --env, --dry-run, --json, --on or --limit"
    return request.parallel and (any(others) or request.seeds is None), what


def check_env(preset: str | None, env: str | None, algo: str | None, resume: str | None) -> None:
    """UsageError: the options of `train` do not name one run."""
    if not preset and env is None and resume is None:
        if algo is not None:
            raise click.UsageError(f"--algo {algo} requires --env ID; with a preset, use --set algorithm.kind={algo}")
        raise click.UsageError("a preset (`zmqrl presets` lists them), --env ID or --resume RUN is required")
    for option, value, key in (("--env", env, "env.id"), ("--algo", algo, "algorithm.kind")):
        if value is not None and (preset is not None or resume not in (None, str(AUTO))):
            other = f"the preset {preset}" if preset is not None else "--resume"
            fix = f"; to change the preset: --set {key}={value}" if preset is not None else ""
            raise click.UsageError(f"{option} cannot be combined with {other}{fix}")
