"""Whether the processes of a run can import the user's code: they do not execute the calling script or notebook.

Nothing is pickled: a class is named by its module, and each process imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from zmqrl.config.sections import Config, EnvSection
from zmqrl.errors import ConfigError, key_of
from zmqrl.loading import np
from zmqrl.planning.checked import call
from zmqrl.run_files.trust import modules_of
from zmqrl.supervision.served_call import Subject

MAIN, WRAPPERS = "__main__", "env.wrappers"


def check_own_code(config: Config) -> None:
    """Raise `ConfigError` for what the calling script defines or registers, and other processes cannot import."""
    for key, named in modules_of(config):
        refusal = of_main(key, named)
        if refusal is not None:
            raise refusal
    _check_registered(config.env, config.limits.start_s)


def of_main(key: str, named: str) -> ConfigError | None:
    """What is wrong where `named`, the value of a key, is a class of the calling script; else None."""
    module, _, name = named.partition(":")
    if module != MAIN:
        return None
    file = "my_envs" if key.startswith("env.") else f"my_{key.partition('.')[0]}"
    written = f"[{file}:{name}]" if key == WRAPPERS else f"{file}:{name}"
    what = f"{named!r} is defined in the calling script or notebook, which the processes of the run do not execute"
    fix = f"move the class to {file}.py and use "
    python_fix = f"{fix}{_as_class(file, name)}" if key == "env.id" else ""
    return ConfigError(what, key=key_of(key), fix=f"{fix}{key}={written}", python_fix=python_fix)


def _as_class(module: str, name: str) -> str:
    """An env as `zmqrl.train` takes it, without a text."""
    return f'env={{"id": {module}.{name}}} (import {module})'


def path_of(value: Any) -> str:
    """`module:Name` of a class or function, as a configuration names it.

    Raises:
        ConfigError: It is not at the top level of its module.
    """
    name = getattr(value, "__qualname__", type(value).__name__)
    if not name.isidentifier():
        raise ConfigError(
            f"{name} cannot be imported by the processes of the run", fix="move it to the top level of a module"
        )
    return f"{value.__module__}:{name}"


def _check_registered(env: EnvSection, limit_s: float) -> None:
    """An id of gymnasium that only this process knows, since the calling script has registered it."""
    if "gymnasium" not in sys.modules:  # then nothing is registered here
        return
    from zmqrl.envs.lookup import NAMESPACES, registered  # a command does without gymnasium

    spec = None if ":" in env.id or env.id.partition("/")[0] in NAMESPACES else registered(env.id)
    if spec is None:  # the probe reports an id that is unknown here
        return
    module, name = _module_of(spec.entry_point)
    package = "" if module == MAIN else module.partition(".")[0]
    subject = Subject(repr(env.id), ("env", "id"))
    found: str | None = call("registering_package", spec.id, package, subject=subject, limit_s=limit_s)
    if found == "":
        return
    python_fix = ""
    if found is not None:
        fix = f"use env.id={package}:{env.id}"
    elif module == MAIN or not name.isidentifier():
        name = name if name.isidentifier() else "Name"
        fix = f"move the class to my_envs.py and use env.id=my_envs:{name}"
        python_fix = f"move the class to my_envs.py and use {_as_class('my_envs', name)}"
    else:
        kwargs = f", env.kwargs={dict(spec.kwargs)}" if spec.kwargs else ""
        limit = "" if spec.max_episode_steps is None else f", env.max_episode_steps={spec.max_episode_steps}"
        fix = f"use env.id={module}:{name}{kwargs}{limit}"
        python_fix = "" if kwargs or limit else f"use {_as_class(module, name)}"
    raise ConfigError(
        f"{env.id!r} is registered only by the calling script or notebook, which the processes of the run do not "
        "execute",
        key=("env", "id"),
        fix=fix,
        python_fix=python_fix,
    )


def _module_of(entry_point: Any) -> tuple[str, str]:
    if isinstance(entry_point, str):
        module, _, name = entry_point.partition(":")
        return module, name
    return getattr(entry_point, "__module__", MAIN), getattr(entry_point, "__qualname__", "")


def plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def with_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides in which each class or function is its `module:Name`.

    Raises:
        ConfigError: A value is another object, such as an env.
    """
    return {key: _with_paths(key, value) for key, value in values.items()}


def _with_paths(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {path_of(k) if callable(k) else k: _with_paths(f"{key}.{k}", item) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_paths(key, item) for item in value]
    if callable(value):
        return path_of(value)
    value = plain(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ConfigError(f"an object of type {type(value).__name__}", key=key_of(key), fix=_instead_of(value))


def _instead_of(value: Any) -> str:
    import gymnasium as gym

    if isinstance(value, gym.Env):
        named = value.spec.id if value.spec is not None else path_of(type(value.unwrapped))
        return f'each process makes its own envs: give env={{"id": "{named}"}}'
    return "a value is a number, a text, a list, a mapping, or a class of a module"
