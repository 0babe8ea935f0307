"""The columns of a segment as replay reads them, and whether a specification fits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from zmqrl.errors import ConfigError
from zmqrl.replay.base import ReplaySample, SequenceSample
from zmqrl.replay.spec import ReplaySpec
from zmqrl.types import FIXED_COLUMNS, OTHER_COLUMNS, PREVIOUS

FIXED = frozenset((*FIXED_COLUMNS, *OTHER_COLUMNS))
STATE_PREFIX = "state."
"""`state.<name> [T / k, N, size]`: the recurrent state with which every k-th row was acted."""

WINDOWS = 4
"""Windows of n steps that a segment has, at least, in single and sync, where segments are short."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of the columns of one segment, by name."""


def extra_columns(shapes: Shapes) -> tuple[str, ...]:
    """Names of the extra columns `[T, N, ...]`."""
    names = (name for name in shapes if name not in FIXED and not name.startswith(STATE_PREFIX))
    return tuple(name for name in names if shapes[name][:2] == shapes["reward"])


def state_columns(shapes: Shapes) -> dict[str, int]:
    """Names of the columns of recurrent states, each with its k."""
    steps, _ = shapes["reward"]
    return {name: steps // max(1, shape[0]) for name, shape in shapes.items() if name.startswith(STATE_PREFIX)}


def check_columns(spec: ReplaySpec, shapes: Shapes, is_deterministic: bool = False) -> None:
    """Refuse a specification that does not fit the columns of a segment, in single and sync or in async.

    Raises:
        ConfigError: It names field or key, and what would fit.
    """
    _check_extras(spec, shapes)
    _check_first_priority(spec, shapes)
    if spec.length:
        _check_length(spec, shapes["reward"][0])
        _check_states(spec, shapes)
    elif STATE_PREFIX + PREVIOUS in shapes:
        what, fix = "transitions have no previous action and reward", "set length: sequences have them"
        raise ConfigError(what, key=("ReplaySpec", "length"), value="0", fix=fix)
    else:
        _check_n_step(spec, shapes["reward"][0], is_deterministic)


def _check_extras(spec: ReplaySpec, shapes: Shapes) -> None:
    """A batch has extra columns and the fields of samples side by side."""
    taken = {field.name for field in fields(SequenceSample if spec.length else ReplaySample)}
    for name in extra_columns(shapes):
        if name in taken:
            raise ConfigError(f"acting: extra {name!r} has the name of a field of replay's samples; use another name")


def _check_first_priority(spec: ReplaySpec, shapes: Shapes) -> None:
    name = spec.first_priority
    fitting = [extra for extra in extra_columns(shapes) if shapes[extra] == shapes["reward"]]
    if name is not None and name not in fitting:
        known = ", ".join(fitting) or "none"
        what = f"must be an extra column [T, N] of acting(): {known}"
        raise ConfigError(what, key=("ReplaySpec", "first_priority"), value=repr(name))


def _check_length(spec: ReplaySpec, steps: int) -> None:
    rows = spec.burn_in + spec.length
    if steps < rows:
        what = f"is too short for sequences of {rows} rows (burn_in {spec.burn_in} + length {spec.length})"
        fix = f"it must be at least {rows}"
        raise ConfigError(what, key=("env", "segment_steps"), value=str(steps), is_subject=True, fix=fix)
    rest = (steps - rows) % spec.every
    if rest:
        raise ConfigError(
            f"the last {rest} rows of a segment would never be learned from (sequences of {rows} rows, "
            f"one every {spec.every})",
            key=("env", "segment_steps"),
            value=str(steps),
            fix=f"write {steps - rest} or {steps - rest + spec.every}",
        )


def _check_n_step(spec: ReplaySpec, steps: int, is_deterministic: bool) -> None:
    least = spec.n_step * (WINDOWS if is_deterministic and spec.n_step > 1 else 1)
    if steps < least:
        modes = "in single, sync and pipelined" if is_deterministic else "in async"
        raise ConfigError(
            f"is too short for n_step {spec.n_step} {modes}: the last rows of a segment have targets of fewer rewards",
            key=("env", "segment_steps"),
            value=str(steps),
            is_subject=True,
            fix=f"it must be at least {least}",
        )


def _check_states(spec: ReplaySpec, shapes: Shapes) -> None:
    steps, envs = shapes["reward"]
    for name, every in state_columns(shapes).items():
        shape = shapes[name]
        if every * shape[0] != steps or shape[1] != envs:
            raise ConfigError(f"column {name}: {shape}: must be (T / k, N, size) with T {steps} and N {envs}")
        if spec.every % every:
            what = f"must be a multiple of {every}, the rows between two states of column {name}"
            fix = f"or set ActingSpec.state_every to a divisor of {spec.every}"
            raise ConfigError(what, key=("ReplaySpec", "stride"), value=str(spec.every), fix=fix)
