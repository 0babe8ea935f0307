"""What `zmqrl export` writes of a run: a checkpoint, and what is known of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from zmqrl.acting.spec import ActingSpec
from zmqrl.export.card import CardSource
from zmqrl.metrics.attempts import current_metrics
from zmqrl.metrics.curves import EVALUATED
from zmqrl.metrics.groups import METRICS
from zmqrl.planning.policies import named_checkpoint, network_of, stored_checkpoints, trained_env
from zmqrl.run_files.run_info import read_info
from zmqrl.run_files.trust import opened
from zmqrl.types import Version, Weights


def exported_of(run_dir: Path, checkpoint: str) -> tuple[ActingSpec, Weights, CardSource]:
    """The acting spec and the weights of a checkpoint, and what is known of it.

    Raises:
        ConfigError: `run_dir` is not a run directory, or has no checkpoint of this name.
        StoreError: It has no version.
    """
    config = opened(run_dir, lambda run: f"zmqrl export {shlex.quote(run)}")
    env = trained_env(run_dir, config)
    store, place = stored_checkpoints(run_dir, config)
    version, content = named_checkpoint(store, place, checkpoint)
    algorithm, weights, metadata = network_of(run_dir, config, env, version, content)
    env_steps = int(metadata["env_steps"]) if "env_steps" in metadata else None
    best, scores = store.best(), _scores(run_dir)
    is_return = config.evaluator.best_by is None
    score = best[2] if is_return and best is not None and best[0] == version else scores.get(env_steps)
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
        () if score is not None else tuple(_scored(best if is_return else None, scores)),
    )
    return algorithm.acting(), weights, source


def _scores(run_dir: Path) -> dict[int | None, float]:
    """The mean returns that the evaluator has recorded, by the env steps of the version, in the order of the file."""
    try:
        rows = current_metrics(run_dir / METRICS)
        return {int(row["env_steps"]): row[EVALUATED] for row in rows if EVALUATED in row}
    except OSError:
        return {}


def _scored(best: tuple[Version, bytes, float] | None, scores: Mapping[int | None, float]) -> Iterator[str]:
    if best is not None:
        yield f"best scored version {best[0]}: {best[2]:.2f}"
    for env_steps in list(scores)[-1:]:
        yield f"last scored version, at {env_steps:,} env steps: {scores[env_steps]:.2f}"
