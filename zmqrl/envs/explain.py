"""Why an env cannot be made: the key at fault, the cause, the place in the user's code, and the fix."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import error as gym_error

from zmqrl.config.sections import EnvSection
from zmqrl.errors import ConfigError, Key
from zmqrl.plugins import described, first_line, is_own, lacks, nearest

ID, WRAPPERS = ("env", "id"), ("env", "wrappers")
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
OF_FILE = re.compile(r"(?:\./)?([\w/]+)\.py(?::(\w+))?")
"""A class by the file of its module, or the file alone."""
ENV_ID = re.compile(r"(?:[\w.-]+:)?(?:[\w-]+/)?[\w.-]+")
"""An id of gymnasium, or `module:Class`."""
RLLIB = re.compile(r"required positional argument: '(env_)?con(fig|text)'")
"""Text of a TypeError of a constructor with RLlib's one argument."""
CALLERS = (os.path.join("zmqrl", "envs", "arguments.py"), os.path.join("gymnasium", "envs", "registration.py"))
"""Where envs and wrappers are called."""
BY_CREATOR = "was raised from the environment creator for"
"""Part of the text of a TypeError that `gymnasium.make` has raised from the one of an env."""


def explain(section: EnvSection, error: Exception) -> ConfigError:
    """The configuration error behind `error`, which making the env of `section` raised."""
    if isinstance(error, ConfigError):
        return error
    inner = _original(error)
    if (fix := _own_class(section.id, error)) is not None:
        return ConfigError("a class of a module is written module:Class", key=ID, value=repr(section.id), fix=fix)
    if ENV_ID.fullmatch(section.id) is None:
        fix = _alike(section.id) or "write an id such as CartPole-v1, or module:Class"
        return _about(ID, section.id, "is not an env id", fix)
    if isinstance(error, (gym_error.UnregisteredEnv, gym_error.DeprecatedEnv)):
        return _unregistered(section, error)
    hints = f"{section.id} {_entry_point(section.id)}"
    missing = _not_found(ID, section.id, error) or _missing(ID, section.id, error, hints)
    if missing is not None:
        return missing
    if section.kwargs and _refuses(inner, section.kwargs):
        what, value = f"are not accepted by {section.id!r}: {first_line(inner)}", str(dict(section.kwargs))
        return ConfigError(what, key=("env", "kwargs"), value=value, is_subject=True)
    given = f" with env.kwargs {dict(section.kwargs)!r:.80}" if section.kwargs else ""
    rllib = "for an env in RLlib's form set env.kwargs: {config: {...}}" if RLLIB.search(str(inner)) else ""
    return _about(ID, section.id, f"cannot be created{given}: {described(error, inner)}", rllib)


def not_an_env(section: EnvSection, env: Any) -> ConfigError:
    """The configuration error for what the id makes, with the known API that it has."""
    made = f"makes {type(env).__name__}, which"
    if hasattr(env, "agent_iter"):
        fix = "name its parallel_env (module:parallel_env), or return pettingzoo.utils.aec_to_parallel(env)"
        return _about(ID, section.id, f"{made} has PettingZoo's AEC API", fix)
    if callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None)):
        fix = (
            "derive it. For an env of the old gym, name a function that returns shimmy.GymV21CompatibilityV0(env=...), "
            "or GymV26CompatibilityV0 (pip install shimmy)"
        )
        return _about(ID, section.id, f"{made} is not derived from gymnasium.Env", fix)
    what = f"{made} is neither a gymnasium.Env nor a PettingZoo env with the parallel API"
    return _about(ID, section.id, what)


def _about(key: Key, value: str, what: str, fix: str = "") -> ConfigError:
    """An error whose sentence begins with the value."""
    return ConfigError(what, key=key, value=repr(value), is_subject=True, fix=fix)


def _own_class(env_id: str, error: Exception) -> str | None:
    """The fix for an id that names a class as `module.Class` or by the file, `module.py:Class`, or a module alone."""
    if (named := OF_FILE.fullmatch(env_id)) is not None:
        module, name = named[1].replace("/", "."), named[2] or ""
    elif re.fullmatch(r"\w+(\.\w+)*", env_id) and isinstance(error, gym_error.UnregisteredEnv):
        module, _, name = (env_id, "", "") if _is_module(env_id) else env_id.rpartition(".")
    else:
        return None
    if not module:
        return None
    return f"did you mean {f'{module}:{name}'!r}?" if name else f"write {module}:NAME"


def _is_module(name: str) -> bool:
    """Whether `name` is that of a file: a folder without `__init__.py` may have any purpose."""
    with contextlib.suppress(Exception):  # the packages above it are imported
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None
    return False


def explain_wrapper(path: str, arguments: Mapping[str, Any], error: Exception) -> ConfigError:
    """The configuration error behind `error`, which importing or applying the wrapper `path` raised."""
    if isinstance(error, ConfigError):
        return error
    missing = _not_found(WRAPPERS, path, error) or _missing(WRAPPERS, path, error, path)
    if missing is not None:
        return missing
    if _refuses(error, arguments):
        given = f"the arguments {dict(arguments)!r:.80} are not accepted" if arguments else "arguments are missing"
        return ConfigError(f"{given}: {first_line(error)}", key=WRAPPERS, value=repr(path))
    given = f"{dict(arguments)!r:.80} " if arguments else ""
    return _about(WRAPPERS, path, f"{given}cannot be applied: {described(error)}")


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
    is_deprecated = isinstance(error, gym_error.DeprecatedEnv)
    if any(map(is_own, traceback.extract_tb(error.__traceback__))):  # of the user's factory
        package = "ale_py" if "ALE" in str(error) else "the package that registers it"
        fix = "" if is_deprecated else f"import {package} in that file"
        return _about(ID, section.id, f"cannot be created: {described(error)}", fix)
    if is_deprecated:
        return _about(ID, section.id, "is deprecated", _near(section.id))
    if section.id.partition("/")[0] in EXTRAS:
        return _about(ID, section.id, "needs a package that is missing", _install(section.id, None))
    return ConfigError(f"no env is registered as {section.id!r}", key=ID, fix=_near(section.id))


def _not_found(key: Key, path: str, error: Exception) -> ConfigError | None:
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
    return ConfigError(f"module {absent!r} was not found", key=key, value=repr(path), fix=fix)


def _missing(key: Key, path: str, error: Exception, hints: str) -> ConfigError | None:
    """A package that is not installed; None where the error is another one."""
    name = getattr(error, "name", None)
    if isinstance(error, gym_error.DependencyNotInstalled):
        cause = first_line(error).rstrip(".")  # the text of gymnasium names the package
        return _about(key, path, f"needs a package that is missing: {cause}", _install(f"{hints} {error}", name))
    if isinstance(error, ModuleNotFoundError):
        return _about(key, path, f"needs {name!r}, which is missing", _install(f"{hints} {error}", name))
    return None


def _near(env_id: str) -> str:
    if (game := OLD_ATARI.fullmatch(env_id)) is not None:
        return f"in gymnasium it is 'ALE/{game[1]}-v5' (extra atari of zmqrl), see the preset pong-ppo"
    module, colon, name = env_id.partition(":")
    if colon and module in sys.modules:
        return lacks(sys.modules[module], name)
    package = "" if colon else f"`ALE/NAME-v5` for an Atari game, `package:{env_id}` for an env of a package, "
    return _alike(env_id) or f"write {package}`module:Class` for your own"


def _alike(env_id: str) -> str:
    """The newest version of the env whose name is like that of `env_id`."""
    newest = {_unversioned(name): name for name in gym.registry}  # versions are registered in their order
    near = nearest(_unversioned(env_id), newest)
    return "" if near is None else f"did you mean {newest[near]!r}?"


def _unversioned(env_id: str) -> str:
    return re.sub(r"^ALE/|-v\d+$", "", env_id)


def _entry_point(env_id: str) -> str:
    spec = gym.registry.get(env_id)
    return "" if spec is None else str(spec.entry_point)


def _install(hints: str, missing: str | None) -> str:
    """The line that installs a package, where it is known."""
    extra = next((extra for text, extra in EXTRAS.items() if text in hints), None)
    if extra is not None:
        return f"run in the checkout of zmqrl: pip install '.[{extra}]'"
    return f"install the package that contains the module {missing!r}" if missing else ""
