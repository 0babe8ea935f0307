"""Weights of a checkpoint that a new learner starts from, with what they depend on.

An actor was trained against the learner's critics, a critic predicts in units of the statistics of rewards and values,
and the first layer of each in those of observations. A full checkpoint has all of them. A published version has the
statistics that workers act with, and no learner-only tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from zmqrl.algorithms.base import Algorithm
from zmqrl.data_stores.base import unprefixed
from zmqrl.learning.net import PRIVATE
from zmqrl.networks.initial import parameter_shapes
from zmqrl.networks.spec import is_part
from zmqrl.ops.running_stats import RunningStats
from zmqrl.types import Array, Weights


class StartWeights(NamedTuple):
    """What a checkpoint has for a new learner."""

    weights: dict[str, Array]
    """Arrays as in `LearnerContext.weights`, by the names of `start_shapes`; others are of the checkpoint itself."""
    missing: tuple[str, ...]
    """What it lacks, for messages: learner-only networks and statistics, which start from scratch."""


def start_shapes(algorithm: Algorithm) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array that a learner of `algorithm` can start from."""
    published = {name: array.shape for name, array in algorithm.statistics().items()}
    held = {
        f"{name}_stats.{part}": shape
        for name, size in algorithm.learner_statistics().items()
        for part, shape in (("count", (1,)), ("mean", (size,)), ("m2", (size,)))
    }
    return {**parameter_shapes(algorithm.network()), **published, **held}


def start_weights(found: Weights, metadata: Mapping[str, str], algorithm: Algorithm) -> StartWeights:
    """The content of a checkpoint of any kind, as a learner of `algorithm` starts from it. Shapes are not checked."""
    spec, state = algorithm.network(), unprefixed("state", found)
    tensors = parameter_shapes(spec)
    private = {name: state[PRIVATE + name] for name in tensors if PRIVATE + name in state}
    weights = {**(unprefixed("weights", found) or found), **private}
    missing = [part for part in spec.learner_only if any(is_part(t, part) and t not in weights for t in tensors)]
    weights = {name: array for name, array in weights.items() if not any(is_part(name, part) for part in missing)}
    for name in algorithm.learner_statistics():
        stats = _stored({**weights, **state}, name) or _estimated(weights, name, _env_steps(metadata))
        if stats is None:
            missing.append(f"{name} statistics")
            continue
        weights |= stats.state(f"{name}_stats.")
        if f"{name}_scale" in weights:  # of these statistics, so that learner and workers normalise by the same bits
            weights |= {f"{name}_mean": stats.mean, f"{name}_scale": stats.scale}
    return StartWeights(weights, tuple(missing))


def _stored(arrays: Weights, name: str) -> RunningStats | None:
    """Statistics of a full checkpoint, or of the first version of a run that started from other weights.

    A part of a learner under autograd has its name in front of those of its arrays (`NetLearner.state`). Those that the
    learner did not use have no rows.
    """
    prefixes = (f"{name}_stats.", f"{name}/{name}_stats.", f"{name}/")
    found = (RunningStats.load(arrays, prefix) for prefix in prefixes if f"{prefix}count" in arrays)
    return next((stats for stats in found if stats.count > 0), None)


def _estimated(weights: Weights, name: str, env_steps: int) -> RunningStats | None:
    """Statistics of what workers act with: a row for each env step, and at least one where some were counted."""
    mean, scale = weights.get(f"{name}_mean"), weights.get(f"{name}_scale")
    if mean is None or scale is None:
        return None
    is_counted = bool(mean.any() or (scale != 1.0).any())
    return RunningStats.of_scale(float(max(env_steps, is_counted)), mean, scale)


def _env_steps(metadata: Mapping[str, str]) -> int:
    """Env steps of a published version, or of a full checkpoint; 0: not stated."""
    counters = json.loads(metadata["full"])["counters"] if "full" in metadata else metadata
    return int(counters.get("env_steps", 0))
