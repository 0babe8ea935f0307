"""Episodes, and how they are cut out of recorded segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zmqrl.envs.base import StepResult
from zmqrl.replay.base import Observations
from zmqrl.types import FIXED_COLUMNS, Array, ColumnSpec

Piece = tuple[int, int, int, int]
"""Frame, env slot, first row, and the row after the last one."""


@dataclass(frozen=True)
class Episode:
    """L env steps of one env slot, in the form of segments: packed observations, actions numbered from 0.

    `obs [L + 1, ...]`, `action [L, ...]`, `reward [L]`, `terminated [L]`, `truncated [L]`. Without a flag in its last
    row it is unfinished.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array

    @property
    def is_finished(self) -> bool:
        """Whether the env ended it."""
        return bool(self.terminated[-1] | self.truncated[-1])


def frame_dtype(columns: Sequence[ColumnSpec]) -> np.dtype[np.void]:
    """A recorded segment: `id` (vector env, incarnation, index), valid rows, and the columns that every segment has.

    `continues`: its first rows follow the last rows of the frame before it of this vector env.
    """
    fixed = [(column.name, column.dtype, column.shape) for column in columns if column.name in FIXED_COLUMNS]
    return np.dtype([("id", "<i8", (3,)), ("rows", "<i8"), ("continues", "?"), *fixed])


def episodes_of(frames: Array) -> Iterator[Episode]:
    """The episodes of `frames` of `frame_dtype`, in the order of their ends; unfinished ones last."""
    columns = {name: frames[name] for name in FIXED_COLUMNS}
    observations = Observations(columns)
    running: dict[tuple[int, int], list[Piece]] = {}
    for frame, (vector_env, _, _) in enumerate(frames["id"].tolist()):
        for slot in range(frames["valid"].shape[2]):
            pieces = running.pop((vector_env, slot), [])
            if pieces and not frames["continues"][frame]:
                yield _episode(columns, observations, pieces)
                pieces = []
            for begin, end in _runs(frames["valid"][frame, :, slot]):
                pieces.append((frame, slot, begin, end))
                if columns["terminated"][frame, end - 1, slot] | columns["truncated"][frame, end - 1, slot]:
                    yield _episode(columns, observations, pieces)
                    pieces = []
            if pieces:
                running[vector_env, slot] = pieces
    for pieces in running.values():
        yield _episode(columns, observations, pieces)


class PlayedEpisodes:
    """The episodes of slots that are stepped side by side, one each: `observe` receives each step."""

    def __init__(self) -> None:
        self._steps: list[tuple[Array, ...]] = []
        self._last: dict[int, Array] = {}

    def observe(self, obs: Array, actions: Array, result: StepResult, playing: Array) -> None:
        """Add the step of the slots that play: the arrays may be reused afterwards."""
        after, *rest = result
        self._steps.append(tuple(np.array(part) for part in (obs, actions, *rest, playing)))
        self._last |= {slot: np.array(after[slot]) for slot in np.flatnonzero(playing).tolist()}

    def episodes(self) -> Iterator[Episode]:
        """Episodes of all slots, in the order of the slots."""
        *columns, playing = (np.stack(part) for part in zip(*self._steps, strict=True))
        for slot, length in enumerate(playing.sum(0).tolist()):
            obs, action, reward, *flags = (column[:length, slot] for column in columns)
            yield Episode(np.concatenate([obs, self._last[slot][None]]), action, reward.astype(np.float32), *flags)


def _runs(valid: Array) -> list[tuple[int, int]]:
    """Begin and end of each run of valid rows."""
    edges = np.flatnonzero(np.diff(valid.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _episode(columns: dict[str, Array], observations: Observations, pieces: Sequence[Piece]) -> Episode:
    frame, slot, _, end = (np.array(part) for part in pieces[-1])
    obs = [observations.read(np.array(f), np.arange(begin, until), np.array(s)) for f, s, begin, until in pieces]
    obs.append(observations.read(frame, end, slot)[None])
    rest = (
        np.concatenate([columns[name][f, begin:until, s] for f, s, begin, until in pieces])
        for name in ("action", "reward", "terminated", "truncated")
    )
    return Episode(np.concatenate(obs), *rest)
