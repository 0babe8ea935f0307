"""Whether single and sync can recover every running episode: the memory of its actions is known before the start."""

from __future__ import annotations

from zmqrl.capacity import available_bytes
from zmqrl.config.hosts import LOCAL
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.shared_memory.arena import layout_of
from zmqrl.shared_memory.memory import KEEP_FREE
from zmqrl.types import SpaceSpec

COPIES = 6
"""Copies of all actions: the learner's with room to grow, those of a FULL in writing, a handover in transit."""
MOST_RECORD_BYTES = 1 << 30
"""Most bytes of the record of one vector env: the limit of a handover, which is sent in parts."""
OTHERWISE = "set env.recovery: state (needs get_state and set_state) or restart_episode"
FOR_A_RESUME = "Set env.recovery: restart_episode, the only key of env that a resume may change"


def check_recovery(plan: RunPlan) -> None:
    """Raise `ConfigError` when the actions of running episodes have no bound, or do not fit into memory.

    Memory is that of this machine: a learner on another host has its own.
    """
    config, env = plan.config, plan.env
    if not config.mode.deterministic or config.mode.offline or config.env.recovery != "exact":
        return
    if env.max_episode_steps is None:
        ways_out = FOR_A_RESUME if plan.resume else f"Set env.max_episode_steps: N, {OTHERWISE}"
        raise ConfigError(
            f"needs a limit of steps per episode, and env.id {env.id!r} has none. After a restart or a "
            f"resume, mode {config.run.mode} repeats all actions of the running episodes. {ways_out}. "
            "See docs/resume.md, 'Running episodes'.",
            key=("env", "recovery"),
            value="'exact'",
            is_subject=True,
            others=(("env", "id"),),
        )
    step = action_nbytes(env.action) * config.env.num_envs
    if env.max_episode_steps * step > MOST_RECORD_BYTES:
        limit = f"the handover of one vector env is limited to {MOST_RECORD_BYTES / 1e6:,.0f} MB"
        raise _too_much(plan, env.max_episode_steps, step, MOST_RECORD_BYTES, limit)
    if config.learner.host != LOCAL:
        return
    step *= config.env.vector_envs * COPIES
    there = max(0, available_bytes() - KEEP_FREE - layout_of(plan).nbytes)
    if env.max_episode_steps * step > there:
        limit = f"{there / 1e6:,.0f} MB of memory are available for them and their copies"
        raise _too_much(plan, env.max_episode_steps, step, there, limit)


def action_nbytes(action: SpaceSpec) -> int:
    """Bytes of one action as it is kept: small whole numbers are bytes (`learner.env_slot_record`)."""
    if action.choices:
        return len(action.choices) * (1 if max(action.choices) <= 256 else 8)
    size = {"float16": 2, "float32": 4, "float64": 8}[action.dtype]
    for length in action.shape:
        size *= length
    return size


def _too_much(plan: RunPlan, steps: int, step: int, there: int, limit: str) -> ConfigError:
    env, need = plan.config.env, steps * step
    settings = {"env.max_episode_steps": there // step, "env.num_envs": env.num_envs * there // need}
    fits = " or ".join(f"{key}: {value}" for key, value in settings.items() if value) or "fewer envs"
    ways_out = FOR_A_RESUME if plan.resume else f"{fits} would fit. Or {OTHERWISE}"
    return ConfigError(
        f"the actions of running episodes take up to {need / 1e6:,.0f} MB (env.max_episode_steps "
        f"{steps:,}, env.vector_envs {env.vector_envs}, env.num_envs {env.num_envs}), and {limit}. "
        f"{ways_out}.",
        key=("env", "recovery"),
        value="'exact'",
        others=(
            ("env", "max_episode_steps"),
            ("env", "vector_envs"),
            ("env", "num_envs"),
        ),
    )
