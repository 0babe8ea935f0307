"""Arguments of envs and wrappers: `{python: module:Name}` and `{tuple: [...]}` are what plain data cannot hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from zmqrl.errors import ConfigError
from zmqrl.plugins import named

PYTHON, TUPLE, INDEX = "python", "tuple", "{index}"
RETRIED = (TypeError, ValueError, AssertionError)


def called(
    function: Callable[..., Any], given: tuple[Any, ...], arguments: Mapping[str, Any], index: int, key: str
) -> Any:
    """`function(*given, **arguments)`; a list becomes a tuple where an annotation or an exception requires one.

    Args:
        function: Makes an env, or wraps one.
        given: Positional arguments.
        arguments: Keyword arguments as files have them.
        index: Of the env.
        key: Where they were written, for messages.

    Raises:
        ConfigError: A text is given for a function, or a name cannot be imported.
    """
    found = {name: resolved(value, index, f"{key}: {name}") for name, value in arguments.items()}
    with suppress(TypeError, ValueError):  # a class without a signature
        for name, parameter in inspect.signature(function).parameters.items():
            annotation, value = str(parameter.annotation).lower(), found.get(name)
            if isinstance(value, list) and "tuple" in annotation:
                found[name] = _tuples(value)
            if isinstance(value, str) and "callable" in annotation and "str" not in annotation:
                raise _not_a_function(f"{key}: {name}", value)
    try:
        return function(*given, **found)
    except RETRIED:
        again = {name: _tuples(value) for name, value in found.items()}
        if again == found:
            raise
        with suppress(*RETRIED):
            return function(*given, **again)
        raise


def resolved(value: Any, index: int, key: str) -> Any:
    """`value` with objects for the forms, and with the index. ConfigError begins with `key`."""
    if isinstance(value, str):
        if value.lstrip().startswith("lambda"):
            raise _not_a_function(key, value)
        return index if value == INDEX else value.replace(INDEX, str(index))
    if isinstance(value, (list, tuple)):
        return type(value)(resolved(item, index, key) for item in value)
    if isinstance(value, Mapping):
        if list(value) == [PYTHON] and isinstance(path := value[PYTHON], str):
            return named(path, f"{key}: {{{PYTHON}: {path!r}}}")
        if list(value) == [TUPLE] and isinstance(value[TUPLE], list):
            return tuple(resolved(value[TUPLE], index, key))
        return {name: resolved(inner, index, key) for name, inner in value.items()}
    return value


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _not_a_function(key: str, text: str) -> ConfigError:
    return ConfigError(
        f"{key}: {text!r} is text, not a function",
        fix="define a function in a module of yours and write {python: my_envs:NAME}, which also names classes and "
        "dtypes ({python: numpy:float32})",
    )
