"""Why an env cannot be made: the key at fault, the cause, the place in the user's code, and the fix."""

from __future__ import annotations

import difflib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium import error as gym_error

from zmqrl.config.sections import EnvSection
from zmqrl.errors import ConfigError

EXTRAS = {
    "box2d": "box2d",
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "ALE": "atari",
    "minatar": "minatar",
    "pettingzoo": "pettingzoo",
    "mpe2": "pettingzoo",
}
"""Extras of zmqrl by what an error text or an id mentions."""
OLD_ATARI = re.compile(r"(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)-v\d")
"""Ids of Atari games before gymnasium 1.0."""
OF_FILE = re.compile(r"(?:\./)?([\w/]+)\.py:(\w+)")
"""A class by the file of its module."""
FOREIGN = tuple(
    os.path.join(path, "")
    for path in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))
)
"""Folders of code that is not the user's: Python, installed packages, zmqrl."""
CALLERS = (os.path.join("zmqrl", "envs", "make.py"), os.path.join("gymnasium", "envs", "registration.py"))
"""Where envs and wrappers are called."""
BY_CREATOR = "was raised from the environment creator for"
"""In the text of a TypeError that `gymnasium.make` has raised from the one of an env."""


def explain(section: EnvSection, error: Exception) -> ConfigError:
    """The configuration error behind `error`, which making the env of `section` raised."""
    if isinstance(error, ConfigError):
        return error
    inner = _original(error)
    subject = f"env.id: {section.id!r}"
    if (meant := _dotted_path(section.id, error)) is not None:
        return ConfigError(f"{subject}: a class of a module is written module:Class; did you mean {meant!r}?")
    if isinstance(error, gym_error.UnregisteredEnv):
        return _unregistered(section, error)
    missing = _not_found(subject, section.id, error) or _missing(
        subject, error, f"{section.id} {_entry_point(section.id)}"
    )
    if missing is not None:
        return missing
    if section.kwargs and _refuses(inner, section.kwargs):
        return ConfigError(f"env.kwargs: {dict(section.kwargs)} are not accepted by {section.id!r}: {_text(inner)}")
    return ConfigError(f"{subject} cannot be created: {described(error)}")


def _dotted_path(env_id: str, error: Exception) -> str | None:
    """`module:Class` of an id that names the class as `module.Class` or by the file, `module.py:Class`."""
    if (named := OF_FILE.fullmatch(env_id)) is not None and isinstance(error, (ModuleNotFoundError, TypeError)):
        return f"{named[1].replace('/', '.')}:{named[2]}"
    if re.fullmatch(r"\w+(\.\w+)+", env_id) and isinstance(error, gym_error.UnregisteredEnv):
        module, _, name = env_id.rpartition(".")
        return f"{module}:{name}"
    return None


def explain_wrapper(path: str, arguments: Mapping[str, Any], error: Exception) -> ConfigError:
    """The configuration error behind `error`, which importing or applying the wrapper `path` raised."""
    if isinstance(error, ConfigError):
        return error
    subject = f"env.wrappers: {path!r}"
    missing = _not_found(subject, path, error) or _missing(subject, error, path)
    if missing is not None:
        return missing
    if _refuses(error, arguments):
        given = f"the arguments {dict(arguments)!r:.80} are not accepted" if arguments else "arguments are missing"
        return ConfigError(f"{subject}: {given}: {_text(error)}")
    given = f" {dict(arguments)!r:.80}" if arguments else ""
    return ConfigError(f"{subject}{given} cannot be applied: {described(error)}")


def described(error: Exception) -> str:
    """Type, text, and `file:line, in function` of the last frame of the user's code, else of the last of all."""
    inner = _original(error)
    text = f"{type(inner).__name__}: {_text(inner)}".removesuffix(": ")
    if isinstance(inner, SyntaxError) and inner.filename:
        return f"{text} ({shown_path(inner.filename)}:{inner.lineno})"
    frames = [*traceback.extract_tb(error.__traceback__), *traceback.extract_tb(inner.__traceback__)]
    last = ([frame for frame in frames if _is_own(frame)] or frames or [None])[-1]
    return text if last is None else f"{text} ({shown_path(last.filename)}:{last.lineno}, in {last.name})"


def _is_own(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith((*FOREIGN, "<"))


def shown_path(path: str) -> str:
    """Relative where it is below the working directory."""
    found, here = Path(path), Path.cwd()
    return str(found.relative_to(here)) if found.is_relative_to(here) else path


def _original(error: Exception) -> Exception:
    """Without the frame of `gymnasium.make` around a TypeError of an env."""
    context = error.__context__
    return context if BY_CREATOR in str(error) and isinstance(context, Exception) else error


def _refuses(error: Exception, arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments do not fit: the call itself raised, or what one of `arguments` was passed on to."""
    if not isinstance(error, TypeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.endswith(CALLERS) or any(
        f"unexpected keyword argument {name!r}" in str(error) for name in arguments
    )


def _unregistered(section: EnvSection, error: Exception) -> ConfigError:
    if any(map(_is_own, traceback.extract_tb(error.__traceback__))):  # of the user's factory
        package = "ale_py" if "ALE" in str(error) else "the package that registers it"
        fix = f"import {package} in that file"
        return ConfigError(f"env.id: {section.id!r} cannot be created: {described(error)}; {fix}")
    if section.id.partition("/")[0] in EXTRAS:
        fix = _install(f"{section.id} {error}", None)
        return ConfigError(f"env.id: {section.id!r} needs a package that is missing; {fix}")
    return ConfigError(f"env.id: no env is registered as {section.id!r}{_near(section.id)}")


def _not_found(subject: str, path: str, error: Exception) -> ConfigError | None:
    """The module of `module:Name` itself, which is the user's own or of a package; None where the error is another."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    module, _, name = path.partition(":")
    if absent is None or not f"{module}.".startswith(f"{absent}.") or absent in EXTRAS:
        return None
    parent = absent.rpartition(".")[0]
    file = f"{absent}.py" if absent == module else f"{absent}/"
    install = "" if name.isidentifier() else "install it, "
    fix = f"{install}run the command in the directory that contains {file}, or set PYTHONPATH"
    if parent:
        fix = f"{parent!r} was found, and has no such module"
    return ConfigError(f"{subject}: module {absent!r} was not found; {fix}")


def _missing(subject: str, error: Exception, hints: str) -> ConfigError | None:
    """A package that is not installed; None where the error is another one."""
    name = getattr(error, "name", None)
    if isinstance(error, gym_error.DependencyNotInstalled):
        return ConfigError(f"{subject} needs a package that is missing; {_install(f'{hints} {error}', name)}")
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(f"{subject} needs {name!r}, which is missing; {_install(f'{hints} {error}', name)}")
    return None


def _near(env_id: str) -> str:
    if (game := OLD_ATARI.fullmatch(env_id)) is not None:
        return f"; in gymnasium it is 'ALE/{game[1]}-v5' (pip install \"zmqrl[atari]\"), see the preset pong-ppo"
    module, colon, name = env_id.partition(":")
    if colon and module in sys.modules:
        return f"; module {module!r} has no {name!r}, and registers no env of this id"
    names = list(gym.registry)
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(env_id.lower(), list(by_lower), n=1, cutoff=0.5)
    if found:
        return f"; did you mean {by_lower[found[0]]!r}?"
    package = "" if colon else f"`package:{env_id}` for an env that a package registers, "
    return f"; write {package}`module:Class` for your own"


def _entry_point(env_id: str) -> str:
    spec = gym.registry.get(env_id)
    return "" if spec is None else str(spec.entry_point)


def _install(hints: str, missing: str | None) -> str:
    for text, extra in EXTRAS.items():
        if text in hints:
            return f'run: pip install "zmqrl[{extra}]"'
    return f"run: pip install {missing}" if missing else "install it"


def _text(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
