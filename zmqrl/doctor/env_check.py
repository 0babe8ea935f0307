"""What a worker of this host would find of the env: can it be made, how fast is it, does it repeat itself."""

from __future__ import annotations

import hashlib
import io
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from msgspec import structs

from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import VectorEnv, random_actions
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.parallel import is_parallel
from zmqrl.envs.vector import make_seeded, make_vector_env
from zmqrl.errors import ZmqrlError
from zmqrl.learner.env_slot_record import EnvSlotRecord
from zmqrl.messages.doctor import EnvFacts
from zmqrl.random_streams import stream
from zmqrl.replay.base import SegmentMeta
from zmqrl.types import MODES, Array, EnvSpec, ModeName, SegmentId, SpaceSpec, Version

RATE_S = 0.3
WALK_CPU_S = 0.6
"""Processor time of a walk: on a loaded machine it lasts longer and finds the same."""
WALK_SHARE = 0.25
"""Share of the limit of the whole check: the longest duration of a walk, for an env that waits in its steps."""
WALK_STEPS = 200
WALK_ENVS = 8
"""Each with its own seed: an env that only now and then does not repeat itself is found too."""
WARM_UP_STEPS = 3
LEAST_STEPS = 20
MOST_ADVICE = 10
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class _VectorWalk:
    """One vector env stepped with fixed actions: what was seen, and what a successor receives after half of it."""

    seen: list[Array]
    actions: list[Array]
    record: EnvSlotRecord
    half: int


def examine_env(section: EnvSection, mode: ModeName, seed: int, limit_s: float) -> Iterator[EnvFacts]:
    """What is known after each stage, so that an env which hangs or dies in one does not take the others along.

    `limit_s`: how long the caller waits for the last stage.
    """
    facts = EnvFacts()
    yield facts
    try:
        spec = probe(section)
        facts = structs.replace(facts, stage="steps", spaces=_spaces(spec))
        yield facts
        if spec.vector_only and not MODES[mode].deterministic:
            yield structs.replace(facts, stage="done", steps_per_s=_steps_per_s(section, spec, mode, seed))
            return
        facts = structs.replace(facts, stage="repeat", steps_per_s=_steps_per_s(section, spec, mode, seed))
        yield facts
        facts = structs.replace(_repeats(facts, section, spec, seed, WALK_SHARE * limit_s), stage="checker")
        yield facts
    except ZmqrlError as error:
        yield structs.replace(facts, error=str(error))
        return
    yield structs.replace(_checked(facts, section), stage="done")


def _spaces(spec: EnvSpec) -> str:
    def text(space: SpaceSpec) -> str:
        if space.parts:
            return ", ".join(f"{part.name}: {text(part.space)}" for part in space.parts)
        if space.choices:
            return f"discrete {' '.join(map(str, space.choices))}"
        return f"{space.dtype} {list(space.shape)}"

    return f"{text(spec.observation)} -> {text(spec.action)}"


def _steps_per_s(section: EnvSection, spec: EnvSpec, mode: ModeName, seed: int) -> float:
    """Env steps of one process without a policy."""
    env = make_vector_env(section, spec, mode, seed, 0)
    try:
        obs = env.start()
        generator, masked = stream(seed, "doctor"), spec.observation.action_mask is not None
        chosen = [random_actions(spec, section.num_envs, generator) for _ in range(0 if masked else 64)]

        def actions(step: int) -> Array:
            return random_actions(spec, section.num_envs, generator, obs) if masked else chosen[step % len(chosen)]

        for step in range(WARM_UP_STEPS):
            obs = env.step(actions(step)).obs
        begun, steps = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begun) < RATE_S:
            obs = env.step(actions(steps)).obs
            steps += 1
        return steps * section.num_envs / elapsed
    finally:
        env.close()


def _repeats(facts: EnvFacts, section: EnvSection, spec: EnvSpec, seed: int, walk_s: float) -> EnvFacts:
    """Walk; have a successor take over at half, as after a worker's death; compare the other half bit by bit."""
    slots = WALK_ENVS * spec.slots_per_env
    make = partial(make_seeded, spec, partial(make_single, section), slots, seed, 0)
    walk = _walked(make, spec, seed, walk_s)
    successor = make()
    try:
        again = [successor.start(walk.record.states()).copy()]
        again += [successor.step(actions).obs.copy() for actions in walk.actions[walk.half :]]
    finally:
        successor.close()
    pairs = list(zip(walk.seen[walk.half :], again, strict=True))
    differs = [any(a[slot].tobytes() != b[slot].tobytes() for a, b in pairs) for slot in range(slots)]
    wrong = int(np.reshape(differs, (WALK_ENVS, -1)).any(axis=1).sum())
    differing = f"{wrong} of {WALK_ENVS} envs" if wrong else None
    digest = hashlib.sha256(b"".join(obs.tobytes() for obs in walk.seen[:LEAST_STEPS])).hexdigest()
    return structs.replace(facts, repeats=not wrong, differing=differing, digest=digest[:16])


def _walk_clock(walk_s: float) -> Callable[[], float]:
    """Part of a walk's time that has passed: of its processor time or of `walk_s`, whichever is nearer to its end."""
    cpu, wall = time.process_time(), time.monotonic()
    return lambda: max((time.process_time() - cpu) / WALK_CPU_S, (time.monotonic() - wall) / walk_s)


def _walked(make: Callable[[], VectorEnv], spec: EnvSpec, seed: int, walk_s: float) -> _VectorWalk:
    env, generator = make(), stream(seed, "doctor walk")
    record = EnvSlotRecord(env.num_envs, True, slots_per_env=spec.slots_per_env)
    passed, half = _walk_clock(walk_s), 0
    seen: list[Array] = []
    actions: list[Array] = []
    try:
        seen.append(env.start().copy())
        while len(actions) < WALK_STEPS and (passed() < 1 or len(actions) < LEAST_STEPS):
            actions.append(random_actions(spec, env.num_envs, generator, seen[-1]))
            step = env.step(actions[-1])
            seen.append(step.obs.copy())
            in_time = passed() < 0.5 and len(actions) <= WALK_STEPS // 2
            if half == len(actions) - 1 and (in_time or len(actions) <= LEAST_STEPS // 2):
                columns = {"action": actions[-1], "terminated": step.terminated, "truncated": step.truncated}
                rows = {name: column[None] for name, column in columns.items()}
                record.advance(SegmentMeta(SegmentId(0, 0, half), Version(0, 0), env.num_envs), rows)
                half += 1
    finally:
        env.close()
    return _VectorWalk(seen, actions, record, half)


def _checked(facts: EnvFacts, section: EnvSection) -> EnvFacts:
    """The checker of gymnasium without rendering, or that of PettingZoo for several agents."""
    env: Any = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env = make_single(section)
            if is_parallel(env):
                _check_parallel(env)
            else:
                check_env(env.unwrapped, skip_render_check=True)
        except Exception as error:  # noqa: BLE001 - the checker asserts, and the user's code may raise anything
            return structs.replace(facts, checker=_first_line(error), advice=_advice(caught))
        finally:
            if env is not None:
                env.close()
    return structs.replace(facts, checker="", advice=_advice(caught))


def _check_parallel(env: Any) -> None:
    try:
        from pettingzoo.test import parallel_api_test
    except ImportError:
        return  # an env may have the API without the package
    with redirect_stdout(io.StringIO()):
        parallel_api_test(env, num_cycles=LEAST_STEPS)


def _advice(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_COLOUR.sub("", str(one.message)) for one in caught))[:MOST_ADVICE]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
