"""An env that names episode and step in each observation and records every step, and the rows that it wrote."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from zmqrl.drill.journal import HEADER_BYTES, mapped_file, new_path
from zmqrl.types import Array, SegmentMeta

ACTIONS = 4
DIGESTS = 65_521
"""A prime: digests are below it."""
SEED_HIGH, SEED_LOW, T, DIGEST = range(4)
HALF = 1 << 16

ROW = np.dtype(
    [
        ("vector_env", "<i4"),
        ("env", "<i4"),
        ("incarnation", "<i8"),
        ("index", "<i8"),
        ("seed", "<i4"),
        ("t", "<i4"),
        ("digest", "<i4"),
        ("action", "<i4"),
    ]
)
"""One env step: the first four fields identify its segment, the rest is from the env's observation."""


EPISODE_LIMIT = 100
"""Above every episode's length: it cuts none, and bounds what a handover carries."""
SUFFIX = "steps"
EPISODES = 1 << 16
"""Episodes that one file holds."""
COUNT, STALLED = 0, 1
"""Words of the header: episodes begun; set from outside: the next step never returns."""
STALL_POLL_S = 0.1
_SERIALS = itertools.count()


def episode_steps(seed: int) -> int:
    """Length of the episode that was reset with `seed`: 20 to 80."""
    return 20 + seed % 61


def ends_truncated(seed: int) -> bool:
    """Every other episode is cut, the rest terminate."""
    return seed % 2 == 0


def next_digest(digest: Any, action: Any) -> Any:
    """Digest of all actions of an episode, numbers or arrays: each later row shows a successor that repeats others."""
    return (31 * digest + action + 1) % DIGESTS


def rows_of(columns: Mapping[str, Array], metas: Sequence[SegmentMeta]) -> Array:
    """The valid rows `[rows]` of segments side by side: `obs [T + 1, E, 4]`, `action` and `valid [T, E]`."""
    valid = columns["valid"]
    envs = valid.shape[1] // len(metas)
    column, t = np.nonzero(valid.T)  # ordered by env, then by time
    rows = np.zeros(len(t), ROW)
    segment = column // envs
    ids = np.array([meta.id for meta in metas], np.int64)
    rows["vector_env"], rows["incarnation"], rows["index"] = ids[segment].T
    rows["env"] = column % envs
    obs = columns["obs"][:-1][t, column].astype(np.int64)
    rows["seed"] = obs[:, SEED_HIGH] * HALF + obs[:, SEED_LOW]
    rows["t"], rows["digest"] = obs[:, T], obs[:, DIGEST]
    rows["action"] = columns["action"][t, column]
    return rows


class WitnessEnv(gymnasium.Env[Array, np.int64]):
    """Observation: (seed / 2^16, seed mod 2^16, t, digest of the episode's actions), each exact in float32.

    Which vector env, env slot, incarnation and episode it is follows from the seed: the run derives each seed from
    these (`zmqrl.random_streams.episode_seed`), and the check derives them again.
    """

    observation_space = gymnasium.spaces.Box(0.0, float(HALF), (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def __init__(self, record: str, step_s: float = 0.0) -> None:
        """`record`: folder of its files; `step_s`: what a step takes."""
        self._folder, self._step_s = Path(record), step_s
        self._steps: _Steps | None = None
        self._seed = self._t = self._digest = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Episode `seed` from its beginning."""
        super().reset(seed=seed)
        if self._steps is None or self._steps.full:
            self._steps = _Steps(self._folder)
        self._seed, self._t, self._digest = seed or 0, 0, 0
        self._steps.begin(self._seed)
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Count; reward 1."""
        assert self._steps is not None, "reset precedes step"
        self._steps.stall_if_set()
        if self._step_s:
            time.sleep(self._step_s)
        self._t += 1
        self._digest = next_digest(self._digest, int(action))
        self._steps.stepped(self._t)
        ended = self._t >= episode_steps(self._seed)
        truncated = ended and ends_truncated(self._seed)
        return self._obs(), 1.0, ended and not truncated, truncated, {}

    def _obs(self) -> Array:
        return np.array([self._seed // HALF, self._seed % HALF, self._t, self._digest], np.float32)


class _Steps:
    """(seed, steps) of each episode, written by memory stores: what a killed process stepped stays known."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._mapped = mapped_file(new_path(folder, SUFFIX, next(_SERIALS)), HEADER_BYTES + 16 * EPISODES)
        self._words = memoryview(self._mapped).cast("q")
        self._at = HEADER_BYTES // 8 - 2

    @property
    def full(self) -> bool:
        return self._at + 4 > len(self._words)

    def begin(self, seed: int) -> None:
        self._at += 2
        self._words[self._at] = seed
        self._words[COUNT] += 1

    def stepped(self, t: int) -> None:
        self._words[self._at + 1] = t

    def stall_if_set(self) -> None:
        while self._words[STALLED]:
            time.sleep(STALL_POLL_S)


def stepped_episodes(folder: Path) -> dict[int, int]:
    """Seed to the most steps that any env took in that episode."""
    found: dict[int, int] = {}
    for path in sorted(folder.glob(f"*.{SUFFIX}")):
        with path.open("rb") as file:
            count = int.from_bytes(file.read(HEADER_BYTES)[:8], "little")
            pairs = np.frombuffer(file.read(16 * count), np.int64).reshape(-1, 2)
        for seed, steps in pairs.tolist():
            found[seed] = max(found.get(seed, 0), steps)
    return found


def stall(folder: Path, pid: int) -> bool:
    """Have every env of that process hang in its next step; False when it has stepped none."""
    paths = list(folder.glob(f"*-{pid}-*.{SUFFIX}"))
    for path in paths:
        with path.open("r+b") as file:
            file.seek(8 * STALLED)
            file.write((1).to_bytes(8, "little"))
    return bool(paths)
