"""Spaces in which a run trains, but hardly learns: warnings at its start."""

from __future__ import annotations

from collections.abc import Iterator

from zmqrl.acting.heads import make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.types import EnvSpec, SpaceSpec

LARGE_BOUND, SMALL_WIDTH = 10.0, 0.1
"""Of actions that are drawn around 0 with a deviation of about 1, and clipped."""
LARGE_ONE_HOT = 100_000
"""Numbers of a row of the network's input that stand for discrete observations."""
RESCALE = '{"gymnasium.wrappers:RescaleAction": {min_action: -1, max_action: 1}}'


def space_warnings(env: EnvSpec, acting: ActingSpec) -> Iterator[str]:
    """Of action bounds far from [-1, 1] where the head does not scale to them, and of large one-hot observations."""
    if env.action.is_bounded and not make_head(acting, 1).needs_bounds:
        yield from _far_bounds(env.action)
    values = sum(sum(leaf.space.choices) for leaf in env.observation.leaves())
    if values > LARGE_ONE_HOT:
        yield (
            f"env.id: {env.id!r}: its discrete observations have {values:,} values, which the network receives one-hot "
            f"({values * 4 / 1e6:,.1f} MB for each observation): steps and updates are slow; use a wrapper that "
            "returns coordinates or digits"
        )


def _far_bounds(action: SpaceSpec) -> Iterator[str]:
    bounds = list(zip(action.low, action.high, strict=True))
    fixed = [(low, high) for low, high in bounds if low == high]
    far = [
        (low, high)
        for low, high in bounds
        if low < high and (max(-low, high) > LARGE_BOUND or high - low < SMALL_WIDTH or low > 0 or high < 0)
    ]
    for found, what in (
        (fixed, "an action that cannot change: correct the bounds, or remove the entry by a wrapper in env.wrappers"),
        (far, f"far from [-1, 1], and actions are drawn around 0 with a deviation of 1: add {RESCALE} to env.wrappers"),
    ):
        if found:
            low, high = found[0]
            entry = f"entry {bounds.index(found[0])} of {len(bounds)}"
            further = f" and {len(found) - 1} more" if len(found) > 1 else ""
            yield f"env.id: action bounds [{low:g}, {high:g}] ({entry}{further}): {what}"
