"""Commands on results: `plot`, `export`, `trust`, `bench`, and `version`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from zmqrl.cli.play import CHECKPOINT, run_directory
from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.export.card import Form
    from zmqrl.metrics.groups import RunGroup
    from zmqrl.metrics.plot import Column

AXES = ("env_steps", "wall_s", "episodes")
BENCHES = ("bus", "sync", "e2e")


@click.command("plot")
@click.argument("runs", nargs=-1, required=True, metavar="RUN[=LABEL]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("returns.png"),
    show_default=True,
    help="Image file: .png, .svg or .pdf.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Draw this metric of metrics.jsonl; repeat it for several. Default: training and evaluation return.",
)
@click.option(
    "--x",
    "axes",
    multiple=True,
    type=click.Choice(AXES),
    help="Draw against this; repeat it for several. Default: env_steps and wall_s.",
)
@click.option("--final", is_flag=True, help="Also draw the last values of the runs, with their interval.")
@click.option(
    "--smooth",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Window of the running mean, in rows of metrics.jsonl.",
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write the drawn points to this file.")
def plot_command(
    runs: tuple[str, ...],
    out: Path,
    metrics: tuple[str, ...],
    axes: tuple[Column, ...],
    final: bool,
    smooth: int,
    csv_file: Path | None,
) -> None:
    """Draw returns against env steps and wall-clock time.

    RUN is a run directory, a run id, the folder of a run with --seeds, or a common prefix of the paths of run
    directories. Each argument is drawn as one curve per metric. An argument that names several runs is drawn as their
    interquartile mean, with a 95 % bootstrap interval.
    """
    from zmqrl.data_stores.files import check_file
    from zmqrl.metrics.curves import RETURN, X_AXES
    from zmqrl.metrics.plot import FINAL, draw, make_plot, write_csv

    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError("the suffix must be .png, .svg or .pdf", key=("--out",), value=str(out))
    for key, path in (("--out", out), ("--csv", csv_file)):
        if path is not None:
            check_file(key, path)
    columns = (*dict.fromkeys(axes or X_AXES), *([FINAL] if final else []))
    plot = make_plot([_group(run) for run in runs], tuple(dict.fromkeys(metrics)) or (RETURN,), smooth, columns)
    for text in plot.left_out:
        click.echo(f"not drawn: {text}", err=True)
    for key, path, write in (("--out", out, draw), ("--csv", csv_file, write_csv)):
        if path is None:
            continue
        try:
            write(plot, path)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", key=(key,), value=str(path)) from error
        click.echo(str(path))


def _group(argument: str) -> RunGroup:
    """Directories come first; a run id has a label behind `=` as they do."""
    from zmqrl.cli.run.find_run import directory_of
    from zmqrl.metrics.groups import group_of

    try:
        return group_of(argument)
    except ConfigError:
        run, equals, label = argument.partition("=")
        if not run or not (directory := directory_of(run)).is_dir():
            raise
        return group_of(f"{directory}{equals}{label}")


@click.command("export")
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--to", "form", type=click.Choice(["onnx", "numpy", "csv"]), required=True, help="Format.")
@CHECKPOINT
def export_command(run: str, folder: Path, form: Form | Literal["csv"], checkpoint: str) -> None:
    """Write the policy or the metrics of RUN to DIR.

    RUN is a run directory, a run id, or the URL of a copy of a run. --to onnx writes the greedy policy as policy.onnx,
    --to numpy as policy.py, which requires only numpy and safetensors, both with a model card. --to csv writes
    metrics.csv, and episodes.csv if the run has it; RUN may also be a folder of runs: their rows then have the columns
    run and seed.
    """
    from zmqrl.export.write import export
    from zmqrl.planning.exported import export_csv, exported_of

    with run_directory(run) as run_dir:
        if form == "csv":
            written = export_csv(run_dir, folder)
        else:
            words = str(folder), "--to", form, "--checkpoint", checkpoint
            written = export(folder, form, *exported_of(run_dir, checkpoint, *words))
        for path in written:
            click.echo(str(path))


@click.command("trust")
@click.argument("named", nargs=-1, metavar="PREFIX...")
@click.option("--list", "is_list", is_flag=True, help="Print the prefixes that are trusted.")
@click.option("--remove", is_flag=True, help="Trust PREFIX no longer.")
def trust_command(named: tuple[str, ...], is_list: bool, remove: bool) -> None:
    """Trust the runs in a folder or below a URL.

    PREFIX is a run directory, a folder or a URL. eval, watch, export, --resume and --init-from then import what the
    configurations of these runs name, although another user made them.
    """
    from zmqrl.run_files.trusted_places import canonical, distrust, prefixes, trust

    if is_list == bool(named):
        raise click.UsageError("PREFIX or --list is required")
    known = {prefix: canonical(prefix) for prefix in named}
    for prefix, place in known.items():
        if place is None or not ("://" in place or remove or Path(place).is_dir()):
            raise ConfigError(f"{prefix!r}: expected a folder, or an absolute URL without '..', '%', '?' and '#'")
    places = [place for place in known.values() if place is not None]
    if places:
        (distrust if remove else trust)(*places)
    for line in prefixes() if is_list else ():
        click.echo(line)


@click.command("bench")
@click.argument("name", type=click.Choice((*BENCHES, "all")), metavar="NAME")
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="Number of repetitions. Default: 3.")
@click.option("--quick", is_flag=True, help="One repetition and, for e2e, one seed.")
@click.option("--sb3-python", metavar="PATH", help="For e2e: Python interpreter with Stable-Baselines3, the baseline.")
def bench_command(name: str, repeats: int | None, quick: bool, sb3_python: str | None) -> None:
    """Run the benchmark NAME and print JSON.

    bus: transitions/s that reach the learner, compared with a memcpy. sync: time from one version of the weights to
    the next in mode sync. e2e: env steps/s of training, compared with Stable-Baselines3 if it is installed. all: these
    three; the JSON is a list, and stderr shows the medians as a table.
    """
    if quick and repeats is not None:
        raise click.UsageError("--quick and --repeats exclude each other")
    if sb3_python is not None and name not in ("e2e", "all"):
        raise click.UsageError("--sb3-python can be used only with `zmqrl bench e2e` and `zmqrl bench all`")
    counts = {"repeats": 1} if quick else {} if repeats is None else {"repeats": repeats}
    options: dict[str, dict[str, Any]] = {bench: dict(counts) for bench in BENCHES}
    options["e2e"] |= ({"seeds": 1} if quick else {}) | ({} if sb3_python is None else {"sb3_python": sb3_python})
    if name != "all":
        importlib.import_module(f"zmqrl.bench.{name}").run(**options[name]).print()
        return
    results = []
    for bench in BENCHES:
        results.append(importlib.import_module(f"zmqrl.bench.{bench}").run(**options[bench]))
        click.echo(results[-1].table(), err=True)
    click.echo(json.dumps([result.data() for result in results], indent=2))


@click.command("version")
@click.option(
    "--json",
    "as_data",
    is_flag=True,
    help="Print as JSON: versions of zmqrl, Python and packages, as each run records them.",
)
def version_command(as_data: bool) -> None:
    """Print the version of zmqrl."""
    from importlib.metadata import version

    if as_data:
        from zmqrl.run_files.environment import versions

        click.echo(json.dumps(versions()))
        return
    click.echo(f"zmqrl, version {version('zmqrl')}")
