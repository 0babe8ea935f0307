"""What the suites compare with."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from zmqrl.types import Array, Weights

E = TypeVar("E", bound=BaseException)
PROCESSES, TRIES = 4, 3
IDLE_S = 0.25
"""`processes_s` of a machine with two cores of 2024 that does nothing else."""


def checks_of(module: str) -> tuple[Callable[[Any], None], ...]:
    """The suite of a module: its public functions with the one argument `make`, in their order."""
    found = [each for each in vars(sys.modules[module]).values() if inspect.isfunction(each)]
    own = [each for each in found if each.__module__ == module and not each.__name__.startswith("_")]
    return tuple(each for each in own if [*inspect.signature(each).parameters] == ["make"])


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


def is_same(one: Weights, other: Weights, what: str) -> None:
    """AssertionError names the arrays that differ in a bit."""
    assert one.keys() == other.keys(), f"{what}: other names: {sorted(one.keys() ^ other.keys())}"
    differing = [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert not differing, f"{what}: other bits: {differing}"


def are_first_values(one: Weights, again: Weights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """AssertionError unless these arrays have `shapes`, are float32, finite and C-contiguous, and the same twice."""
    assert {name: array.shape for name, array in one.items()} == dict(shapes)
    for name, array in one.items():
        assert array.dtype == np.float32, f"{name} is {array.dtype}"
        assert np.isfinite(array).all(), f"{name} is not finite"
        assert array.flags.c_contiguous, name
        assert array.tobytes() == again[name].tobytes(), f"{name}: two calls differ"


def difference(one: Array, other: Array) -> float:
    """Largest difference of an entry, relative where the entries of `other` are large."""
    return float(np.abs(one - other).max() / max(1.0, float(np.abs(other).max())))


def until(what: Callable[[], Any], text: str, deadline_s: float, every_s: float = 0.02) -> Any:
    """The first true value of `what`, which is called every `every_s`. AssertionError after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not (found := what()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {text}"
        time.sleep(every_s)
    return found


def processes_s() -> float:
    """Seconds in which processes that start at once, like those of a run, import numpy and end: a yardstick."""
    begun = time.monotonic()
    started = [subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(PROCESSES)]
    for process in started:
        assert process.wait() == 0
    return time.monotonic() - begun


def assert_within(took_s: float, idle_s: float, text: str = "it") -> None:
    """AssertionError when `text` took more than `idle_s`, which is for an idle machine: a slower one has more."""
    if took_s > idle_s:
        allowed_s = idle_s * max(processes_s() for _ in range(TRIES)) / IDLE_S
        assert took_s <= allowed_s, f"{text} took {took_s:.1f} s; at most {allowed_s:.1f} s at this machine's speed"
