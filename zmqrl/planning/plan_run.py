"""Plan of a run from a resolved configuration: all checks are made before anything is started.

A command has this done in a check process (`zmqrl.planning.checked`): the user's code is imported.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqrl.acting.make_head import check_schedule, make_head
from zmqrl.acting.state import check_acting
from zmqrl.algorithms.base import Algorithm, Progress, check_batch, check_intrinsic, numbers_of, schedule_of
from zmqrl.algorithms.start.make import check_towers, make_algorithm
from zmqrl.config.codec import replace, to_json
from zmqrl.config.paths import expanded
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores.make import place_of
from zmqrl.envs.make import check_num_envs, check_numbers, probe
from zmqrl.errors import ConfigError
from zmqrl.planning.acting_runtime import check_layers, with_chosen_runtime, with_runtime
from zmqrl.planning.arena_plan import columns_of, size_of
from zmqrl.planning.checks import check_machine, check_plan, check_settings, check_videos
from zmqrl.planning.start_warnings import slow_target, space_warnings, without_version, zero_learning_rate
from zmqrl.run_files.lineage import lineage_of
from zmqrl.supervision.host_entry import login_here
from zmqrl.types import EnvSpec, SpaceSpec


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
        config: From `zmqrl.planning.configure.load`.
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
        from zmqrl.planning.policies import check_resumed_env  # most runs start without

        check_resumed_env(run_dir, config, env)
    algorithm = _algorithm(config, env)
    config = _with_executor(config, algorithm)
    acting = algorithm.acting()
    check_layers(algorithm.network(), acting)
    check_acting(acting, config.env.segment_steps)
    if is_here and not resume:
        config = with_chosen_runtime(config, acting)
    acting = with_runtime(config, acting)
    start = Progress(config.run.seed, 0, 0, config.horizon)
    check_schedule(make_head(acting, 1), schedule_of(algorithm, start), env.receives_numbers)
    check_numbers(config.env, env, numbers_of(algorithm, config.env, start), is_here)
    columns = columns_of(config, env, acting)
    size = size_of(config, algorithm, workers, columns)
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
        held_segments=size.held_segments,
        store_path=store_path,
        resume=resume,
        lineage=lineage,
        started_by=login_here(),
        warnings=(
            *(() if config.mode.offline else zero_learning_rate(config.run, algorithm)),
            *(() if config.mode.offline else slow_target(config, algorithm)),
            *without_version(config.env),
            *notes,
            *space_warnings(env, acting),
            *initial,
        ),
        began=time.monotonic() - (time.time() - started_at),
    )
    check_plan(plan, is_here)
    return plan


def _warnings_of(init_from: str, algorithm: Algorithm) -> tuple[str, ...]:
    from zmqrl.planning.initial_weights import initial_weights_of  # most runs start without

    return initial_weights_of(init_from, algorithm).warnings


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
    check_intrinsic(algorithm)
    check_towers(config, env)
    algorithm.check(config.run.mode, config.env.vector_envs, config.replay)
    return algorithm


def _described(space: SpaceSpec) -> str:
    if space.parts:
        return "of parts " + ", ".join(f"{part.name} {list(part.space.shape)}" for part in space.parts)
    return f"of shape {list(space.shape)}"


def _with_executor(config: Config, algorithm: Algorithm) -> Config:
    """`auto` resolved, from the configuration alone: a resume and another machine have the same."""
    executor, known = config.learner.executor, algorithm.executors
    what, other = f"algorithm.kind {config.algorithm['kind']} supports only", ("algorithm", "kind")
    if config.learner.precision == "bfloat16" and executor in ("auto", "manual"):
        known = tuple(name for name in known if name != "manual")
        what, other = "learner.precision bfloat16 needs", ("learner", "precision")
    if executor != "auto" and executor not in known:
        what = f"{what} {', '.join(known)}"
        raise ConfigError(what, key=("learner", "executor"), value=repr(executor), others=(other,))
    chosen: Any = known[0] if executor == "auto" else executor
    return replace(config, learner=replace(config.learner, executor=chosen))
