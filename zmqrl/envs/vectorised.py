"""Envs of gymnasium's vector API, which reset and step all their envs in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from zmqrl.config.sections import EnvSection
from zmqrl.envs.arguments import called
from zmqrl.envs.base import close_env
from zmqrl.envs.env_index import EnvIndex
from zmqrl.envs.lookup import attribute, register_namespace, registered
from zmqrl.envs.slots import receivers
from zmqrl.envs.spaces import action_spec, observation_spec
from zmqrl.errors import ConfigError
from zmqrl.types import EnvSpec

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def make_native(section: EnvSection, num_envs: int) -> VectorEnv | None:
    """The native vector form of gymnasium with NEXT_STEP autoreset, or None when there is none for this section."""
    if _keys_of_single(section) or attribute(section.id) is not None:
        return None
    register_namespace(section.id)
    env_id = section.id.rpartition(":")[2]  # the module is imported by now
    spec = registered(env_id)
    if spec is None or None in (spec.entry_point, spec.vector_entry_point) or spec.additional_wrappers:
        return None
    make = partial(gym.make_vec, spec.id, num_envs, vectorization_mode="vector_entry_point")
    try:
        with EnvIndex() as index:
            env: Any = index.keep_for(called(make, (), section.kwargs, index.number, "env.kwargs"))
    except TypeError:
        return None  # the single env takes these kwargs, its vector form does not
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        close_env(env)
        return None
    return env  # type: ignore[no-any-return]


def _keys_of_single(section: EnvSection) -> list[str]:
    """Keys that are set and are for envs that are stepped one by one."""
    usual, keys = EnvSection(), ("wrappers", "frame_stack", "max_episode_steps")
    return [key for key in keys if getattr(section, key) != getattr(usual, key)]


def check_vector(section: EnvSection, env: VectorEnv) -> None:
    """ConfigError unless it steps `env.num_envs` envs, with the autoreset that zmqrl expects and no key for one env."""
    made, named = f"makes {type(env).__name__}, a gymnasium.vector.VectorEnv", repr(section.id)
    mode = env.metadata.get("autoreset_mode")
    for key in _keys_of_single(section):
        raise ConfigError(f"{named} {made}", key=("env", key), fix="remove the key, and do it in the env")
    if mode != AutoresetMode.NEXT_STEP:
        found = (
            "declares no autoreset_mode" if mode is None else f"has the autoreset mode {getattr(mode, 'name', mode)}"
        )
        fix = "set metadata['autoreset_mode'] = AutoresetMode.NEXT_STEP"
        raise ConfigError(f"{made}, and {found}", key=("env", "id"), value=named, is_subject=True, fix=fix)
    if env.num_envs != section.num_envs:
        what, fix = f"{made} of {env.num_envs} envs", f"it must take num_envs (env.num_envs: {section.num_envs})"
        raise ConfigError(what, key=("env", "id"), value=named, is_subject=True, fix=fix, others=(("env", "num_envs"),))


def has_native(section: EnvSection, env: gym.Env[Any, Any]) -> bool:
    """Whether gymnasium has a vector form of `env`, with the same spaces, that receives numbers if `env` does."""
    vector = make_native(section, 1)
    if vector is None:
        return False
    try:
        same_obs = vector.single_observation_space == env.observation_space
        same_action = vector.single_action_space == env.action_space
        return bool(same_obs and same_action and bool(receivers(vector)) == bool(receivers(env)))
    finally:
        vector.close()


def spec_of_vector(env_id: str, env: VectorEnv) -> EnvSpec:
    """Its properties. ConfigError: its spaces are not supported."""
    observation = observation_spec(env_id, env.single_observation_space)
    if observation.kind != "box":
        raise ConfigError("of a VectorEnv only Box observations are supported", key=("env", "id"), value=repr(env_id))
    return EnvSpec(env_id, observation, action_spec(env_id, env.single_action_space), vector_only=True)
