"""The env of a plan: its properties, how its running episodes are recovered, and what the user should know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.load import Sources
from zmqrl.config.sections import Config, ScoredEnvSection
from zmqrl.errors import ConfigError, key_of
from zmqrl.planning.checked import checked_env
from zmqrl.run_files.stored_config import IMPLICIT_STATE, stored_format
from zmqrl.types import EnvSpec

RECOVERY = "env.recovery"
Planned = tuple[Config, EnvSpec, tuple[str, ...]]
"""The configuration with the recovery of the run, the properties of the env, and warnings."""


def planned_env(config: Config, run_dir: Path, resume: bool, sources: Sources | None, is_here: bool) -> Planned:
    """Check the env of the training and that of the scores.

    `sources`: where the keys were written; None: all of them count as written. `is_here`: the host `local` will be this
    machine.

    Raises:
        ConfigError: As of `checked_env`, and where a key does not fit the env.
    """
    env = checked_env(config, is_here)
    notes, spec = [*env.remarks], replace(env, remarks=())
    if spec.vector_only and config.mode.deterministic:
        why = "whose envs cannot be reset one by one, as single, sync and pipelined require"
        what, fix = f"env.id {spec.id!r} is a gymnasium.vector.VectorEnv, {why}", "set run.mode: async"
        mode = repr(config.run.mode)
        raise ConfigError(what, key=("run", "mode"), value=mode, fix=fix, others=(("env", "id"),))
    if config.evaluator.episodes and config.evaluator.env != ScoredEnvSection():
        _check_scored(config, spec, is_here)
    if not config.mode.deterministic or config.mode.offline or config.env.recovery != "exact":
        return config, spec, tuple(notes)
    if spec.has_state_pair and resume and stored_format(run_dir) <= IMPLICIT_STATE:
        return planned_env(_recovered_by(config, "state"), run_dir, resume, sources, is_here)
    if spec.max_episode_steps is None and sources is not None and key_of(RECOVERY) not in sources.by_key:
        config = _recovered_by(config, "restart_episode")
        notes.append(
            f"env.id: {spec.id!r} has no step limit (a truncation of its own in `step` does not count as one), so its "
            "running episodes end when a process is restarted (env.recovery: restart_episode); set "
            "env.max_episode_steps to get the same weights after a restart"
        )
    if spec.has_state_pair:
        instead = "actions are repeated" if config.env.recovery == "exact" else "its running episodes end"
        notes.append(
            f"env.id: get_state and set_state of {spec.id!r} are not called, and {instead} after a restart; if the "
            "two save and restore all of the env, set env.recovery: state"
        )
    return config, spec, tuple(notes)


def _check_scored(config: Config, trained: EnvSpec, is_here: bool) -> None:
    """ConfigError unless the env of scores can be made and has the spaces of the training."""
    try:
        scored = checked_env(replace(config, env=config.scored_env), is_here)
    except ConfigError as error:
        raise error.of(("evaluator", "env")) from error.__cause__
    pairs = (("observation", scored.observation, trained.observation), ("action", scored.action, trained.action))
    for name, found, expected in pairs:
        for key, value in structs.asdict(found).items():
            if value != getattr(expected, key):
                what = f"its {name} space has {key} {value!r:.60}, that of env has {getattr(expected, key)!r:.60}"
                raise ConfigError(what, key=("evaluator", "env"), fix="the spaces must be equal")


def _recovered_by(config: Config, recovery: Any) -> Config:
    return replace(config, env=replace(config.env, recovery=recovery))
