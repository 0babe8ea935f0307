"""`--init-from`: the weights of another run or of a file, checked against the network of the run that starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.plan import RunPlan
from zmqrl.data_stores import tensors
from zmqrl.data_stores.no_full import starting_full
from zmqrl.errors import ConfigError, DamagedCheckpoints, StoreError
from zmqrl.launch.policies import check_tensors, newest_or_best, published_shapes, stored_checkpoints
from zmqrl.launch.run_directory import is_run, read_config
from zmqrl.networks.input import OBS_STATISTICS
from zmqrl.ops.running_stats import VARIANCE_FLOOR, RunningStats
from zmqrl.types import Array

KEY = "run.init_from"
SAME_NETWORK = "use the env, network and algorithm.kind with which the checkpoint was trained"
EXPECTED = "set a run directory with a checkpoint, or a checkpoint file"


def initial_file(plan: RunPlan) -> bytes | None:
    """What the run directory keeps as `initial.safetensors`: a restart from scratch has the same bits.

    None: version 0 is random, or an earlier attempt has written the file.

    Raises:
        ConfigError: As `initial_weights_of`.
    """
    source = plan.config.run.init_from
    if source is None or plan.resume:
        return None
    return tensors.dump(initial_weights_of(source, make_algorithm(plan.config, plan.env)), {"init_from": source})


def initial_weights_of(source: str, algorithm: Algorithm) -> dict[str, Array]:
    """Every tensor of the network of `algorithm`, and its statistics where `source` has them.

    Args:
        source: A run directory (its best version, else its newest), or a checkpoint file of any kind.
        algorithm: Of the run that starts.

    Raises:
        ConfigError: It cannot be read, or names or shapes differ; the message names the first difference.
    """
    content, where = _content(Path(source))
    try:
        tensors.verify(content)
        found, metadata = tensors.parse(content)
    except StoreError as error:
        run, fix = Path(source).parent, "set a run directory or a checkpoint of zmqrl"
        if Path(source).is_file() and is_run(run):
            fix = f"its run: --init-from {run}"
        raise ConfigError(f"{KEY}: {where}: {error}; {fix}") from error
    weights = {name.removeprefix("weights/"): array for name, array in found.items() if name.startswith("weights/")}
    arrays = dict(weights or found)
    expected = published_shapes(algorithm)
    check_tensors(arrays, algorithm, f"{KEY}: {where}", SAME_NETWORK)
    chosen = {name: arrays[name].astype(np.float32) for name in expected}
    return chosen | _statistics(arrays, found, metadata, algorithm, where)


def _content(source: Path) -> tuple[bytes, str]:
    try:
        if not source.is_dir():
            return source.read_bytes(), str(source)
        store, place = stored_checkpoints(source, read_config(source))
        version, content = newest_or_best(store, place)
        return content, f"version {version} of {source}"
    except DamagedCheckpoints as error:
        raise ConfigError(f"{KEY}: {error}; {_instead(place)}") from error
    except OSError as error:
        raise ConfigError(f"{KEY}: {source} cannot be read: {error.strerror}; {EXPECTED}") from error
    except (StoreError, ConfigError) as error:
        raise ConfigError(f"{KEY}: {error}; {EXPECTED}") from error


def _instead(place: str) -> str:
    """A full checkpoint holds weights too."""
    whole = starting_full(place)
    return "set another run or a checkpoint file" if whole is None else f"a loadable checkpoint: --init-from {whole}"


def _statistics(
    arrays: dict[str, Array], found: dict[str, Array], metadata: dict[str, str], algorithm: Algorithm, where: str
) -> dict[str, Array]:
    """Those that the run publishes and `arrays` has, with what a learner merges its own observations into."""
    published = {name: arrays[name] for name, array in algorithm.statistics().items() if name in arrays}
    for name, array in algorithm.statistics().items():
        if name in published and published[name].shape != array.shape:
            shapes = f"expected shape {list(array.shape)}, found {list(published[name].shape)}"
            raise ConfigError(f"{KEY}: {where}: tensor {name}: {shapes}")
    if not set(OBS_STATISTICS) <= set(published):
        return published
    stats = _exact(found) or _estimated(published, metadata)
    state = {"count": np.array([stats.count]), "mean": stats.mean, "m2": stats.m2}
    # The scale of the state, so that learner and workers normalise version 0 by the same bits.
    published |= {"obs_mean": stats.mean, "obs_scale": stats.scale}
    return published | {f"obs_stats.{key}": value for key, value in state.items()}


def _exact(found: dict[str, Array]) -> RunningStats | None:
    """A FULL holds them, and version 0 of a run that began with the weights of another."""
    for prefix in ("state/obs_stats", "obs_stats"):
        if f"{prefix}.count" in found:
            count, mean, m2 = (found[f"{prefix}.{key}"].copy() for key in ("count", "mean", "m2"))
            return RunningStats(float(count[0]), mean, m2)
    return None


def _estimated(published: dict[str, Array], metadata: dict[str, str]) -> RunningStats:
    """Of a published version: a row of observations for each env step."""
    count = float(metadata.get("env_steps", 0))
    if count <= 0:
        return RunningStats.empty(published["obs_mean"].size)
    variance = np.maximum(published["obs_scale"] ** -2.0 - VARIANCE_FLOOR, 0.0)
    return RunningStats(count, published["obs_mean"].copy(), variance * count)
