"""What `env.id` and `env.wrappers` may name: it is judged before it is called, since a file may name anything."""

from __future__ import annotations

import functools
import inspect
import os
from types import FunctionType
from typing import Any

import gymnasium as gym

from zmqrl.errors import ConfigError, key_of
from zmqrl.plugins import form

MAKE_NO_ENV = (
    "zmqrl click matplotlib msgpack msgspec numpy paramiko pip psutil pydantic rich safetensors setuptools tensorboard "
    "torch yaml zmq"
)
"""Packages that every installation has, and whose functions make no env: `yaml:unsafe_load` executes what it reads."""
OF_PYTHON = ("<frozen ", os.path.join(os.path.dirname(os.__file__), ""))
INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages that may be inside the one of Python."""


def check_called(key: str, path: str, found: Any, *methods: str) -> None:
    """Raise `ConfigError` unless `found`, which `path` names, may be called.

    It is a class of gymnasium envs, a class with `methods` where envs of another form are expected, or a function.
    """
    is_class = inspect.isclass(found) and (
        issubclass(found, (gym.Env, gym.vector.VectorEnv))
        or (bool(methods) and all(callable(getattr(found, method, None)) for method in methods))
    )
    if not is_class and not _makes_envs(found):
        raise ConfigError(
            f"{form(found)} is neither a class of envs or wrappers nor a function that returns one (functions of "
            "Python, of zmqrl and of the packages that it requires are not called)",
            key=key_of(key),
            value=repr(path),
        )


def _makes_envs(found: Any) -> bool:
    """Whether it is written in Python outside of these packages, whatever it is decorated or exported by."""
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType) or str(found.__module__).partition(".")[0] in MAKE_NO_ENV.split():
        return False
    file = found.__code__.co_filename
    return not file.startswith(OF_PYTHON) or any(name in file for name in INSTALLED)
