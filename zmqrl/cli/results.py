"""Commands on results: `plot`, `bench`, and `version`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from zmqrl.errors import ConfigError

BENCHES = ("bus", "sync", "e2e")


@click.command("plot")
@click.argument("run_dirs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("returns.png"), show_default=True)
def plot_command(run_dirs: tuple[Path, ...], out: Path) -> None:
    """Draw returns against env steps and wall clock; the seeds below a directory become a band."""
    from zmqrl.metrics.plot import plot_returns

    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: the suffix must be .png, .svg or .pdf")
    try:
        plot_returns(run_dirs, out)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror}") from error
    click.echo(str(out))


@click.command("bench")
@click.argument("name", type=click.Choice(BENCHES), metavar="NAME")
@click.option("--repeats", type=click.IntRange(1), help="Repetitions; zmqrl and the baseline alternate.")
@click.option("--sb3-python", metavar="PATH", help="e2e: an interpreter that has Stable-Baselines3.")
def bench_command(name: str, repeats: int | None, sb3_python: str | None) -> None:
    """Measure NAME (bus, sync or e2e) and print JSON."""
    options: dict[str, Any] = {} if repeats is None else {"repeats": repeats}
    if sb3_python is not None:
        if name != "e2e":
            raise click.UsageError("--sb3-python requires the bench e2e")
        options["sb3_python"] = sb3_python
    importlib.import_module(f"zmqrl.bench.{name}").run(**options).print()


@click.command("version")
def version_command() -> None:
    """Show the version, as --version does."""
    from importlib.metadata import version

    click.echo(f"zmqrl, version {version('zmqrl')}")
