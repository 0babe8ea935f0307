"""`zmqrl presets`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zmqrl.config.sections import Config

NUMBERS = (4, 5)
"""Columns that are aligned to the right."""


@click.command("presets")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def presets_command(as_data: bool) -> None:
    """List the presets.

    The columns are env, algorithm, mode, limit of env steps, and the return that ends training early.
    """
    from zmqrl.config.presets import presets
    from zmqrl.planning.configure import load_config

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
