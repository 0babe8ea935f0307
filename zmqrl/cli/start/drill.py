"""`zmqrl drill`: faults against a real run, and a verdict."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zmqrl.cli.start.start_options import STEPPED
from zmqrl.config.codec import replace
from zmqrl.config.paths import expanded
from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.drill.runs import DrillRequest
    from zmqrl.types import ModeName

PRESET = "cartpole-ppo"
PLANTS = ("lose", "double", "tear")
SHORT_S, LONG_S = 60.0, 3600.0
FAULT_EVERY_S = 5.0
LONG_AT_LEAST = tuple(f"{role}:kill=6" for role in ("worker", "broker", "learner", "agent"))
"""Minimums of each scenario of `--long`."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks alone
    """Seconds, or a number with s, m or h behind it."""

    name = "duration"

    def convert(self, value: str | float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Seconds, more than 0."""
        if isinstance(value, float):
            return value
        unit = UNITS.get(value[-1:])
        try:
            seconds = float(value[:-1]) * unit if unit else float(value)
        except ValueError:
            seconds = 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a duration of more than 0: write 60s, 10m or 90", parameter, context)
        return seconds


@click.command("drill")
@click.argument("preset", default=PRESET)
@click.option("--scenario", metavar="NAME", help="Run this scenario, a preset with stress settings; --list lists all.")
@click.option("--long", "is_long", is_flag=True, help="Run all scenarios, one hour in total.")
@click.option("--list", "is_list", is_flag=True, help="List the scenarios and exit.")
@click.option("--mode", type=click.Choice(STEPPED), help="Mode of both runs. Default: that of the preset.")
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Number of rollout workers of each run. Default: 2."
)
@click.option(
    "--for",
    "for_s",
    type=Duration(),
    metavar="DURATION",
    help="Inject faults for this time, e.g. 90s or 10m. Default: 60s.",
)
@click.option("--faults", type=click.IntRange(1), metavar="N", help="Number of faults. Default: one per 5 s.")
@click.option(
    "--only",
    multiple=True,
    metavar="ROLE[:FAULT]",
    help="Inject only this fault, e.g. broker:kill, or all faults of ROLE; may be repeated.",
)
@click.option(
    "--at-least", multiple=True, metavar="ROLE:FAULT=N", help="Inject this fault at least N times; may be repeated."
)
@click.option(
    "--plant",
    type=click.Choice(PLANTS),
    help="Test the drill: give wrong segments to the learner of the witness run. lose: some env steps are missing. "
    "double: a segment is repeated. tear: the last half of a segment is from another segment. The drill must then "
    "fail.",
)
@click.option(
    "--small-disk",
    is_flag=True,
    help="Add the fault `run:disk-full`: it fills the tmpfs of 64 MiB that the witness run is on. Requires root.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, metavar="N", help="Seed of the faults; it is independent of run.seed."
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Output directory. Default: runs/drill-<time>-<pid>.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the report to this file. Default: RUN_DIR/drill.json.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the first run, which trains PRESET; may be repeated.",
)
@click.pass_context
def drill_command(context: click.Context, /, is_list: bool, json_file: Path | None, **options: Any) -> int:
    """Start two runs, inject faults, check for lost env steps.

    A fault kills a process, freezes it (SIGSTOP) for some seconds or forever, damages a checkpoint, or makes the disk
    or the store unavailable. The first run trains PRESET; the drill checks that its ledger balances. The second, the
    witness run, uses an env and an algorithm that record every env step; the drill checks that each env step of a
    complete segment was stored exactly once.
    """
    from zmqrl.drill.drill import drill, write
    from zmqrl.drill.scenarios import listing
    from zmqrl.drill.series import drill_all

    if is_list:
        click.echo(listing())
        return 0
    _refuse_both(context)
    request = _request_of(json_file, **options)
    report = drill_all(request, click.echo) if options["is_long"] else drill(request, click.echo)
    path = json_file or request.folder / "drill.json"
    write(report.data(), path)
    click.echo(f"{report}\nreport: {path}")
    return report.exit_code


def _request_of(
    json_file: Path | None,
    preset: str,
    scenario: str | None,
    is_long: bool,
    mode: ModeName | None,
    workers: int | None,
    for_s: float | None,
    faults: int | None,
    only: tuple[str, ...],
    at_least: tuple[str, ...],
    plant: str | None,
    small_disk: bool,
    seed: int,
    run_dir: Path | None,
    overrides: tuple[str, ...],
) -> DrillRequest:
    from zmqrl.drill.faults import kinds_named, minimums_named
    from zmqrl.drill.runs import DrillRequest
    from zmqrl.drill.scenarios import Scenario, scenario_named

    chosen = Scenario(preset, mode=mode) if scenario is None else scenario_named(scenario)
    chosen = replace(chosen, workers=workers or chosen.workers, overrides=(*chosen.overrides, *overrides))
    for_s = for_s or (LONG_S if is_long else SHORT_S)
    folder = _folder(run_dir, json_file)
    faults = faults or max(1, round(for_s / FAULT_EVERY_S))
    kinds, minimums = kinds_named(only), minimums_named(at_least or (LONG_AT_LEAST if is_long else ()))
    return DrillRequest(chosen, seed, for_s, folder, faults, kinds, minimums, plant, small_disk)


def _refuse_both(context: click.Context) -> None:
    """A scenario has its own preset and mode, and --long has its own scenarios and settings."""
    is_long, scenario = context.params["is_long"], context.params["scenario"]
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    own = {"preset": "PRESET", "mode": "--mode"}
    if is_long:
        own |= {"scenario": "--scenario", "workers": "--workers", "overrides": "--set"}
    both = [own[name] for name in given if name in own] if is_long or scenario is not None else []
    if both:
        option = "--long" if is_long else "--scenario"
        raise ConfigError(f"{option} and {', '.join(both)} cannot be combined; `zmqrl drill --list` shows the settings")


def _folder(run_dir: Path | None, json_file: Path | None) -> Path:
    from zmqrl.data_stores.files import check_file, check_writable

    own = Path("runs", f"drill-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")  # of two in the same second
    folder = expanded(run_dir or own, "--run-dir").absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError("is a file, not a directory", key=("--run-dir",), value=str(folder))
    if folder.is_dir() and any(folder.iterdir()):
        fix = "choose another directory"
        raise ConfigError("exists and is not empty", key=("--run-dir",), value=str(folder), is_subject=True, fix=fix)
    check_writable("--run-dir", folder)
    if json_file is not None:
        check_file("--json", json_file)
    return folder
