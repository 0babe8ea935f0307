"""The env of a plan: its properties, how its running episodes are recovered, and what the user should know of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.load import Sources
from zmqrl.config.sections import Config, EnvSection, ScoredEnvSection
from zmqrl.envs.findings import EnvFindings, findings
from zmqrl.envs.first_steps import check_first_steps
from zmqrl.envs.make import probe
from zmqrl.envs.masks import ignored_mask
from zmqrl.errors import ConfigError
from zmqrl.launch.run_directory import IMPLICIT_STATE, stored_format
from zmqrl.types import EnvSpec

RECOVERY = "env.recovery"
QUICK_S = 1.0
"""Longest duration of the first steps of an env that is walked again."""


def planned_env(
    config: Config, run_dir: Path, resume: bool, sources: Sources | None, steps_here: bool
) -> tuple[Config, EnvSpec, tuple[str, ...]]:
    """The configuration with the recovery of the run, the properties of the env, and warnings.

    `steps_here`: envs of the training are stepped on this machine, so the first steps are checked. Raises `ConfigError`
    as `probe` and `check_first_steps`, and for keys that do not fit the env.
    """
    spec, found = _probed(config.env, config.run.seed if steps_here else None)
    notes, has_pair = [*found.remarks], found.has_state_pair
    _check_scored(config, spec)
    if spec.vector_only and config.mode.deterministic:
        raise ConfigError(
            f"run.mode: {config.run.mode!r}: env.id {spec.id!r} is a gymnasium.vector.VectorEnv, whose envs cannot be "
            "reset one by one, as single and sync require; set run.mode: async"
        )
    if not config.mode.deterministic or config.env.recovery != "exact":
        return config, spec, tuple(notes)
    if has_pair and resume and stored_format(run_dir) <= IMPLICIT_STATE:
        return planned_env(_recovered_by(config, "state"), run_dir, resume, sources, steps_here)
    if spec.max_episode_steps is None and sources is not None and RECOVERY not in sources.by_key:
        config = _recovered_by(config, "restart_episode")
        notes.append(
            f"env.id: {spec.id!r} has no step limit, so its running episodes end when a process is restarted "
            "(env.recovery: restart_episode); set env.max_episode_steps to get the same weights after a restart"
        )
    if has_pair:
        instead = "actions are repeated" if config.env.recovery == "exact" else "its running episodes end"
        notes.append(
            f"env.id: get_state and set_state of {spec.id!r} are not called, and {instead} after a restart; if the "
            "two save and restore all of the env, set env.recovery: state"
        )
    return config, spec, tuple(notes)


def _probed(section: EnvSection, seed: int | None) -> tuple[EnvSpec, EnvFindings]:
    """`seed`: of the first steps; None: the env is not stepped."""
    found = EnvFindings()

    def check(env: Any, spec: EnvSpec) -> None:
        nonlocal found
        begun = time.monotonic()
        try:
            if seed is not None:
                check_first_steps(env, spec, seed)
        except ConfigError as error:
            mask = ignored_mask(env, spec)  # an action that it forbids may be what is wrong
            if mask is None:
                raise
            what, _, traceback = str(error).partition("\n")
            raise ConfigError(f"{what}; {mask}\n{traceback}") from error
        found = findings(env, section, spec, seed, is_quick=time.monotonic() - begun < QUICK_S)

    return probe(section, check), found


def _check_scored(config: Config, trained: EnvSpec) -> None:
    """ConfigError unless the env of scores can be made and has the spaces of the training."""
    if config.evaluator.env == ScoredEnvSection() or not config.evaluator.episodes:
        return
    try:
        scored = probe(config.scored_env)
    except ConfigError as error:
        raise ConfigError(f"evaluator.env: {error}") from error
    pairs = (("observation", scored.observation, trained.observation), ("action", scored.action, trained.action))
    for name, found, expected in pairs:
        for key, value in structs.asdict(found).items():
            if value != getattr(expected, key):
                raise ConfigError(
                    f"evaluator.env: its {name} space has {key} {value!r:.60}, that of env has "
                    f"{getattr(expected, key)!r:.60}; the spaces must be equal"
                )


def _recovered_by(config: Config, recovery: Any) -> Config:
    return replace(config, env=replace(config.env, recovery=recovery))
