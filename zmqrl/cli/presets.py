"""`zmqrl presets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zmqrl.config.sections import Config

NUMBERS = ("ENV STEPS", "STOP AT RETURN", "SCORE", "MINUTES")
"""Columns that are aligned to the right."""
UNMEASURED: Mapping[str, float | None] = {"score": None, "scored_env_steps": None, "minutes": None}


@click.command("presets")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def presets_command(as_data: bool) -> None:
    """List the presets.

    The columns are env, algorithm, mode, limit of env steps, the return that ends training early, and what was
    measured on two cores: the score (mean return of 100 greedy episodes, median of the seeds) and the minutes.
    """
    from zmqrl.config.presets import presets, scores
    from zmqrl.planning.configure import load_config
    from zmqrl.views.base import aligned

    measured = scores()
    found = [_preset(name, load_config(name), measured.get(name, UNMEASURED)) for name in presets()]
    if as_data:
        click.echo(json.dumps(found))
        return
    rows = [("PRESET", "ENV", "ALGORITHM", "MODE", *NUMBERS)]
    for preset in found:
        name, env, algorithm, mode, limit, *others = preset.values()
        goal, score, _, minutes = ("-" if number is None else f"{number:g}" for number in others)
        rows.append((name, env, algorithm, mode, f"{limit:,}", goal, score, minutes))
    click.echo("\n".join(aligned(rows, NUMBERS)))


def _preset(name: str, config: Config, measured: Mapping[str, float | None]) -> dict[str, Any]:
    run = config.run
    limits = {"total_env_steps": run.total_env_steps, "stop_at_return": run.stop_at_return}
    of_env = {"env": config.env.id, "algorithm": config.algorithm["kind"], "mode": run.mode}
    return {"name": name, **of_env, **limits, **measured}
