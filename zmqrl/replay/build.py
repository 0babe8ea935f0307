"""The replay that an algorithm requests."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.replay.prioritised import Priorities, PrioritisedReplay
from zmqrl.replay.uniform import UniformReplay
from zmqrl.types import Array


def build_replay(
    columns: Mapping[str, Array], capacity: int, seed: int, prioritised: Mapping[str, float] | None
) -> UniformReplay:
    """Uniform, or prioritised by `Algorithm.prioritised`; `capacity` is in env steps, rounded up to segments."""
    _, steps, envs = columns["reward"].shape
    max_segments = -(-capacity // (steps * envs))
    if prioritised is None:
        return UniformReplay(columns, max_segments, seed)
    known = {name: prioritised[name] for name in ("alpha", "beta", "epsilon", "uniform_mix") if name in prioritised}
    return PrioritisedReplay(columns, max_segments, seed, Priorities(**known))
