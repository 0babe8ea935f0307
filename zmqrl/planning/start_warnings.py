"""Warnings at the start of a run that trains, but hardly learns."""

from __future__ import annotations

from collections.abc import Iterator

from zmqrl.acting.make_head import make_head
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, Progress
from zmqrl.config.sections import Config, EnvSection, RunSection
from zmqrl.envs.lookup import registered
from zmqrl.types import EnvSpec, SpaceSpec

LARGE_BOUND, SMALL_WIDTH = 10.0, 0.1
"""Limits of the bounds of actions, which are drawn around 0 with a deviation of about 1, and clipped."""
LARGE_ONE_HOT = 100_000
"""Numbers of a row of the network's input that stand for discrete observations."""
RESCALE = '{"gymnasium.wrappers:RescaleAction": {min_action: -1, max_action: 1}}'
FIXED = "an action that cannot change: correct the bounds, or remove the entry by a wrapper in env.wrappers"
FAR = f"far from [-1, 1], and actions are drawn around 0 with a deviation of 1: add {RESCALE} to env.wrappers"


def zero_learning_rate(run: RunSection, algorithm: Algorithm) -> Iterator[str]:
    """A warning when the schedules take the learning rate to 0 before `run.total_env_steps`."""
    horizon = run.schedule_env_steps or run.total_env_steps
    rate = algorithm.learning_rate(Progress(run.seed, horizon, 0, horizon))
    if horizon < run.total_env_steps and rate == 0.0:
        yield (
            f"the learning rate is 0 from {horizon:,} env steps on (run.schedule_env_steps), and run.total_env_steps "
            f"is {run.total_env_steps:,}: later env steps change no weights; a new run with run.schedule_env_steps="
            f"{run.total_env_steps} trains to its end"
        )


def slow_target(config: Config, algorithm: Algorithm) -> Iterator[str]:
    """A warning when the target network needs a tenth of all updates, or more, to follow the online network."""
    every, tau = (getattr(algorithm.config, key, None) for key in ("target_update_every", "target_tau"))
    updates = config.replay.ratio * (config.run.total_env_steps - config.replay.learning_starts)
    if isinstance(every, int) and isinstance(tau, float) and every > 1 and every / tau > 0.1 * updates:
        yield (
            f"algorithm.target_tau: {tau:g}: mixed in every {every:,} updates (algorithm.target_update_every), the "
            f"target network follows within about {every / tau:,.0f} of {updates:,.0f} updates; "
            "set algorithm.target_update_every=1, or algorithm.target_tau=null to copy the network"
        )


def without_version(env: EnvSection) -> Iterator[str]:
    """A warning when gymnasium chooses the version of the env; call it after the env was made."""
    found = None if ":" in env.id else registered(env.id)
    if found is not None and found.id != env.id:
        yield f"env.id: {env.id!r} has no version: {found.id!r} is used, the highest one of gymnasium"


def space_warnings(env: EnvSpec, acting: ActingSpec) -> Iterator[str]:
    """Warnings: action bounds far from [-1, 1] where the head does not scale to them, large one-hot observations."""
    if env.action.is_bounded and not make_head(acting, 1).needs_bounds:
        yield from _far_bounds(env.action)
    values = sum(sum(leaf.space.choices) for leaf in env.observation.leaves())
    if values > LARGE_ONE_HOT:
        yield (
            f"env.id: {env.id!r}: its discrete observations have {values:,} values, which the network receives one-hot "
            f"({values * 4 / 1e6:,.1f} MB for each observation): use a wrapper that returns coordinates or digits"
        )


def _far_bounds(action: SpaceSpec) -> Iterator[str]:
    found: dict[str, list[int]] = {FIXED: [], FAR: []}
    for entry, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if low == high:
            found[FIXED].append(entry)
        elif max(-low, high) > LARGE_BOUND or high - low < SMALL_WIDTH or low > 0 or high < 0:
            found[FAR].append(entry)
    for what, (first, *others) in ((what, entries) for what, entries in found.items() if entries):
        bounds = f"action bounds [{action.low[first]:g}, {action.high[first]:g}]"
        further = f" and {len(others)} more" if others else ""
        yield f"env.id: {bounds} (entry {first} of {len(action.low)}{further}): {what}"
