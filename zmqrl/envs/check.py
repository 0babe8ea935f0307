"""The check of an env before anything is started: a fault of its first steps costs no start of the processes."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from zmqrl.config.codec import replace, to_json
from zmqrl.config.hosts import near
from zmqrl.config.sections import EnvSection, Reduction
from zmqrl.envs.base import VectorEnv, close_env, random_actions
from zmqrl.envs.make import examined, for_scores, make_for_scores, make_single
from zmqrl.envs.masks import ignored_mask
from zmqrl.envs.repeats import check_state, memory_of
from zmqrl.envs.vector import make_seeded
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.messages.check import Stage, data_of
from zmqrl.metrics.episode_reports import EpisodeReports
from zmqrl.plugins import traceback_of
from zmqrl.random_streams import stream
from zmqrl.types import Array, EnvSpec

SETTLE_S = 2.0
"""After the first step: an env whose further steps take longer is left to the workers."""
QUICK_S = 1.0
"""Longest duration of the first steps of an env that is stepped again."""
FURTHER_S, STEPS, EPISODES = 0.3, 200, 2
"""After the first step: seconds at most, steps at most, and episodes whose end is enough."""


def check_env(section: EnvSection, seed: int | None) -> Generator[Stage, None, EnvSpec]:
    """Make an env; reset and step it as a worker will, with random actions and seeds of its own; close it.

    To be carried out in a check process (`zmqrl.supervision.check_process.call`).

    Seeds and actions follow from `seed`; None: the env is not stepped.

    Returns:
        Properties of the env, with remarks for the user.

    Raises:
        ConfigError: It cannot be made, its code raised, or it returned what its spaces do not allow.
    """
    yield Stage("construction")
    env, spec = examined(section)
    if seed is not None:
        begun, known = time.monotonic(), data_of(to_json(spec))
        drawn, report = stream(seed, "first steps"), section.report
        own = int(drawn.integers(1 << 31))  # whoever records episodes by their seed sees none of the run's
        steps = _steps(make_seeded(spec, lambda: env, spec.slots_per_env, own, 0, report=report), drawn, report)
        try:
            yield Stage("first reset and step")
            next(steps)
            yield Stage("further steps", known, SETTLE_S)
            next(steps, None)
        except EnvFault as fault:
            raise _error_of(fault, ignored_mask(env, spec)) from fault
        if time.monotonic() - begun < QUICK_S:
            yield Stage("episodes with the same seed", known, SETTLE_S)
            spec = replace(spec, remarks=tuple(remarks(env, section, spec, seed)))
        if spec.state is not None:
            close_env(env)
            yield Stage("get_state and set_state")
            check_state(partial(make_single, section), spec, seed)
    yield Stage("close")
    close_env(env)
    return spec


def remarks(env: Any, section: EnvSection, spec: EnvSpec, seed: int) -> Iterator[str]:
    """Lines for the user. `env` may be closed, and is not to be used again."""
    seed = int(stream(seed, "findings").integers(1 << 31))  # whoever records episodes by seeds sees none of the run's
    mask = ignored_mask(env, spec)
    if mask is not None:
        yield f"env.id: {mask}"
    memory = memory_of(for_scores(env), partial(make_for_scores, section), spec, seed)
    if memory is not None:
        layers = [str(entry if isinstance(entry, str) else next(iter(entry))) for entry in section.wrappers]
        wrapped = f" with {', '.join(path.rpartition(':')[2] for path in layers)}" if layers else ""
        yield f"env.id: {section.id!r}{wrapped} {memory}"


def _error_of(fault: EnvFault, mask: str | None) -> ConfigError:
    """`mask`: the ignored one; an action that it forbids may be what is wrong."""
    text = "" if fault.__cause__ is None else traceback_of(fault.__cause__)
    place = f" ({fault.place})" if fault.place else ""
    what = f"{fault.what}{place}{'' if mask is None else f'; {mask}'}\n{text}".rstrip()
    return ConfigError(what, key=("env", "id"), value=fault.subject)


def _steps(env: VectorEnv, drawn: np.random.Generator, report: Mapping[str, Reduction]) -> Iterator[None]:
    """Reset, and step with random actions: once, and when it is resumed as often as the limits allow."""
    begun = time.monotonic()
    obs = env.start()
    reset_s, step_s, resets_next, ended, end = time.monotonic() - begun, 0.0, False, 0, math.inf
    reports, valid, numbers = EpisodeReports(report, env.spec.id, (1, env.num_envs), 1), ~env.ended(), set[str]()
    for number in range(STEPS):
        begun = time.monotonic()
        if ended >= EPISODES or begun + (reset_s if resets_next else step_s) > end:
            return
        done = env.step(random_actions(env.spec, env.num_envs, drawn, obs))
        obs = done.obs
        if not resets_next:
            step_s = max(step_s, time.monotonic() - begun)
        over = done.terminated | done.truncated
        if env.reports is not None:
            numbers.update(env.reader.numbers())
            _observe(reports, env.reports, valid, over & valid, numbers)
        resets_next, valid = bool(over.all()), ~over
        ended += resets_next
        if not number:
            yield
            end = time.monotonic() + FURTHER_S


def _observe(reports: EpisodeReports, values: Array, valid: Array, done: Array, numbers: Collection[str]) -> None:
    """Count a step. ConfigError: an episode did not have a name of `env.report`; `numbers`: names that it had."""
    try:
        reports.observe(0, values[None], valid[None], done[None])
    except ConfigError as error:
        fix = near(error.key[-1], numbers).rstrip() or error.fix
        listed = ", ".join(sorted(numbers)) or "none"
        raise error.replaced(what=f"{error.what} (numbers of its info: {listed})", fix=fix) from None
