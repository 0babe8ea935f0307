"""Lookup of names in a configuration: what makes envs and wrappers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import error as gym_error
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec as EnvRegistration

from zmqrl.config.sections import EnvSection
from zmqrl.envs.creators import check_called
from zmqrl.errors import ConfigError
from zmqrl.plugins import lacks

NAMESPACES = {"ALE": "ale_py"}
"""Modules that register a namespace's ids when they are imported."""


def creator_of(section: EnvSection) -> Callable[..., Any]:
    """What makes the env, without `env.kwargs`. Imports its module."""
    creator = attribute(section.id)
    if creator is None:
        register_namespace(section.id)
        spec = registered(section.id.rpartition(":")[2])
        if spec is not None and spec.entry_point is None and spec.vector_entry_point is not None:
            creator = partial(gym.make_vec, spec.id, section.num_envs, vectorization_mode="vector_entry_point")
        else:
            creator = partial(gym.make, section.id, disable_env_checker=True)
        return creator
    check_called("env.id", section.id, creator, "reset", "step")
    return partial(creator, num_envs=section.num_envs) if _makes_vector(creator) else creator


def _makes_vector(creator: Callable[..., Any]) -> bool:
    """Whether it is a class of gymnasium's vector envs, or a function with the parameter `num_envs`."""
    if inspect.isclass(creator):
        return issubclass(creator, gym.vector.VectorEnv)
    with contextlib.suppress(TypeError, ValueError):
        return "num_envs" in inspect.signature(creator).parameters
    return False


def attribute(path: str) -> Callable[..., Any] | None:
    """What `module:Name` names; None where it is another form, or an id that the module registers."""
    module, separator, name = path.partition(":")
    if not separator:
        return None
    return getattr(importlib.import_module(module), name, None)


def wrapper_of(path: str) -> Any:
    """What `module:Wrapper` names. ConfigError: another form, or no such name."""
    module, separator, name = path.partition(":")
    if not separator:
        raise ConfigError("a wrapper is written module:Wrapper", key=("env", "wrappers"), value=repr(path))
    found = attribute(path)
    if found is None:
        raise ConfigError(lacks(importlib.import_module(module), name), key=("env", "wrappers"), value=repr(path))
    return found


def registered(env_id: str) -> EnvRegistration | None:
    """The entry of gymnasium's register; of an id without a version the highest one, as `gymnasium.make` has it."""
    found = gym.registry.get(env_id)
    if found is None:
        try:
            namespace, name, version = registration.parse_env_id(env_id)
        except gym_error.Error:  # not of the form of an id
            return None
        highest = registration.find_highest_version(namespace, name) if version is None else None
        found = None if highest is None else gym.registry.get(registration.get_env_id(namespace, name, highest))
    return found


def register_namespace(env_id: str) -> None:
    """Import the module that registers the ids of a namespace, where it is installed."""
    module = NAMESPACES.get(env_id.partition("/")[0])
    if module is not None and importlib.util.find_spec(module) is not None:
        gym.register_envs(importlib.import_module(module))
