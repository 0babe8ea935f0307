"""Whether an env repeats itself: after `reset` with an earlier seed, and in a state that it was in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.envs.base import ALTERNATIVES, EnvSlotState, StepResult, VectorEnv, random_actions
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import stream
from zmqrl.types import Array, EnvSpec

STEPS, LIMIT_S = 2000, 0.3
"""Of a walk, which ends with the first episode: steps and seconds at most."""
SAVED_AT = (1, 8, 32)
"""Steps after which a successor continues in the saved state."""
PARTS = ("observations", "rewards", "ends of episodes")
CONSEQUENCE = "scores, the best version, exports and a resume are then of another policy than the one that was trained"
Row = tuple[bytes, ...]
"""The bytes of each of `PARTS` in one step; of a reset those of the observations alone."""


@dataclass
class _Walk:
    """One episode, or its beginning."""

    rows: list[Row]
    actions: list[Array] = field(default_factory=list)
    saved: dict[int, tuple[EnvSlotState, ...]] = field(default_factory=dict)


def remarks(env: Any, make: Callable[[], Any], spec: EnvSpec, seed: int) -> Iterator[str]:
    """What the user should know of `env`, whose first steps have no fault. Closes `env`.

    Args:
        env: Of `make`, and used before.
        make: Makes a further env.
        spec: Its properties.
        seed: Of the episodes here.

    Raises:
        ConfigError: `set_state` raised, or restores only a part.
    """
    if spec.state is not None:
        try:
            _check_state(env, make, spec, seed)
        except EnvFault as fault:
            raise ConfigError(f"env.recovery: 'state': {fault}") from fault
    yield from ()


def _check_state(env: Any, make: Callable[[], Any], spec: EnvSpec, seed: int) -> None:
    """Continue in saved states of `env` in a new env, as a successor does. ConfigError when the new env differs."""
    first = make_seeded(spec, lambda: env, 1, seed, 0)
    walk = _walked(first, seed)
    first.close()  # a port or a licence may allow one at a time
    successor = make_seeded(spec, make, 1, seed, 0)
    try:
        for step, states in walk.saved.items():
            rows = _repeated(successor, walk.actions[step:], states)
            differing = _differing(walk.rows[step + 1 :], rows[1:])
            if differing:
                raise ConfigError(
                    f"env.recovery: 'state': env.id {spec.id!r}: set_state restores only a part of the env: a new env "
                    f"in the state of step {step} has other {' and '.join(differing)} in the next steps; get_state "
                    f"must return everything that later steps depend on, counters and random number generators "
                    f"included (self.np_random.bit_generator.state), {ALTERNATIVES}"
                )
    finally:
        successor.close()


def _walked(env: VectorEnv, seed: int) -> _Walk:
    drawn, until, count = stream(seed, "repeats"), time.monotonic() + LIMIT_S, env.num_envs
    obs = env.start()
    walk = _Walk([(obs.tobytes(),)])
    while len(walk.actions) < STEPS and time.monotonic() < until:
        walk.actions.append(random_actions(env.spec, count, drawn, obs))
        step = env.step(walk.actions[-1])
        obs = step.obs
        walk.rows.append(_row(step))
        if (step.terminated | step.truncated).all():
            break
        if env.spec.state is not None and (taken := len(walk.actions)) in SAVED_AT:
            saved = EnvSlotState(state=np.array(env.states()[0]), obs=obs[0].copy(), elapsed=taken)
            walk.saved[taken] = (saved,)
    return walk


def _repeated(env: VectorEnv, actions: Sequence[Array], states: tuple[EnvSlotState, ...] | None = None) -> list[Row]:
    return [(env.start(states).tobytes(),), *(_row(env.step(chosen)) for chosen in actions)]


def _row(step: StepResult) -> Row:
    return step.obs.tobytes(), step.reward.tobytes(), step.terminated.tobytes() + step.truncated.tobytes()


def _differing(one: Sequence[Row], other: Sequence[Row]) -> list[str]:
    """Of `PARTS` those that are not equal in all rows."""
    pairs = [zip(PARTS, a, b, strict=False) for a, b in zip(one, other, strict=True)]
    found = {part for row in pairs for part, a, b in row if a != b}
    return [part for part in PARTS if part in found]
