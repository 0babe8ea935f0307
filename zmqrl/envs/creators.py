"""What `env.id` and `env.wrappers` may name: it is judged before it is called, since a file may name anything."""

from __future__ import annotations

import functools
import inspect
import os
from types import FunctionType
from typing import Any

import gymnasium as gym

from zmqrl.errors import ConfigError
from zmqrl.plugins import form

MAKE_NO_ENV = (
    "zmqrl click matplotlib msgpack msgspec numpy paramiko pip psutil pydantic rich safetensors setuptools tensorboard "
    "torch yaml zmq"
)
"""Packages that every installation has, and whose functions make no env: `yaml:unsafe_load` executes what it reads."""
OF_PYTHON = ("<frozen ", os.path.join(os.path.dirname(os.__file__), ""))
INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages that may be inside the one of Python."""


def check_creator(env_id: str, found: Any) -> None:
    """Raise `ConfigError` unless `found`, which `env.id` names, is an env or a function that may return one."""
    if not _is_function(found) and not _is_class(found, "reset", "step"):
        raise ConfigError(
            f"env.id: {env_id!r} is {form(found)}, neither a class of envs nor a function that returns an env; "
            "functions of Python, of zmqrl and of the packages that it requires are not called"
        )


def check_wrapper(path: str, found: Any, parallel: bool) -> None:
    """As `check_creator`, of `env.wrappers`. `parallel`: the env has several agents, whose wrappers have no base."""
    is_class = _is_class(found, "step") or _is_class(found, "reset") if parallel else _is_class(found)
    if not _is_function(found) and not is_class:
        raise ConfigError(f"env.wrappers: {path!r}: {form(found)} is not a gymnasium.Wrapper, and was not called")


def _is_class(found: Any, *methods: str) -> bool:
    """A class of gymnasium envs, or one of another form of envs, by its methods."""
    if not inspect.isclass(found):
        return False
    is_env = issubclass(found, (gym.Env, gym.vector.VectorEnv))
    return is_env or (bool(methods) and all(callable(getattr(found, method, None)) for method in methods))


def _is_function(found: Any) -> bool:
    """Written in Python, neither of its library nor of `MAKE_NO_ENV`, whatever it is decorated or exported by."""
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        return False
    file, package = found.__code__.co_filename, str(found.__module__).partition(".")[0]
    return package not in MAKE_NO_ENV.split() and (
        not file.startswith(OF_PYTHON) or any(name in file for name in INSTALLED)
    )
