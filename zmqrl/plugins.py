"""Implementations by name or by dotted path: how a user adds one without touching the package."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
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
HERE = os.path.join(str(Path(__file__).parent), "")
FOREIGN = (*(os.path.join(path, "") for path in map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))), HERE)
"""Folders of code that is not the user's: Python, installed packages, zmqrl."""


def load(kind: str, package: str, base: type[T]) -> Any:
    """The concrete subclass of `base` that `kind` names.

    `kind` is a module of `package`, or of a package in it, that defines exactly one (`ppo`, `directory`), or `a.b:Name`
    for attribute Name of module a.b. ConfigError states what is wrong and names the nearest kind. It is returned as
    Any: the caller knows its constructor.
    """
    if ":" in kind:
        return _by_path(kind, base)
    names = modules(package, base)
    if kind not in names:
        known, hint = ", ".join(names), did_you_mean(kind, names)
        raise ConfigError(
            f"unknown {_words(base)} {kind!r}", fix=f"known: {known}; or a dotted path `module:Name`{hint}"
        )
    module = f"{package}.{_modules(package, base.__name__)[kind]}"
    found = list(concrete(module, base))
    if len(found) != 1:
        raise ConfigError(f"module {module} defines {len(found)} classes of {base.__name__}, not one")
    return found[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` of the nearest known name, else nothing."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is like `name` apart from upper and lower case; None: none is."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=NEAR)
    return by_lower[near[0]] if near else None


def named(path: str, refused: str) -> Any:
    """What `path`, `module:Name`, names. The message of its `ConfigError` begins with `refused`."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{refused}: {error}", fix=INSTALL) from error
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(f"{refused}: {described(error)}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{refused}: {lacks(module, name)}")
    return getattr(module, name)


def lacks(module: Any, name: str) -> str:
    """That `module` has no attribute `name`, and the nearest that it has, or the user's file that it hides."""
    text, file = f"module {module.__name__!r} has no {name!r}", Path(f"{module.__name__.replace('.', os.sep)}.py")
    if file.is_file() and not (used := getattr(module, "__file__", None) or "built in").endswith(str(file.absolute())):
        return f"{text}: it is that of Python or of a package ({used}), which hides {file}; rename the file"
    return f"{text}{did_you_mean(name, dir(module))}"


def described(error: BaseException, cause: BaseException | None = None) -> str:
    """Type, text, and `file:line, in function` of the last frame of the user's code, else of another package.

    `cause` is the error to name where `error` was raised while it was handled.
    """
    inner = cause or error
    if isinstance(inner, SyntaxError) and inner.filename:
        return f"{type(inner).__name__}: {inner.msg} ({shown_path(inner.filename)}:{inner.lineno})"
    text = f"{type(inner).__name__}: {first_line(inner)}".removesuffix(": ")
    last = last_frame(error, inner)
    return text if last is None else f"{text} ({shown_path(last.filename)}:{last.lineno}, in {last.name})"


def traceback_of(error: BaseException) -> str:
    """The traceback of `error` without the frames of zmqrl that it begins with; empty where all are."""
    shown, callers = traceback.TracebackException.from_exception(error), (HERE, importlib.__file__, "<frozen importlib")
    while shown.stack and shown.stack[0].filename.startswith(callers):
        del shown.stack[0]
    return "".join(shown.format()).rstrip() if shown.stack else ""


def last_frame(*errors: BaseException) -> traceback.FrameSummary | None:
    """The last frame of the user's code, else of another package."""
    frames = [frame for error in errors for frame in traceback.extract_tb(error.__traceback__)]
    own = list(filter(is_own, frames)) or [frame for frame in frames if not frame.filename.startswith(HERE)]
    return own[-1] if own else None


def is_own(frame: traceback.FrameSummary) -> bool:
    """Whether it is of the user's code."""
    return not frame.filename.startswith((*FOREIGN, "<"))


def shown_path(path: str) -> str:
    """Relative where it is below the working directory."""
    found, here = Path(path), Path.cwd()
    return str(found.relative_to(here)) if found.is_relative_to(here) else path


def first_line(error: BaseException) -> str:
    """First line of the error's text."""
    return (str(error).splitlines() or [""])[0]


def form(found: Any) -> str:
    """What an object is, for a message: `class Net`, `function loads`, `an object of type int`."""
    if inspect.isclass(found):
        return f"class {found.__name__}"
    return f"function {found.__name__}" if inspect.isroutine(found) else f"an object of type {type(found).__name__}"


def _words(base: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()


def modules(package: str, base: type[T]) -> tuple[str, ...]:
    """Names of the modules of `package` that hold a kind of `base`; by their text, since some import torch.

    A module may be in a package of `package`. The last base of a kind is `base` itself or one named after it. Modules
    with a leading underscore, and classes that also name `ABC`, are not kinds.
    """
    return tuple(sorted(_modules(package, base.__name__)))


@cache
def _modules(package: str, base: str) -> Mapping[str, str]:
    """The modules with a kind, dotted from `package` on, by their last names."""
    subclass = re.compile(rf"^class \w+\((?:\w+, )*\w*{base}\):", re.MULTILINE)
    files = (file for folder in importlib.import_module(package).__path__ for file in _files(folder))
    return {n.rpartition(".")[2]: n for n, path in files if subclass.search(path.read_text(encoding="utf-8"))}


def _files(folder: str, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Dotted name and text of each module in a folder and in the packages in it."""
    for info in pkgutil.iter_modules([folder]):
        name, path = f"{prefix}{info.name}", Path(folder, info.name)
        if info.ispkg:
            yield from _files(str(path), f"{name}.")
        elif path.with_suffix(".py").is_file() and not info.name.startswith("_"):
            yield name, path.with_suffix(".py")


def concrete(module: str, base: type[T]) -> Iterator[type[T]]:
    """The concrete subclasses of `base` that `module` itself defines."""
    for item in vars(importlib.import_module(module)).values():
        own = inspect.isclass(item) and item.__module__ == module
        if own and issubclass(item, base) and not inspect.isabstract(item):
            yield item


def _by_path(path: str, base: type[T]) -> Any:
    article = "an" if base.__name__[0] in "AEIO" else "a"
    found = named(path, f"{path!r} cannot be loaded as {article} {base.__name__}")
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError.about(repr(path), f"is not a subclass of {base.__name__}: found {form(found)}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        what = f"is not a complete {base.__name__}: these methods are not defined: {missing}"
        raise ConfigError.about(repr(path), what)
    return found
