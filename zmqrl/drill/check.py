"""The outside check: every env step that was stored is there exactly once, and none is missing. Pure.

It knows three things, none of which is the ledger: the rows that each learner process was given, the rows in slots
that were stored and that no learner had taken when the run ended, and how many steps each env recorded. From the
run's seed it derives which episode follows which, so a gap is seen wherever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zmqrl.broker.events import RESUMED_SHIFT
from zmqrl.drill.witness import ROW, episode_steps, next_digest
from zmqrl.random_streams import episode_seed
from zmqrl.types import Array

MOST_FINDINGS = 20
"""Findings that are spelled out."""
LOOK_AHEAD = 64
"""Episodes that may be missing one after the other before what follows counts as foreign."""
UNSEEN_INCARNATIONS = 3
"""Incarnations in a row that may have died before they stored anything."""
_NO_ROWS = np.zeros(0, ROW)


@dataclass(frozen=True)
class Expected:
    """What of the run the check has to know."""

    seed: int
    keyed_by_incarnation: bool
    """async: a new incarnation begins episodes of its own. Else a successor continues where its predecessor stood."""
    vector_envs: int
    num_envs: int
    segment_steps: int
    rounds_ahead: int = 0
    """pipelined: rows of the round that no learner was given do not count, as in `env_steps` of the summary."""


@dataclass(frozen=True)
class Given:
    """Rows (`ROW`) that one learner process was given."""

    rows: Array
    left_over: bool = False
    """Rather: rows that lay stored in an arena when it went, and that no learner may have taken."""


@dataclass(frozen=True)
class OutsideCheck:
    """What was found, in rows."""

    rows: int
    """Stored rows that were seen."""
    streams: int
    """Env slots (of each incarnation in async) that they come from."""
    lost: int
    """Missing before the last one of their stream, or stepped after it and more than an open segment holds."""
    doubled: int
    foreign: int
    """Not of the stream that their segment names, or not the env's successor of the previous row."""
    unstored: int
    """Stepped at the end of a stream and not stored: the open segment of a worker that died or was stopped."""
    findings: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled or foreign."""
        return self.lost == self.doubled == self.foreign == 0


class Stream(NamedTuple):
    """One env slot's episodes, each continuing where the one before ended."""

    vector_env: int
    incarnation: int
    """0 in single and sync, where successors continue."""
    env: int


def check(given: Sequence[Given], stepped: Mapping[int, int], expected: Expected) -> OutsideCheck:
    """Judge a whole run.

    `given`: in the order of the learners' lives, what an arena left over after its last learner. `stepped`: episode
    seed to the steps that its env took.
    """
    judge, ahead = _Judge(expected, stepped), expected.rounds_ahead
    parts = [Given(judge.once(part.rows), part.left_over) for part in given if not (part.left_over and ahead)]
    rows = _union(parts) if expected.keyed_by_incarnation else _last_received(parts)
    streams = _streams(rows, expected.keyed_by_incarnation)
    for stream in sorted({*streams, *_unseen(streams, expected)}):
        judge.stream(stream, streams.get(stream, _NO_ROWS))
    return judge.verdict(len(rows), len(streams))


def _union(parts: Sequence[Given]) -> Array:
    """async: what a successor is given again under the same segment id is one and the same."""
    rows: Array = np.unique(np.concatenate([_NO_ROWS, *(part.rows for part in parts)]))
    return rows


def _last_received(parts: Sequence[Given]) -> Array:
    """single, sync: a learner that begins at round n undoes what others were given from n on."""
    kept = _NO_ROWS
    for part in parts:
        if part.left_over:
            last = {v: kept["index"][kept["vector_env"] == v].max() for v in np.unique(kept["vector_env"]).tolist()}
            newer = [row["index"] > last.get(int(row["vector_env"]), -1) for row in part.rows]
            kept = np.concatenate([kept, part.rows[np.array(newer, bool)]])
        elif len(part.rows):
            kept = np.concatenate([kept[kept["index"] < part.rows["index"].min()], part.rows])
    return kept


def _streams(rows: Array, keyed: bool) -> dict[Stream, Array]:
    incarnation = rows["incarnation"] if keyed else np.zeros(len(rows), np.int64)
    names = np.stack([rows["vector_env"], incarnation, rows["env"]], axis=1)
    unique, which = np.unique(names, axis=0, return_inverse=True)
    return {Stream(*name): rows[which.reshape(-1) == i] for i, name in enumerate(unique.tolist())}


def _unseen(streams: Iterable[Stream], expected: Expected) -> Iterator[Stream]:
    """Streams that may have been stepped and of which nothing was stored."""
    incarnations = {0}
    if expected.keyed_by_incarnation:
        attempts = range(max((s.incarnation >> RESUMED_SHIFT for s in streams), default=0) + UNSEEN_INCARNATIONS)
        begun = {s.incarnation for s in streams} | {attempt << RESUMED_SHIFT for attempt in attempts}
        incarnations |= {incarnation + more for incarnation in begun for more in range(UNSEEN_INCARNATIONS)}
    for vector_env in range(expected.vector_envs):
        for incarnation in incarnations:
            yield from (Stream(vector_env, incarnation, env) for env in range(expected.num_envs))


class _Judge:
    def __init__(self, expected: Expected, stepped: Mapping[int, int]) -> None:
        self._expected, self._stepped = expected, stepped
        self._lost = self._doubled = self._foreign = self._unstored = 0
        self._findings: list[str] = []

    def verdict(self, rows: int, streams: int) -> OutsideCheck:
        counts = (self._lost, self._doubled, self._foreign, self._unstored)
        return OutsideCheck(rows, streams, *counts, tuple(self._findings))

    def once(self, rows: Array) -> Array:
        """No learner is given the same row of the same segment twice."""
        unique: Array = np.unique(rows)
        more = len(rows) - len(unique)
        if more:
            self._doubled += more
            self._find(f"one learner received {more} rows of the same segments twice")
        return unique

    def stream(self, stream: Stream, rows: Array) -> None:
        """Rows against the episodes that follow from the run's seed."""
        wanted = np.unique(rows["seed"])
        episodes = self._episodes(stream, set(wanted.tolist()))
        lengths = np.array([episode_steps(seed) for seed in episodes], np.int64)
        first_of = {seed: k for k, seed in reversed(list(enumerate(episodes)))}
        k = np.array([first_of.get(seed, -1) for seed in rows["seed"].tolist()], np.int64)
        own = (k >= 0) & (rows["t"] < lengths[k]) if len(rows) else np.zeros(0, bool)
        self._foreign_rows(stream, rows[~own])
        rows, k = rows[own], k[own]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ordinals = starts[k] + rows["t"]
        end = int(ordinals.max(initial=-1)) + 1
        self._count(stream, rows, ordinals, end, episodes, starts)
        self._check_digests(stream, rows, ordinals)
        self._tail(stream, end, episodes, starts)

    def _episodes(self, stream: Stream, wanted: set[int]) -> list[int]:
        """Seeds from episode 0 to the last one that was stored or stepped."""
        seeds: list[int] = []
        last = most = 0
        while len(seeds) <= most:
            seed = episode_seed(self._expected.seed, stream.vector_env, stream.env, len(seeds), stream.incarnation)
            seeds.append(seed)
            if seed in wanted or seed in self._stepped:
                last = len(seeds)
                most = last + LOOK_AHEAD
        return seeds[:last]

    def _count(
        self, stream: Stream, rows: Array, ordinals: Array, end: int, episodes: list[int], starts: Array
    ) -> None:
        """Each row up to the last one once. Two episodes of one seed (31 bits) have the same rows, twice."""
        seen = np.bincount(ordinals, minlength=end)
        due = np.ones(end, np.int64)
        first_of: dict[int, int] = {}
        for k, seed in enumerate(episodes):
            first = first_of.setdefault(seed, k)
            if first != k and starts[k] < end:
                length = int(min(starts[k + 1], end) - starts[k])
                due[starts[first] : starts[first] + length] += 1
                due[starts[k] : starts[k] + length] -= 1
        missing, more = np.maximum(due - seen, 0), np.maximum(seen - due, 0)
        self._lost += int(missing.sum())
        self._doubled += int(more.sum())
        for what, where in (("missing", missing), ("present more than once", more)):
            if where.any():
                at = int(np.flatnonzero(where)[0])
                k = int(np.searchsorted(starts, at, "right")) - 1
                self._find(f"{stream}: {int(where.sum())} rows {what}, first episode {k} t {at - int(starts[k])}")
                near = rows[np.abs(ordinals - at) <= 1]
                self._find(f"    adjacent rows: {near[:MOST_FINDINGS].tolist()}")

    def _check_digests(self, stream: Stream, rows: Array, ordinals: Array) -> None:
        """What the env reported of its actions is what was stored of them."""
        order = np.argsort(ordinals, kind="stable")
        rows, ordinals = rows[order], ordinals[order]
        wrong = int(np.count_nonzero(rows["digest"][rows["t"] == 0]))
        after = (np.diff(ordinals) == 1) & (rows["t"][1:] > 0)
        follows = next_digest(rows["digest"][:-1].astype(np.int64), rows["action"][:-1].astype(np.int64))
        wrong += int(np.count_nonzero(after & (follows != rows["digest"][1:])))
        if wrong:
            self._foreign += wrong
            self._find(f"{stream}: {wrong} rows do not follow from the actions before them")

    def _foreign_rows(self, stream: Stream, rows: Array) -> None:
        if len(rows):
            self._foreign += len(rows)
            self._find(f"{stream}: {len(rows)} rows are of no episode of it, first {rows[0].tolist()}")

    def _tail(self, stream: Stream, end: int, episodes: list[int], starts: Array) -> None:
        """What was stepped after the last stored row fits into the open segment, and those of rounds ahead."""
        k = max(0, int(np.searchsorted(starts, end, "right")) - 1)
        beyond = 0
        for seed, start in zip(episodes[k:], starts[k:].tolist(), strict=False):
            steps = self._stepped.get(seed, 0)
            if not steps and start >= end:
                break
            beyond += max(0, start + steps - max(start, end))
        self._unstored += beyond
        size = self._expected.segment_steps * (1 + self._expected.rounds_ahead)
        if beyond > size:
            self._lost += beyond - size
            self._find(f"{stream}: {beyond} rows were stepped after its last stored one, and at most {size} may be")

    def _find(self, text: str) -> None:
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(text)
