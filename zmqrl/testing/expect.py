"""What the suites compare with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


def raises(kind: type[E], call: Callable[[], object]) -> E:
    """The error of `kind` that `call` raises. AssertionError when it returns; another error passes through."""
    try:
        found = call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, {found!r:.200} returned")


def is_frozen_config(config: Any) -> None:
    """AssertionError unless `config` can be the `Config` of a kind."""
    assert dataclasses.is_dataclass(config), f"Config is not a dataclass: {config!r}"
    frozen = getattr(config, "__dataclass_params__").frozen  # noqa: B009 - typeshed does not list it
    assert frozen, f"{config!r} is not frozen: @dataclass(frozen=True)"


def until(what: Callable[[], Any], text: str, deadline_s: float, every_s: float = 0.02) -> Any:
    """The first true value of `what`, which is called every `every_s`. AssertionError after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not (found := what()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {text}"
        time.sleep(every_s)
    return found
