"""Columns and sizes of the arena of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import state_columns
from zmqrl.algorithms.base import Algorithm
from zmqrl.broker.leases import least_slack
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.replay.segment_replay import check_spec
from zmqrl.types import MODES, STATE_COLUMN, ColumnSpec, EnvSpec

SPARE_STREAMS = 64
"""async: vector envs reserved for workers added during the run (`zmqrl scale`)."""


def columns_of(config: Config, env: EnvSpec, acting: ActingSpec) -> tuple[ColumnSpec, ...]:
    """Columns of a segment of a vector env."""
    steps, envs, stack = config.env.segment_steps, config.env.num_envs, config.env.frame_stack
    frame = env.observation.shape if stack == 1 else env.observation.shape[1:]
    flags = (ColumnSpec(name, "bool", (steps, envs)) for name in ("terminated", "truncated", "valid"))
    return (
        ColumnSpec("obs", env.observation.dtype, (steps + stack, envs, *frame)),
        ColumnSpec("action", env.action.dtype, (steps, envs, *env.action.shape)),
        ColumnSpec("reward", "float32", (steps, envs)),
        *flags,
        *acting.extras,
        *state_columns(acting, steps, envs),
        *_states(config, env),
    )


def _states(config: Config, env: EnvSpec) -> tuple[ColumnSpec, ...]:
    if not config.mode.deterministic or env.state is None:
        return ()
    return (ColumnSpec(STATE_COLUMN, "uint8", (1, config.env.num_envs, env.state.nbytes)),)


@dataclass(frozen=True)
class Size:
    """Slots of the arena, vector envs of the stream table, segments of a batch."""

    slots: int
    streams: int
    batch_segments: int


def size_of(config: Config, algorithm: Algorithm, workers: Mapping[str, int], columns: Sequence[ColumnSpec]) -> Size:
    """Raise `ConfigError` where the replay cannot be made."""
    if not algorithm.on_policy:
        shapes = {column.name: column.shape for column in columns}
        check_spec(algorithm.replay(), shapes, config.mode.deterministic, algorithm.env.observation)
    mode, vector_envs = config.run.mode, config.env.vector_envs
    total = sum(workers.values())
    leases = max(1, total) * config.limits.leases_per_worker
    if algorithm.on_policy and MODES[mode].deterministic:
        return Size(vector_envs + leases, max(vector_envs, total), vector_envs)
    if algorithm.on_policy:
        batch = algorithm.batch_segments or vector_envs
        return Size(leases + 2 * batch, total + SPARE_STREAMS, batch)
    _check_replay(config, max(1, total))
    kept = -(-config.replay.capacity // _rows(config))
    if not MODES[mode].deterministic:
        return Size(kept + 2 * leases + 2, total + SPARE_STREAMS, 0)
    return Size(kept + vector_envs + leases, max(vector_envs, total), vector_envs)


def _rows(config: Config) -> int:
    return config.env.num_envs * config.env.segment_steps


def _check_replay(config: Config, workers: int) -> None:
    replay, rows = config.replay, _rows(config)
    if replay.learning_starts > replay.capacity:
        raise ConfigError(
            f"exceeds replay.capacity {replay.capacity}",
            key=("replay", "learning_starts"),
            value=str(replay.learning_starts),
            is_subject=True,
            others=(("replay", "capacity"),),
        )
    quota = rows * config.env.vector_envs if config.mode.deterministic else rows
    if replay.capacity < quota:
        raise ConfigError(
            f"must be at least {quota} env steps, one "
            f"segment{' of each vector env' if config.mode.deterministic else ''}",
            key=("replay", "capacity"),
            value=str(replay.capacity),
            fix="raise it or lower env.segment_steps",
            others=(("env", "segment_steps"),),
        )
    leases = config.limits.leases_per_worker
    least = least_slack(workers, leases, rows, replay.ratio)
    if not config.mode.deterministic and replay.slack is not None and replay.slack < least:
        raise ConfigError(
            f"must be at least {least}; with less, workers and learner can wait for each other for "
            f"ever. The minimum is the larger of two numbers: {workers * leases} leases x {rows} env "
            f"steps; one segment ({rows}) + 1 / replay.ratio ({1 / replay.ratio:g})",
            key=("replay", "slack"),
            value=str(replay.slack),
            others=(("replay", "ratio"),),
        )
