"""Implementations by name or by dotted path: how a user adds one without touching the package."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from zmqrl.errors import ConfigError

T = TypeVar("T")
NEAR = 0.7
"""Names of three letters that differ in one have 0.67: `sac` is not what `a2c` means."""
INSTALL = (
    "run the command in the directory that has it, install it on this host, or set PYTHONPATH (for another host: "
    "hosts.HOST.env.PYTHONPATH)"
)
"""The module of a kind, or one that it imports."""


def load(kind: str, package: str, base: type[T]) -> Any:
    """The concrete subclass of `base` that `kind` names.

    `kind` is a module of `package` that defines exactly one (`ppo`, `directory`), or `a.b:Name` for attribute Name of
    module a.b. ConfigError states what is wrong and names the nearest kind. It is returned as Any: the caller knows its
    constructor.
    """
    if ":" in kind:
        return _by_path(kind, base)
    names = modules(package, base)
    if kind not in names:
        near = difflib.get_close_matches(kind.lower(), names, n=1, cutoff=NEAR)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(names)
        raise ConfigError(f"unknown {_words(base)} {kind!r}; known: {known}; or a dotted path `module:Name`{hint}")
    found = list(concrete(f"{package}.{kind}", base))
    if len(found) != 1:
        raise ConfigError(f"module {package}.{kind} defines {len(found)} classes of {base.__name__}, not one")
    return found[0]


def _words(base: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()


def modules(package: str, base: type[T]) -> tuple[str, ...]:
    """Names of the modules of `package` that hold a kind of `base`; by their text, since some import torch.

    The last base of a kind is `base` itself or one named after it. Modules with a leading underscore, and classes that
    also name `ABC`, are not kinds.
    """
    return _modules(package, base.__name__)


@cache
def _modules(package: str, base: str) -> tuple[str, ...]:
    folder = importlib.import_module(package).__path__
    subclass = re.compile(rf"^class \w+\((?:\w+, )*\w*{base}\):", re.MULTILINE)
    found = (
        (info.name, Path(module_folder, f"{info.name}.py"))
        for module_folder in folder
        for info in pkgutil.iter_modules([module_folder])
    )
    kinds = ((name, path) for name, path in found if path.is_file() and not name.startswith("_"))
    return tuple(sorted(name for name, path in kinds if subclass.search(path.read_text())))


def concrete(module: str, base: type[T]) -> Iterator[type[T]]:
    """The concrete subclasses of `base` that `module` itself defines."""
    for item in vars(importlib.import_module(module)).values():
        own = inspect.isclass(item) and item.__module__ == module
        if own and issubclass(item, base) and not inspect.isabstract(item):
            yield item


def _by_path(path: str, base: type[T]) -> Any:
    module_name, _, attribute = path.partition(":")
    article = "an" if base.__name__[0] in "AEIO" else "a"
    refused = f"{path!r} cannot be loaded as {article} {base.__name__}"
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{refused}: {error}; {INSTALL}") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{refused}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError(f"{path!r} is not a subclass of {base.__name__}: found {found!r}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise ConfigError(f"{path!r} is not a complete {base.__name__}: these methods are not defined: {missing}")
    return found
