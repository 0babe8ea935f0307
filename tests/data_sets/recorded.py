"""Random episodes, and the frames that a recording of them has: written here from the definition of NEXT_STEP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqrl.data_sets.episodes import Episode, frame_dtype
from zmqrl.types import Array, ColumnSpec, EnvSpec

STEPS = 4


def episode(env: EnvSpec, rng: np.random.Generator, length: int, ended: bool = True) -> Episode:
    """Random rows of the spaces of `env`."""
    obs, action = env.observation, env.action
    flags = np.zeros((2, length), bool)
    flags[rng.integers(2), -1] = ended
    return Episode(_values(obs, rng, length + 1), _values(action, rng, length), _rewards(rng, length), *flags)


def _rewards(rng: np.random.Generator, length: int) -> Array:
    return rng.normal(size=length).astype(np.float32)


def _values(space, rng, rows):  # type: ignore[no-untyped-def]
    if space.kind == "discrete":
        return rng.integers(0, space.n, rows)
    if space.kind == "multi_discrete":
        return rng.integers(0, space.nvec, (rows, len(space.nvec)))
    if space.dtype == "uint8" and not space.parts:
        return rng.integers(0, 256, (rows, *space.shape), np.uint8)
    if space.parts:
        out = np.zeros((rows, *space.shape), space.dtype)
        for part in space.parts:
            begin = part.offset // out.itemsize
            flat = np.ascontiguousarray(_values(part.space, rng, rows)).reshape(rows, -1)
            flat = flat if space.dtype == "float32" else flat.view(np.uint8)
            out[:, begin : begin + flat.shape[1]] = flat
        return out
    return rng.uniform(-1, 1, (rows, *space.shape)).astype(space.dtype)


def columns_of(env: EnvSpec, slots: int) -> tuple[ColumnSpec, ...]:
    """Of a segment of STEPS rows."""
    flags = (ColumnSpec(name, "bool", (STEPS, slots)) for name in ("terminated", "truncated", "valid"))
    return (
        ColumnSpec("obs", env.observation.dtype, (STEPS + 1, slots, *env.observation.shape)),
        ColumnSpec("action", env.action.dtype, (STEPS, slots, *env.action.shape)),
        ColumnSpec("reward", "float32", (STEPS, slots)),
        *flags,
    )


def frames_of(env: EnvSpec, lanes: Sequence[Sequence[Episode]]) -> Array:
    """Frames of one vector env whose env slot k plays `lanes[k]`, one row at a time."""
    rows = [[row for one in lane for row in _rows(one)] for lane in lanes]
    count = -(-max(map(len, rows)) // STEPS)
    frames = np.zeros(count, frame_dtype(columns_of(env, len(lanes))))
    frames["id"][:, 2], frames["continues"][1:] = np.arange(count), True
    for slot, lane in enumerate(rows):
        for at, (obs, action, reward, terminated, truncated, valid, after) in enumerate(lane):
            frame, t = divmod(at, STEPS)
            frames["obs"][frame, t, slot], frames["obs"][frame, t + 1, slot] = obs, after
            frames["action"][frame, t, slot], frames["reward"][frame, t, slot] = action, reward
            frames["terminated"][frame, t, slot], frames["truncated"][frame, t, slot] = terminated, truncated
            frames["valid"][frame, t, slot] = valid
    frames["rows"] = frames["valid"].sum((1, 2))
    return frames


def _rows(one):  # type: ignore[no-untyped-def]
    for t in range(len(one.reward)):
        flags = one.terminated[t], one.truncated[t], True
        yield one.obs[t], one.action[t], one.reward[t], *flags, one.obs[t + 1]
    if one.terminated[-1] or one.truncated[-1]:
        yield one.obs[-1], one.action[-1], 0.0, False, False, False, np.zeros_like(one.obs[-1])


def assert_equal(found: Sequence[Episode], expected: Sequence[Episode]) -> None:
    """The same episodes in the same order, bit for bit."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name, array in vars(other).items():
            own = getattr(one, name)
            assert own.dtype == array.dtype and np.array_equal(own, array), name
