"""`zmqrl drill`: faults against a real run, and a verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zmqrl.cli.train import MODES
from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.types import Mode

FAULT_EVERY_S = 5.0
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
            self.fail(f"{value!r} is no duration: write 60s, 10m or 90", parameter, context)
        return seconds


@click.command("drill")
@click.argument("preset", default="cartpole-ppo")
@click.option("--mode", type=click.Choice(MODES), help="single, sync or async; default: the preset's.")
@click.option("--workers", type=click.IntRange(1), default=2, metavar="N", help="Rollout workers; default 2.")
@click.option("--for", "for_s", type=Duration(), default="60s", metavar="60s", help="How long faults come: 60s, 10m.")
@click.option("--faults", type=click.IntRange(1), metavar="N", help="How many; default one in 5 s.")
@click.option("--only", multiple=True, metavar="ROLE[:FAULT]", help="Only these, e.g. broker:kill; may be repeated.")
@click.option(
    "--seed", type=click.IntRange(0), default=1, metavar="N", help="Seed of the faults; the runs have theirs."
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where it writes; default runs/drill-<time>.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="The report; default RUN_DIR/drill.json.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override any key of the run.")
def drill_command(
    preset: str,
    mode: Mode | None,
    workers: int,
    for_s: float,
    faults: int | None,
    only: tuple[str, ...],
    seed: int,
    run_dir: Path | None,
    json_file: Path | None,
    overrides: tuple[str, ...],
) -> int:
    """Kill, stop, hang and damage PRESET's processes at random, and check from outside that nothing was lost."""
    from zmqrl.drill.drill import drill, write
    from zmqrl.drill.faults import kinds_named
    from zmqrl.drill.runs import Asked

    folder = (run_dir or Path("runs") / f"drill-{time.strftime('%Y%m%d-%H%M%S')}").expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--run-dir {folder} exists and is not empty")
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ConfigError(f"--json {json_file}: there is no directory {json_file.absolute().parent}")
    faults = faults or max(1, round(for_s / FAULT_EVERY_S))
    report = drill(Asked(preset, mode, workers, seed, for_s, overrides, folder, faults, kinds_named(only)), click.echo)
    write(report, json_file or folder / "drill.json")
    click.echo(str(report))
    click.echo(f"report: {json_file or folder / 'drill.json'}")
    return report.exit_code
