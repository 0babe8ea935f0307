"""Starting runs: `launch`, `train`, `presets`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.types import Mode

MODES = ("single", "sync", "async")
"""As in `zmqrl.types`, which imports numpy: `--help` need not wait for that."""
WORST_FIRST = (130, 2, 4, 1, 3, 0)
NUMBERS = (4, 5)
"""Columns of `zmqrl presets` that are aligned to the right."""

OPTIONS = (
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override any key, e.g. run.seed=3."),
    click.option("--mode", type=click.Choice(MODES), help="single, sync or async; default: the preset's."),
    click.option("--workers", type=int, metavar="N", help="Rollout workers on this machine."),
    click.option("--seed", type=int, metavar="N", help="Seed of all random streams."),
    click.option("--seeds", type=click.IntRange(1), metavar="N", help="Run N seeds, one after the other."),
    click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory; default runs/<name>-<time>."),
    click.option("--resume", type=click.Path(path_type=Path), help="Continue the run in this directory."),
    click.option(
        "--from-scratch", is_flag=True, help="With --resume: start at env step 0 if no checkpoint can be loaded."
    ),
    click.option("--init-from", metavar="RUN|FILE", help="Start a new run with the weights of another."),
    click.option("--limit", multiple=True, metavar="HOST,...", help="Use only these hosts: names, node0*, or groups."),
    click.option("--detach", is_flag=True, help="Return when all processes are ready; the run continues."),
    click.option("--dry-run", is_flag=True, help="Print the plan and start nothing."),
    click.option("--plain", is_flag=True, help="Plain lines instead of the live view."),
)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class _Asked:
    """The options of `launch` and `train`."""

    preset: str | None
    hosts_file: Path | None
    started_at: float
    overrides: tuple[str, ...]
    mode: Mode | None
    workers: int | None
    seed: int | None
    seeds: int | None
    run_dir: Path | None
    resume: Path | None
    from_scratch: bool
    init_from: str | None
    limit: tuple[str, ...]
    detach: bool
    dry_run: bool
    plain: bool


@click.command("launch")
@click.argument("hosts", type=click.Path(path_type=Path))
@_with_options
@click.pass_obj
def launch_command(started_at: float, /, hosts: Path, **options: Any) -> int:
    """Train on the hosts of HOSTS (hosts.yaml)."""
    return _run(_Asked(None, hosts, started_at, **options))


@click.command("train")
@click.argument("preset", required=False)
@_with_options
@click.pass_obj
def train_command(started_at: float, /, preset: str | None, **options: Any) -> int:
    """Train PRESET, a name of `zmqrl presets` or a YAML file, on this machine."""
    if preset is None and options["resume"] is None:
        raise click.UsageError("a preset (`zmqrl presets` lists them) or --resume DIR is required")
    return _run(_Asked(preset, None, started_at, **options))


@click.command("presets")
def presets_command() -> None:
    """List the presets: env, algorithm, mode, limit of env steps, and the return that ends training early."""
    from zmqrl.config.load import presets
    from zmqrl.launch.configure import load_config

    rows = [("PRESET", "ENV", "ALGORITHM", "MODE", "ENV STEPS", "STOP AT RETURN")]
    for name in presets():
        config = load_config(name)
        run, stop_at = config.run, config.run.stop_at_return
        limit, goal = f"{run.total_env_steps:,}", "-" if stop_at is None else f"{stop_at:g}"
        rows.append((name, config.env.id, config.algorithm["kind"], run.mode, limit, goal))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        click.echo("  ".join(cell.rjust(width) if at in NUMBERS else cell.ljust(width) for at, (cell, width) in cells))


def _run(asked: _Asked) -> int:
    if asked.resume is not None and asked.run_dir is not None:
        raise click.UsageError("--run-dir cannot be combined with --resume: the run directory is that of --resume")
    if asked.resume is not None and asked.init_from is not None:
        raise click.UsageError("--init-from starts a new run and cannot be combined with --resume")
    if asked.from_scratch and asked.resume is None:
        raise click.UsageError("--from-scratch requires --resume: a new run always starts at env step 0")
    if asked.seeds is not None:
        return _run_seeds(asked, asked.seeds)
    return _run_one(asked, asked.run_dir, asked.seed)


def _run_seeds(asked: _Asked, seeds: int) -> int:
    """Each seed in `DIR/seed-<seed>`; the worst exit code. An interrupted or stopped one is the last."""
    if asked.resume is not None or asked.detach:
        raise click.UsageError("--seeds cannot be combined with --resume or --detach")
    from zmqrl.launch.checks import check_new_directory

    config = _load(asked, asked.seed).config
    folder = asked.run_dir or _default_directory(config.run.name)
    runs = {seed: folder / f"seed-{seed}" for seed in range(config.run.seed, config.run.seed + seeds)}
    for directory in runs.values():
        check_new_directory(directory)
    codes = []
    for seed, directory in runs.items():
        codes.append(_run_one(asked, directory, seed))
        if codes[-1] == WORST_FIRST[0] or _was_stopped(directory):
            break
    if len(codes) < len(runs):
        click.echo(f"{len(runs) - len(codes)} of {len(runs)} seeds were not run", err=True)
    return min(codes, key=WORST_FIRST.index)


def _was_stopped(directory: Path) -> bool:
    """Whether `zmqrl stop` ended the run; it means the whole series."""
    try:
        return bool(json.loads((directory / "summary.json").read_text())["status"] == "stopped")
    except (OSError, ValueError, KeyError):
        return False  # a dry run writes none


def _load(asked: _Asked, seed: int | None) -> Any:
    from zmqrl.launch.configure import load

    init_from = None if asked.init_from is None else _source_of_weights(asked.init_from)
    where = (asked.preset, asked.hosts_file, asked.overrides)
    return load(*where, asked.mode, asked.workers, seed, asked.resume, asked.limit, init_from)


def _source_of_weights(named: str) -> str:
    """The absolute path of what `--init-from` names: a run directory, a file, or the id of a run."""
    path = Path(named).expanduser()
    if path.exists() or "/" in named or path.suffix:
        return str(path.absolute())
    from zmqrl.cli.find_run import find_run

    return str(find_run(named)[0].absolute())


def _run_one(asked: _Asked, run_dir: Path | None, seed: int | None) -> int:
    from zmqrl.launch.checks import check_new_directory, check_resume, is_finished
    from zmqrl.launch.plan_run import ask_hosts, plan_run

    if asked.resume is not None and not asked.resume.is_dir():
        raise ConfigError(f"--resume {asked.resume}: run directory not found")
    loaded = _load(asked, seed)
    directory = asked.resume or run_dir or _default_directory(loaded.config.run.name)
    if asked.resume is not None:
        check_resume(directory, loaded.config, asked.preset)
        if is_finished(directory, loaded.config):
            click.echo(f"{directory} is finished; to continue, raise run.total_env_steps")
            return 0
    else:
        check_new_directory(directory)
    started_at = asked.started_at if asked.seeds is None else time.time()
    resume = asked.resume is not None
    plan = plan_run(loaded.config, directory, started_at, resume, loaded.sources)
    if asked.dry_run:
        from zmqrl.cli.dry_run import print_plan

        print_plan(plan, loaded.sources)
        return 0
    config = ask_hosts(loaded.config)  # a fault of the configuration has been told by now
    if config is not loaded.config:
        plan = plan_run(config, directory, started_at, resume, loaded.sources)
    from zmqrl.launch.launcher import launch

    return launch(plan, asked.detach, asked.plain, asked.from_scratch)


def _default_directory(name: str) -> Path:
    """`runs/<name>-<time>`, and a number behind it when two start in the same second."""
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return path if not path.exists() else path.with_name(f"{path.name}-{os.getpid()}")
