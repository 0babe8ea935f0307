"""Commands on results: `eval`, `plot`, `bench`, and `version`."""

from __future__ import annotations

import importlib
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import click

from zmqrl.errors import ConfigError

BENCHES = ("bus", "sync", "e2e")


@click.command("eval")
@click.argument("run")
@click.option("--episodes", type=click.IntRange(1), default=20, show_default=True)
@click.option("--seed", type=click.IntRange(0), help="Default: the run's.")
@click.option("--json", "as_data", is_flag=True, help="Print the score as JSON.")
def eval_command(run: str, episodes: int, seed: int | None, as_data: bool) -> None:
    """Play greedy episodes with the best checkpoint of RUN, a run directory or the URL of its copy."""
    if "://" not in run:
        _evaluate(Path(run), run, episodes, seed, as_data)
        return
    from zmqrl.launch.url_mirror import fetch

    with tempfile.TemporaryDirectory(prefix="zmqrl-eval-") as folder:
        fetch(run, Path(folder), to_resume=False)
        _evaluate(Path(folder), run, episodes, seed, as_data)


def _evaluate(run_dir: Path, named: str, episodes: int, seed: int | None, as_data: bool) -> None:
    from zmqrl.envs.make import probe
    from zmqrl.evaluator.evaluation import evaluate
    from zmqrl.launch.policies import stored_policy
    from zmqrl.launch.run_directory import read_config

    config = read_config(run_dir, lambda run: f"zmqrl eval {shlex.quote(run)}")
    spec = probe(config.env)
    version, policy = stored_policy(run_dir, config, spec)
    seed = config.run.seed if seed is None else seed
    score = evaluate(policy, config.env, spec, episodes, seed)
    if as_data:
        data = {
            "run_dir": named if "://" in named else str(run_dir.absolute()),
            "version": str(version),
            "episodes": episodes,
            "seed": seed,
        }
        click.echo(json.dumps({**data, "return_mean": score.mean, "return_std": score.std, "returns": score.returns}))
        return
    click.echo(f"version {version}: return {score.mean:.2f} +- {score.std:.2f} over {episodes} greedy episodes")


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
@click.option("--json", "as_data", is_flag=True, help="Print the versions that a run records as JSON.")
def version_command(as_data: bool) -> None:
    """Show the version, as --version does."""
    from importlib.metadata import version

    if as_data:
        from zmqrl.launch.environment_record import versions

        click.echo(json.dumps(versions()))
        return
    click.echo(f"zmqrl, version {version('zmqrl')}")
