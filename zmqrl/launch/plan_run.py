"""From a resolved configuration to the plan: all checks are made before anything is started.

A command has this done in a check process (`zmqrl.launch.checked`): the user's code is imported.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.acting.heads import check_schedule, make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import check_acting, state_columns
from zmqrl.algorithms.base import Algorithm, Progress, check_batch, schedule_of
from zmqrl.algorithms.make import make_algorithm
from zmqrl.broker.limiter import least_slack
from zmqrl.config.codec import replace, to_json
from zmqrl.config.hosts import LOCAL
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, LimitsSection
from zmqrl.data_stores.make import place_of
from zmqrl.envs.make import check_num_envs, probe
from zmqrl.errors import ConfigError
from zmqrl.launch.acting_runtime import with_runtime
from zmqrl.launch.checks import (
    check_frames,
    check_layers,
    check_machine,
    check_parts,
    check_processor,
    check_transport,
    check_videos,
)
from zmqrl.launch.env_recovery import check_recovery
from zmqrl.launch.lineage import lineage_of
from zmqrl.launch.start_warnings import slow_target, space_warnings, without_version, zero_learning_rate
from zmqrl.replay.segment_replay import check_spec
from zmqrl.shared_memory.arena import check_fits
from zmqrl.types import MODES, STATE_COLUMN, ColumnSpec, EnvSpec, SpaceSpec
from zmqrl.views.problem import counted

HEARTBEATS = 2
"""Least number of heartbeats within a limit on silence."""
SPARE_STREAMS = 64
"""async: vector envs reserved for workers added during the run (`zmqrl scale`)."""


def plan_run(
    config: Config,
    run_dir: Path,
    started_at: float,
    resume: bool = False,
    is_here: bool = True,
    env: EnvSpec | None = None,
    notes: Sequence[str] = (),
) -> RunPlan:
    """Create the algorithm, size the arena and check the machine. Writes no files.

    Args:
        config: From `zmqrl.launch.configure.load`.
        run_dir: Where the run will write.
        started_at: `time.time()` at the start of the command.
        resume: Continue from the newest FULL checkpoint.
        is_here: The host `local` will be this machine: its processor, devices and memory are checked.
        env: What `zmqrl.envs.check` has found; None: the env is made here, and not stepped.
        notes: Further warnings.

    Raises:
        ConfigError: One message that names key, value and fix.
    """
    run_dir = expanded(run_dir, "run directory").absolute()  # the user's code may change the working directory
    workers = check_settings(config, is_here)
    init_from = None if resume or config.run.init_from is None else str(Path(config.run.init_from).absolute())
    lineage = lineage_of(config, run_dir, resume)
    store_path = place_of(config.store, run_dir, lineage.id)
    env = probe(config.env) if env is None else env
    check_num_envs(config.env, env.agents)
    if resume:
        from zmqrl.launch.policies import check_resumed_env  # most runs start without

        check_resumed_env(run_dir, config, env)
    algorithm = _algorithm(config, env)
    config = _with_executor(config, algorithm)
    acting = algorithm.acting()
    check_layers(algorithm.network(), acting)
    check_acting(acting, config.env.segment_steps)
    acting = with_runtime(config, acting)
    horizon = config.run.schedule_env_steps or config.run.total_env_steps
    check_schedule(make_head(acting, 1), schedule_of(algorithm, Progress(config.run.seed, 0, 0, horizon)))
    columns = _columns(config, env, acting)
    if not algorithm.on_policy:
        shapes = {column.name: column.shape for column in columns}
        check_spec(algorithm.replay(), shapes, config.mode.deterministic)
    size = _size(config, algorithm, workers)
    initial = () if init_from is None else _warnings_of(init_from, algorithm)
    check_machine(config, run_dir, is_here)
    check_videos(config, env, is_here)
    plan = RunPlan(
        run_id=f"{config.run.name}-{secrets.token_hex(3)}",
        run_dir=str(run_dir),
        started_at=started_at,
        config=config,
        env=env,
        acting=to_json(acting),
        columns=columns,
        on_policy=algorithm.on_policy,
        slots=size.slots,
        streams=size.streams,
        workers=workers,
        batch_segments=size.batch_segments,
        store_path=store_path,
        resume=resume,
        lineage=lineage,
        warnings=(
            *zero_learning_rate(config.run, algorithm),
            *slow_target(config, algorithm),
            *without_version(config.env),
            *notes,
            *space_warnings(env, acting),
            *initial,
        ),
        began=time.monotonic() - (time.time() - started_at),
    )
    if config.learner.host == LOCAL and is_here:  # elsewhere that host's agent looks when it makes the arena
        check_fits(plan)
    check_frames(plan)
    check_transport(plan)
    check_recovery(plan)
    return plan


def _warnings_of(init_from: str, algorithm: Algorithm) -> tuple[str, ...]:
    from zmqrl.launch.initial_weights import initial_weights_of  # most runs start without

    return initial_weights_of(init_from, algorithm).warnings


def check_settings(config: Config, is_here: bool) -> Mapping[str, int]:
    """Rollout workers per host. ConfigError for what is wrong whatever the env is."""
    workers = _workers(config)
    _check_limits(config.limits)
    check_parts(config)
    if is_here:
        check_processor(config, workers)
    return workers


def _workers(config: Config) -> Mapping[str, int]:
    """Rollout workers per host; none in single."""
    if config.mode.in_process:
        return {config.learner.host: 0}
    workers = {name: host.workers for name, host in config.hosts.items() if isinstance(host.workers, int)}
    open_hosts = [name for name in config.hosts if name not in workers]
    known, first = not open_hosts, next(iter(config.hosts), LOCAL)
    # `auto` of a host that has not reported its cores yet is one worker; in sync only while a vector env is left.
    left = config.env.vector_envs - sum(workers.values()) if config.mode.deterministic else len(open_hosts)
    counts = {**workers, **{name: int(place < left) for place, name in enumerate(open_hosts)}}
    workers = {name: counts[name] for name in config.hosts}
    total = sum(workers.values())
    if not config.hosts:
        raise ConfigError("lists no host", key=("hosts",), fix=f"write hosts: {{{LOCAL}: {{workers: 2}}}}")
    if total < 1:
        raise ConfigError(
            f"mode {config.run.mode} needs at least 1 worker", key=("hosts", first, "workers"), value=str(total)
        )
    if config.mode.deterministic and total > config.env.vector_envs:
        raise ConfigError(
            f"the {total} workers of all hosts exceed env.vector_envs {config.env.vector_envs}, and in "
            "sync each worker needs at least one",
            key=("hosts", first, "workers"),
            fix="raise env.vector_envs or set fewer workers",
            others=(("env", "vector_envs"),),
        )
    if known and config.min_workers > total:
        what = f"all hosts together have {counted(total, 'worker')}"
        raise ConfigError(what, key=("min_workers",), value=str(config.min_workers), fix=f"set at most {total}")
    return workers


def _algorithm(config: Config, env: EnvSpec) -> Algorithm:
    if config.network.kind == "cnn" and (env.observation.kind != "box" or len(env.observation.shape) != 3):
        what = f"requires image observations, and {env.id} has observations {_described(env.observation)}"
        raise ConfigError(what, key=("network", "kind"), value="'cnn'", is_subject=True, fix="write mlp")
    algorithm = make_algorithm(config, env)
    if config.run.mode not in algorithm.modes:
        allowed = ", ".join(sorted(algorithm.modes))
        what = f"algorithm.kind {config.algorithm['kind']} supports only {allowed}"
        raise ConfigError(what, key=("run", "mode"), value=repr(config.run.mode), others=(("algorithm", "kind"),))
    check_batch(algorithm)
    algorithm.check(config.run.mode, config.env.vector_envs, config.replay)
    return algorithm


def _check_limits(limits: LimitsSection) -> None:
    """A silence that ends a process or a host has to be longer than that between two heartbeats."""
    least = HEARTBEATS * limits.heartbeat_s
    for key in ("lost_after_s", "stalled_after_s", "host_lease_s"):
        value = getattr(limits, key)
        if value < least:
            raise ConfigError(
                f"must be at least {least:g}, which is {HEARTBEATS} x limits.heartbeat_s "
                f"({limits.heartbeat_s:g} s); with less, processes are ended between two heartbeats",
                key=("limits", key),
                value=f"{value:g}",
                others=(("limits", "heartbeat_s"),),
            )


def _described(space: SpaceSpec) -> str:
    if space.parts:
        return "of parts " + ", ".join(f"{part.name} {list(part.space.shape)}" for part in space.parts)
    return f"of shape {list(space.shape)}"


def _with_executor(config: Config, algorithm: Algorithm) -> Config:
    """`auto` resolved, from the configuration alone: a resume and another machine have the same."""
    executor, known = config.learner.executor, algorithm.executors
    if executor != "auto" and executor not in known:
        what = f"algorithm.kind {config.algorithm['kind']} supports only {', '.join(known)}"
        raise ConfigError(what, key=("learner", "executor"), value=repr(executor), others=(("algorithm", "kind"),))
    chosen: Any = known[0] if executor == "auto" else executor
    return replace(config, learner=replace(config.learner, executor=chosen))


def _columns(config: Config, env: EnvSpec, acting: ActingSpec) -> tuple[ColumnSpec, ...]:
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
class _Size:
    slots: int
    streams: int
    batch_segments: int


def _size(config: Config, algorithm: Algorithm, workers: Mapping[str, int]) -> _Size:
    """Slots of the arena, vector envs of the stream table, segments of a batch."""
    mode, vector_envs = config.run.mode, config.env.vector_envs
    total = sum(workers.values())
    leases = max(1, total) * config.limits.leases_per_worker
    if algorithm.on_policy and MODES[mode].deterministic:
        return _Size(vector_envs + leases, max(vector_envs, total), vector_envs)
    if algorithm.on_policy:
        batch = algorithm.batch_segments or vector_envs
        return _Size(leases + 2 * batch, total + SPARE_STREAMS, batch)
    _check_replay(config, max(1, total))
    kept = -(-config.replay.capacity // _rows(config))
    if not MODES[mode].deterministic:
        return _Size(kept + 2 * leases + 2, total + SPARE_STREAMS, 0)
    return _Size(kept + vector_envs + leases, max(vector_envs, total), vector_envs)


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
