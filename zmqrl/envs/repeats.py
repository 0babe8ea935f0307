"""Whether an env repeats itself: after `reset` with an earlier seed, and in a state that it was in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zmqrl.envs.base import ALTERNATIVES, EnvSlotState, StepResult, VectorEnv, random_actions
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.random_streams import stream
from zmqrl.types import Array, EnvSpec

STEPS, LIMIT_S = 200, 0.3
"""Limits of a walk, which ends with the first episode: steps and seconds."""
LEAST_STATE_STEPS, STATE_STEPS = 12, 2000
"""Limits of the steps of a walk with saved states: an unrestored counter shows at the end of an episode."""
SAVED_AT = (1, 8, 32)
"""Steps after which a successor continues in the saved state."""
PARTS = ("observations", "rewards", "ends of episodes")
CONSEQUENCE = "scores, the best version, exports and a resume are of another policy than the one that was trained"
FIX = (
    "let reset(seed=...) restore all state of the env; in place of a wrapper that normalises, set "
    "algorithm.normalise_obs or algorithm.normalise_reward: their statistics are in the checkpoints"
)
Row = tuple[bytes, ...]
"""The bytes of each of `PARTS` in one step; of a reset those of the observations alone."""


@dataclass
class _Walk:
    """One episode, or its beginning."""

    rows: list[Row]
    actions: list[Array] = field(default_factory=list)
    saved: dict[int, tuple[EnvSlotState, ...]] = field(default_factory=dict)


def memory_of(env: Any, make: Callable[[], Any], spec: EnvSpec, seed: int) -> str | None:
    """Difference between two episodes of `env` with the same seed and actions, and its consequence. May close `env`."""
    used = make_seeded(spec, lambda: env, spec.slots_per_env, seed, 0)
    with suppress(EnvFault):  # the check of the first steps has found none; a later one is the workers' to report
        walk = _walked(used, seed, STEPS)
        differing = " and ".join(_differing(walk.rows, _repeated(used, walk.actions)))
        if not differing:
            return None
        used.close()  # a port or a licence may allow one env at a time
        one, other = (_in_new_env(make, spec, seed, walk.actions) for _ in range(2))
        if _differing(one, other):
            return (
                f"does not repeat itself: two new envs have other {differing} with the same seed and actions. Restarts "
                "and resumes are not bitwise identical; let reset(seed=...) seed all random numbers"
            )
        return (
            f"keeps state from episode to episode: with the same seed and actions it has other {differing} in its "
            f"second episode, so {CONSEQUENCE}; {FIX}"
        )
    return None


def _in_new_env(make: Callable[[], Any], spec: EnvSpec, seed: int, actions: Sequence[Array]) -> list[Row]:
    with closing(make_seeded(spec, make, spec.slots_per_env, seed, 0)) as env:
        return _repeated(env, actions)


def check_state(make: Callable[[], Any], spec: EnvSpec, seed: int) -> None:
    """Continue in saved states of an env of `make` in another one, as a successor does.

    Raises:
        ConfigError: `set_state` raised, or the new env differs.
    """
    try:
        with closing(make_seeded(spec, make, 1, seed, 0)) as first:
            walk = _walked(first, seed, STATE_STEPS, LEAST_STATE_STEPS)
        with closing(make_seeded(spec, make, 1, seed, 0)) as successor:
            again = {step: _repeated(successor, walk.actions[step:], states) for step, states in walk.saved.items()}
    except EnvFault as fault:
        raise ConfigError(str(fault), key=("env", "recovery"), value="'state'") from fault
    for step, rows in again.items():
        differing = _differing(walk.rows[step + 1 :], rows[1:])
        if differing:
            raise ConfigError(
                f"env.id {spec.id!r}: set_state restores only a part of the env: a new env in the state of "
                f"step {step} has other {' and '.join(differing)} in the next steps",
                key=("env", "recovery"),
                value="'state'",
                fix=(
                    "get_state must return everything that later steps depend on, counters and random number "
                    f"generators included (self.np_random.bit_generator.state), {ALTERNATIVES}"
                ),
                others=(("env", "id"),),
            )


def _walked(env: VectorEnv, seed: int, steps: int, least: int = 0) -> _Walk:
    drawn, until, count = stream(seed, "repeats"), time.monotonic() + LIMIT_S, env.num_envs
    obs = env.start()
    walk = _Walk([(obs.tobytes(),)])
    while len(walk.actions) < steps and (time.monotonic() < until or len(walk.actions) < least):
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
    """Members of `PARTS` that are not equal in all rows."""
    pairs = [zip(PARTS, a, b, strict=False) for a, b in zip(one, other, strict=True)]
    found = {part for row in pairs for part, a, b in row if a != b}
    return [part for part in PARTS if part in found]
