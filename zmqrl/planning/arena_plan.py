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
from zmqrl.types import ACTING_STATE, REPORT_COLUMN, STATE_COLUMN, ColumnSpec, EnvSpec

SPARE_STREAMS = 64
"""async: vector envs reserved for workers added during the run (`zmqrl scale`)."""
MODE, LOAD, UPDATES, KIND = ("run", "mode"), ("replay", "load"), ("run", "stop_at_updates"), ("algorithm", "kind")


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
        *_reports(config),
    )


def _states(config: Config, env: EnvSpec) -> tuple[ColumnSpec, ...]:
    if not config.mode.deterministic or env.state is None:
        return ()
    return (ColumnSpec(STATE_COLUMN, "uint8", (1, config.env.num_envs, env.state.nbytes)),)


def _reports(config: Config) -> tuple[ColumnSpec, ...]:
    env = config.env
    shape = env.segment_steps, env.num_envs, len(env.report)
    return (ColumnSpec(REPORT_COLUMN, "float64", shape),) if env.report else ()


@dataclass(frozen=True)
class Size:
    """Slots of the arena, vector envs of the stream table, segments of a batch, segments that replay holds."""

    slots: int
    streams: int
    batch_segments: int
    held_segments: int = 0


def size_of(config: Config, algorithm: Algorithm, workers: Mapping[str, int], columns: Sequence[ColumnSpec]) -> Size:
    """Raise `ConfigError` where the replay cannot be made."""
    _check_data_set(config, algorithm)
    is_deterministic, vector_envs = config.mode.deterministic, config.env.vector_envs
    if not algorithm.on_policy or algorithm.held_batches:
        shapes = {column.name: column.shape for column in columns}
        check_spec(algorithm.replay(), shapes, is_deterministic, algorithm.env.observation)
    total = sum(workers.values())
    if config.mode.offline:
        return Size(1, vector_envs, 0)
    leases = max(1, total) * config.limits.leases_per_worker
    batch = vector_envs if is_deterministic else algorithm.batch_segments or vector_envs
    held = algorithm.held_batches * batch
    if not algorithm.on_policy:
        _check_replay(config, max(1, total))
        held = -(-config.replay.capacity // _rows(config))
    if is_deterministic:
        rounds = 1 + config.mode.rounds_ahead
        return Size(held + rounds * vector_envs + leases, max(vector_envs, total), batch, held)
    if algorithm.on_policy:
        return Size(held + leases + 2 * batch, total + SPARE_STREAMS, batch, held)
    return Size(held + 2 * leases + 2, total + SPARE_STREAMS, 0, held)


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


def _check_data_set(config: Config, algorithm: Algorithm) -> None:
    """Raise `ConfigError` when the algorithm cannot train on a data set, or mode offline lacks a key."""
    run, load, value = config.run, config.replay.load, repr(config.run.mode)
    if config.mode.offline:
        for key, found, fix in ((LOAD, load, "FOLDER"), (UPDATES, run.stop_at_updates, "N")):
            if found is None:
                what = f"needs {'.'.join(key)}"
                raise ConfigError(what, key=MODE, value=value, is_subject=True, fix=f"set it to {fix}")
        if run.record is not None:
            what = "steps no env, so that nothing is recorded"
            raise ConfigError(what, key=MODE, value=value, is_subject=True, fix="remove run.record")
    elif load is None:
        return
    kind, acting = config.algorithm["kind"], algorithm.acting()
    missing = [column.name for column in acting.extras] + [ACTING_STATE + state.name for state in acting.state]
    what = f"algorithm.kind {kind} is on-policy, and does not train on data sets" if algorithm.on_policy else ""
    if missing and not what:
        what = f"a data set does not have the columns {', '.join(missing)} of algorithm.kind {kind}"
    if what:
        raise ConfigError(what, key=LOAD, value=repr(load), others=(KIND,))
