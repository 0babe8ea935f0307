"""What an env promises. A maker returns the `env` section of a configuration, which names the env."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState, VectorEnv, close_env, random_actions
from zmqrl.envs.make import make_single, probe, spec_of
from zmqrl.envs.slots import pass_numbers
from zmqrl.envs.vector import make_vector_env
from zmqrl.learner.env_slot_record import EnvSlotRecord
from zmqrl.learning import Progress, value_at
from zmqrl.planning import checked
from zmqrl.random_streams import stream
from zmqrl.replay.base import SegmentMeta
from zmqrl.spaces import ranges, view
from zmqrl.supervision import check_process
from zmqrl.supervision.served_call import Subject
from zmqrl.testing.expect import checks_of
from zmqrl.types import Array, EnvSpec, ModeName, SegmentId, Version

SEED = 5
STEPS = 40
ENDS, MOST_STEPS = 3, 20_000
OF_ALGORITHM = "epsilon"
"""Name of a number that algorithms send with each version: envs receive it too."""
MODES: tuple[ModeName, ...] = ("sync", "async")
"""Both vector forms: env by env, and in async gymnasium's native one where the env has it."""

EnvMaker: TypeAlias = Callable[[], EnvSection]
"""For example `lambda: EnvSection(id="my_module:MyEnv", max_episode_steps=200, kwargs={"size": 3})`."""
Row: TypeAlias = tuple[Array, ...]
"""obs, reward, terminated, truncated."""


def spaces_are_supported(make: EnvMaker) -> None:
    """Observations and actions are of the spaces in docs/envs.md, and the check before a run accepts the env.

    ConfigError names what is not. A class of the calling script, and an id that is registered in this process, stay in
    it; any other env is made in a check process.
    """
    section = make()
    spec = _checked(section) if ":" in section.id and not section.id.startswith("__main__:") else probe(section)
    assert spec.observation.nbytes, f"observations are empty: {spec.observation}"
    assert spec.action.nbytes, f"actions are empty: {spec.action}"


def shapes_and_dtypes_are_those_of_the_spaces(make: EnvMaker) -> None:
    """A vector env returns `obs [N, ...]`, `reward [N]` float64, and both flags `[N]` bool."""
    section = make()
    for mode in MODES:
        with _vector(section, mode) as env:
            shape, flags = (section.num_envs, *env.spec.observation.shape), (section.num_envs,)
            (first,), *rows = _play(env, STEPS)
            assert first.shape == shape
            for obs, reward, terminated, truncated in rows:
                assert obs.shape == shape
                assert reward.dtype == np.float64
                assert terminated.dtype == truncated.dtype == bool
                assert reward.shape == terminated.shape == truncated.shape == flags


def every_action_of_the_space_is_accepted(make: EnvMaker) -> None:
    """The policy may choose any action: each discrete one that no mask forbids, and the bounds of a Box."""
    section = make()
    action = probe(section).action
    if action.choices:
        for n in range(max(action.choices)):
            with _vector(section) as env:
                obs = env.start()
                env.step(_nearest_allowed(env, obs, n))
        return
    for side in (np.reshape(side, action.shape) for side in (action.low, action.high) if side):
        with _vector(section) as env:
            env.start()
            drawn = random_actions(env.spec, env.num_envs, stream(SEED, "unbounded"))
            env.step(np.where(np.isfinite(side), side, drawn).astype(action.dtype))


def _nearest_allowed(env: VectorEnv, obs: Array, n: int) -> Array:
    """Value `n` of each entry, or its last one; where a mask forbids it, another that is allowed."""
    action, mask = env.spec.action, env.spec.observation.action_mask
    found = random_actions(env.spec, env.num_envs, stream(SEED, "allowed"), obs)
    columns = found[:, None] if action.kind == "discrete" else found
    for entry, (begin, end) in enumerate(ranges(action.choices)):
        value = min(n, end - begin - 1)
        rows = np.ones(len(obs), bool) if mask is None else view(obs, env.spec.observation, mask)[:, begin + value] != 0
        columns[rows, entry] = value
    return found


def the_row_after_an_end_is_a_reset(make: EnvMaker) -> None:
    """NEXT_STEP autoreset: the step after an end resets, with reward 0 and both flags false."""
    section = make()
    for mode in MODES:
        with _vector(section, mode) as env:
            ends = 0
            ended: Array = np.zeros(section.num_envs, bool)
            for _, reward, terminated, truncated in list(_play(env, MOST_STEPS, ENDS))[1:]:
                assert not reward[ended].any(), "a reset has a reward"
                resets = _over(env, ended)
                assert not (terminated | truncated)[resets].any(), "a reset ends an episode"
                waits = ended & ~resets
                assert (terminated | truncated)[waits].all(), "an agent that has ended continues before its env resets"
                ended = terminated | truncated
                ends += int(_over(env, ended).sum())
            assert ends >= ENDS, f"{ends} episodes ended within {MOST_STEPS} steps: set max_episode_steps in the maker"


def the_same_seed_gives_the_same_bits(make: EnvMaker) -> None:
    """Two envs with the same seeds and actions return the same bits, in any process: what resume and restart rely on.

    An env for which this does not hold trains with `env.recovery: restart_episode`; its runs are not reproducible.
    """
    section = make()
    for mode in MODES:
        one, other = (_trace(section, mode) for _ in range(2))
        _same(one, other, "two envs with the same seed differ")


def a_reset_forgets_the_past(make: EnvMaker) -> None:
    """`reset(seed=...)` gives the same episode in a used env as in a new one."""
    section = make()
    with _vector(section) as used, _vector(section) as new:
        _episode(used, 1)
        for one, other in zip(_episode(used, 2), _episode(new, 2), strict=True):
            assert one.tobytes() == other.tobytes(), "an episode depends on the episode before it"


def a_successor_continues_with_the_same_bits(make: EnvMaker) -> None:
    """A worker that takes over repeats the actions of running episodes, and continues where its predecessor was."""
    section = make()
    record = EnvSlotRecord(section.num_envs, True, slots_per_env=probe(section).slots_per_env)
    with _vector(section) as env, _vector(section) as successor:
        actions: list[Array] = []
        rows = list(_play(env, STEPS, chosen=actions))
        half = STEPS // 2
        for t in range(half):
            columns = {"action": actions[t], "terminated": rows[t + 1][2], "truncated": rows[t + 1][3]}
            meta = SegmentMeta(SegmentId(0, 0, t), Version(0, 0), section.num_envs)
            record.advance(meta, {name: column[None] for name, column in columns.items()})
        again: list[Row] = [(np.array(successor.start(record.states())),)]
        again += [tuple(np.array(part) for part in successor.step(chosen)) for chosen in actions[half:]]
        _same([rows[half][:1], *rows[half + 1 :]], again, "repeated actions led to another state")


def a_saved_state_continues_with_the_same_bits(make: EnvMaker) -> None:
    """A successor in the saved state continues as the predecessor, with `env.recovery: state`."""
    section = make()
    if probe(section).state is None:
        return
    with _vector(section) as env, _vector(section) as successor:
        rows, rng = list(_play(env, 1)), stream(SEED, "testing state")
        saved = [
            EnvSlotState(
                state=state, obs=rows[-1][0][slot], elapsed=1, resetting=bool((rows[-1][2] | rows[-1][3])[slot])
            )
            for slot, state in enumerate(np.array(env.states()))
        ]
        successor.start(tuple(saved))
        row = rows[-1]
        for _ in range(STEPS):
            chosen = random_actions(env.spec, env.num_envs, rng, row[0])
            row = _step(env, chosen)
            _same([row], [_step(successor, chosen)], "an env in a saved state differs")


def numbers_leave_the_spaces_as_they_are(make: EnvMaker) -> None:
    """`on_progress` of the env and its wrappers accepts the numbers of every version, before a reset and between steps.

    The numbers are those of `schedule` of the section over its points, and that of an algorithm. After each call the
    spaces are those of the constructor, and what the env returns is of them.
    """
    section = make()
    points = (number for number in section.schedule.values() if isinstance(number, tuple))
    versions = [Progress(SEED, step, 0, 1) for step in sorted({0, *(step for of in points for step, _ in of)})]
    numbers = [{OF_ALGORITHM: 0.5, **{n: value_at(v, now) for n, v in section.schedule.items()}} for now in versions]
    with _vector(section) as played:
        played.on_progress(numbers[0])
        for step, _ in enumerate(_play(played, STEPS)):
            played.on_progress(numbers[step % len(numbers)])
    env = make_single(section)
    try:
        before = spec_of(section, env)
        for received in numbers:
            pass_numbers(env, received)
            after = spec_of(section, env)
            assert after == before, f"other spaces after on_progress({received}): {after}, before {before}"
    finally:
        close_env(env)


def it_closes_twice(make: EnvMaker) -> None:
    """`close`, where an env has it, raises nothing, also when it is called again. A run ignores what it raises."""
    env = make_single(make())
    env.reset(seed=SEED)
    for _ in range(2):
        getattr(env, "close", lambda: None)()


def _checked(section: EnvSection) -> EnvSpec:
    subject = Subject(repr(section.id), ("env", "id"))
    with check_process.none_left():
        return from_json(EnvSpec, checked.call("env", to_json(section), SEED, subject=subject))


@contextmanager
def _vector(section: EnvSection, mode: ModeName = "sync") -> Iterator[VectorEnv]:
    env = make_vector_env(section, probe(section), mode, SEED, 0)
    try:
        yield env
    finally:
        env.close()


def _step(env: VectorEnv, actions: Array) -> Row:
    return tuple(np.array(part) for part in env.step(actions))


def _play(env: VectorEnv, steps: int, ends: int | None = None, chosen: list[Array] | None = None) -> Iterator[Row]:
    """The first observation, then a row per step, until `ends` episodes have ended and a step after that.

    The actions are appended to `chosen`.
    """
    row: Row = (np.array(env.start()),)
    yield row
    rng, left = stream(SEED, "testing"), ends
    for _ in range(steps):
        last = left is not None and left <= 0
        actions = random_actions(env.spec, env.num_envs, rng, row[0])
        if chosen is not None:
            chosen.append(actions)
        row = _step(env, actions)
        yield row
        if last:
            return
        if left is not None:
            left -= int(_over(env, row[2] | row[3]).sum())


def _over(env: VectorEnv, ended: Array) -> Array:
    """Bool `[N]`: of those that have ended, the ones whose env resets next: the other agents have ended too."""
    agents = env.spec.slots_per_env
    over: Array = ended.reshape(-1, agents).all(axis=1).repeat(agents)
    return over


def _trace(section: EnvSection, mode: ModeName) -> list[Row]:
    with _vector(section, mode) as env:
        return list(_play(env, STEPS))


def _episode(env: VectorEnv, episode: int) -> list[Array]:
    """Observations from the reset into `episode` on, `STEPS` of them."""
    rng = stream(SEED, "past")
    seen = [np.array(env.start((EnvSlotState(episode),) * env.num_envs))]
    for _ in range(STEPS):
        seen.append(np.array(env.step(random_actions(env.spec, env.num_envs, rng, seen[-1])).obs))
    return seen


def _same(ones: list[Row], others: list[Row], text: str) -> None:
    for step, (one, other) in enumerate(zip(ones, others, strict=True)):
        for part, (a, b) in enumerate(zip(one, other, strict=True)):
            name = ("obs", "reward", "terminated", "truncated")[part]
            assert a.tobytes() == b.tobytes(), f"{text}: {name} at step {step}: {a} and {b}"


ENV = checks_of(__name__)
