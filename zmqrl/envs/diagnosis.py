"""Why an env could not be made, as one message that names key, value and the way out."""

from __future__ import annotations

import difflib

import gymnasium as gym
from gymnasium import error as gym_error

from zmqrl.config.sections import EnvSection
from zmqrl.errors import ConfigError

EXTRAS = {"box2d": "box2d", "Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "ALE": "atari"}
"""Extras of zmqrl by what an error text or an id mentions."""


def explain(section: EnvSection, error: Exception) -> ConfigError:
    """The configuration error behind `error`, which making the env of `section` raised."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, gym_error.DependencyNotInstalled):
        way_out = _install(section, error)
        return ConfigError(f"env.id: {section.id!r} needs a package that is missing ({error}); {way_out}")
    if isinstance(error, gym_error.UnregisteredEnv):
        return _unregistered(section, error)
    if isinstance(error, ImportError):
        missing = error.name or str(error)
        module = section.id.partition(":")[0]
        if f"{module}.".startswith(f"{missing}."):
            return ConfigError(f"env.id: {section.id!r}: module {missing!r} was not found{_near(section.id)}")
        return ConfigError(f"env.id: {section.id!r} needs {missing!r}, which is missing; {_install(section, error)}")
    if isinstance(error, TypeError) and section.kwargs:
        kwargs = dict(section.kwargs)
        return ConfigError(f"env.kwargs: {kwargs} are not accepted by {section.id!r}: {_first_line(error)}")
    return ConfigError(f"env.id: {section.id!r} cannot be created: {type(error).__name__}: {_first_line(error)}")


def _unregistered(section: EnvSection, error: Exception) -> ConfigError:
    namespace = section.id.partition("/")[0]
    if namespace in EXTRAS:
        return ConfigError(f"env.id: {section.id!r} needs a package that is missing; {_install(section, error)}")
    return ConfigError(f"env.id: no env is registered as {section.id!r}{_near(section.id)}")


def _near(env_id: str) -> str:
    names = list(gym.registry)
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(env_id.lower(), list(by_lower), n=1, cutoff=0.5)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else "; write `module:Class` for your own env"


def _install(section: EnvSection, error: Exception) -> str:
    spec = gym.registry.get(section.id)
    hints = f"{section.id} {error} {spec.entry_point if spec is not None else ''}"
    for word, extra in EXTRAS.items():
        if word in hints:
            return f'run: pip install "zmqrl[{extra}]"'
    missing = getattr(error, "name", None)
    return f"run: pip install {missing}" if missing else "install it"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
