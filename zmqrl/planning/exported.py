"""What `zmqrl export` writes of a run: a checkpoint, and what is known of it; or the metrics."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zmqrl.acting.spec import ActingSpec
from zmqrl.config.paths import regular
from zmqrl.errors import ConfigError
from zmqrl.export.card import CardSource
from zmqrl.metrics.attempts import current_metrics
from zmqrl.metrics.curves import EVALUATED
from zmqrl.metrics.groups import EPISODES_CSV, METRICS, by_number, stored_value
from zmqrl.planning.policies import named_checkpoint, network_of, stored_checkpoints, trained_env
from zmqrl.run_files.run_info import read_info
from zmqrl.run_files.run_list import run_dirs
from zmqrl.run_files.trust import opened
from zmqrl.types import Version, Weights
from zmqrl.views.problem import report_cells


def exported_of(run_dir: Path, checkpoint: str, *words: str) -> tuple[ActingSpec, Weights, CardSource]:
    """The acting spec and the weights of a checkpoint, and what is known of it.

    `words`: what the user types behind the run, for messages.

    Raises:
        ConfigError: `run_dir` is not a run directory, or has no checkpoint of this name.
        StoreError: It has no version.
    """
    config = opened(run_dir, lambda run: shlex.join(("zmqrl", "export", run, *words)))
    env = trained_env(run_dir, config)
    store, place = stored_checkpoints(run_dir, config)
    version, content = named_checkpoint(store, place, checkpoint)
    algorithm, weights, metadata = network_of(run_dir, config, env, version, content)
    env_steps = int(metadata["env_steps"]) if "env_steps" in metadata else None
    best, scores = store.best(), _scores(run_dir)
    by, is_best = config.evaluator.best_by, best is not None and best[0] == version
    score = best[2] if by is None and best is not None and is_best else scores.get(env_steps)
    info = read_info(run_dir)
    source = CardSource(
        config.env.id,
        str(config.algorithm["kind"]),
        config.run.seed,
        run_dir.absolute().name if info is None else info.run_id,
        version,
        score,
        env_steps,
        config.env.frame_stack,
        () if score is not None else tuple(_scored(best, by, scores)),
        report_cells({by: best[2]})[0] if by is not None and best is not None and is_best else "",
    )
    return algorithm.acting(), weights, source


def export_csv(run_dir: Path, folder: Path) -> list[Path]:
    """Write the file metrics.csv, and episodes.csv if a run has one; the files that were written.

    Of a folder of runs, both have the rows of all of them, with the columns `run` and `seed`.

    Raises:
        ConfigError: No run has metrics, or a file cannot be read, exists or cannot be written.
    """
    below = [run_dir] if (run_dir / METRICS).is_file() else sorted(run_dirs(run_dir), key=by_number)
    runs = [run for run in below if (run / METRICS).is_file()]
    if not runs:
        raise ConfigError.about(run_dir, f"has no {METRICS}, and no run in it has one")
    names = {run: {} if run == run_dir else _name(run, run_dir) for run in runs}
    written = [folder / name for name, (source, _) in TABLES.items() if any((run / source).is_file() for run in runs)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in written:
            source, rows_of = TABLES[path.name]
            found = {run: run / source for run in runs if (run / source).is_file()}
            columns = {name: None for run in found for row in rows_of(found[run]) for name in (*names[run], *row)}
            with path.open("x", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, [*columns], extrasaction="ignore")  # a live run may have a new name
                table.writeheader()
                for run in found:
                    table.writerows({**names[run], **row} for row in rows_of(found[run]))
    except FileExistsError as error:
        raise ConfigError.about(error.filename, "exists", "name a new directory") from error
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: the tables cannot be written: {error.strerror}") from error
    return written


def _name(run: Path, folder: Path) -> dict[str, Any]:
    return {"run": str(run.relative_to(folder)), "seed": stored_value(run, "run", "seed")}


def _episodes(path: Path) -> Iterator[dict[str, str]]:
    with open(path, encoding="utf-8", newline="", opener=regular) as file:
        yield from csv.DictReader(file)


TABLES: Mapping[str, tuple[str, Callable[[Path], Iterable[dict[str, Any]]]]] = {
    "metrics.csv": (METRICS, current_metrics),
    EPISODES_CSV: (EPISODES_CSV, _episodes),
}
"""File of a run, and its rows, by the table that has them."""


def _scores(run_dir: Path) -> dict[int | None, float]:
    """The mean returns that the evaluator has recorded, by the env steps of the version, in the order of the file."""
    try:
        rows = current_metrics(run_dir / METRICS)
        return {int(row["env_steps"]): row[EVALUATED] for row in rows if EVALUATED in row}
    except OSError:
        return {}


def _scored(
    best: tuple[Version, bytes, float] | None, by: str | None, scores: Mapping[int | None, float]
) -> Iterator[str]:
    if best is not None:
        score = f"{best[2]:.2f}" if by is None else report_cells({by: best[2]})[0]
        yield f"best scored version {best[0]}: {score}"
    for env_steps in list(scores)[-1:]:
        yield f"last scored version, at {env_steps:,} env steps: {scores[env_steps]:.2f}"
