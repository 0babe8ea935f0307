"""What `zmqrl export` writes of a run: a checkpoint, and what is known of it; or the metrics."""

from __future__ import annotations

import csv
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zmqrl.acting.spec import ActingSpec
from zmqrl.errors import ConfigError
from zmqrl.export.card import CardSource
from zmqrl.metrics.attempts import current_metrics
from zmqrl.metrics.curves import EVALUATED
from zmqrl.metrics.groups import EPISODES_CSV, METRICS
from zmqrl.planning.policies import named_checkpoint, network_of, stored_checkpoints, trained_env
from zmqrl.run_files.run_info import read_info
from zmqrl.run_files.stored_config import refuse_folder_of_runs
from zmqrl.run_files.trust import opened
from zmqrl.types import Version, Weights
from zmqrl.views.problem import report_cells

METRICS_CSV = "metrics.csv"


def exported_of(run_dir: Path, checkpoint: str) -> tuple[ActingSpec, Weights, CardSource]:
    """The acting spec and the weights of a checkpoint, and what is known of it.

    Raises:
        ConfigError: `run_dir` is not a run directory, or has no checkpoint of this name.
        StoreError: It has no version.
    """
    config = opened(run_dir, _command)
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
    """Write the file metrics.csv, and a copy of `episodes.csv` if the run has one; the files that were written.

    Raises:
        FolderOfRuns: `run_dir` is the folder of several runs.
        ConfigError: The run has no metrics, or a file exists or cannot be written.
    """
    try:
        rows = current_metrics(run_dir / METRICS)
    except OSError as error:
        refuse_folder_of_runs(run_dir, _command)
        raise ConfigError(f"has no {METRICS}: {error.strerror}", value=str(run_dir), is_subject=True) from error
    written = [folder / METRICS_CSV]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written[0].open("x", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            table.writeheader()
            table.writerows(rows)
        if (run_dir / EPISODES_CSV).is_file():
            written.append(folder / EPISODES_CSV)
            with (run_dir / EPISODES_CSV).open("rb") as content, written[1].open("xb") as copy:
                shutil.copyfileobj(content, copy)
    except FileExistsError as error:
        raise ConfigError("exists", value=error.filename, is_subject=True, fix="name a new directory") from error
    except OSError as error:
        raise ConfigError(f"{folder}: the tables cannot be written: {error.strerror}") from error
    return written


def _command(run: str) -> str:
    return f"zmqrl export {shlex.quote(run)}"


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
