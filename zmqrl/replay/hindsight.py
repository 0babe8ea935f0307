"""Hindsight: sampled transitions with goals that their episodes achieved later (HER, Andrychowicz et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from zmqrl.errors import ConfigError
from zmqrl.ops.returns import n_step_targets
from zmqrl.plugins import described, form, named
from zmqrl.replay.base import ReplaySample, SegmentMeta
from zmqrl.replay.held_segments import HeldSegments
from zmqrl.replay.spec import Relabel
from zmqrl.spaces import view
from zmqrl.types import Array, SpaceSpec

GoalFunction: TypeAlias = Callable[[Array, Array], Array]


class Goals:
    """The parts of an observation that are goals, and the user's functions of goals."""

    def __init__(self, relabel: Relabel, observation: SpaceSpec | None) -> None:
        """Call each function once, with goals of zeros. ConfigError names the field of `relabel` that is wrong."""
        self._relabel, self.space = relabel, observation or SpaceSpec("box", (), "float32")
        parts = {part.name: part for part in self.space.parts}
        if len(relabel.goals) != 2 or not parts.keys() >= set(relabel.goals):
            raise self._error("goals", f"must be two parts of the observation: {', '.join(parts) or 'it has no parts'}")
        self.achieved, self.desired = (parts[name] for name in relabel.goals)
        goal, other = self.achieved.space, self.desired.space
        if (goal.shape, goal.dtype) != (other.shape, other.dtype):
            found = " and ".join(f"{list(space.shape)} {space.dtype}" for space in (goal, other))
            raise self._error("goals", f"must have one shape and dtype, found {found}")
        self._functions = {name: self._load(name) for name in ("reward", "terminated") if getattr(relabel, name)}
        zeros = np.zeros((2, 1, *goal.shape), goal.dtype)
        for name in self._functions:
            self.computed(name, zeros, zeros)

    def computed(self, name: str, achieved: Array, desired: Array) -> Array | None:
        """What the function `name` returns for goals `[B, n, *goal]`: `[B, n]`; None: it is not given."""
        if name not in self._functions:
            return None
        lead, goal = achieved.shape[:2], achieved.shape[2:]
        count = lead[0] * lead[1]
        try:
            found = np.asarray(self._functions[name](achieved.reshape(count, *goal), desired.reshape(count, *goal)))
        except Exception as error:
            raise self._error(name, described(error)) from error
        if found.shape != (count,) or found.dtype.kind not in "fiub":
            what = f"must return one number for each of {count} pairs of goals, found {found.dtype} {list(found.shape)}"
            raise self._error(name, what)
        if not np.isfinite(found).all():
            raise self._error(name, f"must return finite numbers, found {found[~np.isfinite(found)][0]}")
        return found.reshape(lead).astype(np.float32 if name == "reward" else bool)

    def _load(self, field: str) -> GoalFunction:
        path = getattr(self._relabel, field)
        if not isinstance(path, str) or ":" not in path:
            raise self._error(field, "must be a dotted path `module:name`")
        try:
            found: Any = named(path, "cannot be loaded")
        except ConfigError as error:
            raise error.of(("Relabel", field), repr(path)) from error
        if not callable(found) or isinstance(found, type):
            raise self._error(field, f"must be a function, found {form(found)}")
        function: GoalFunction = found
        return function

    def _error(self, field: str, what: str) -> ConfigError:
        return ConfigError(what, key=("Relabel", field), value=repr(getattr(self._relabel, field)))


class Hindsight:
    """Draws goals over the held segments of a vector env, which follow each other by their index.

    A goal is one that the same env slot achieved in the same episode, by the same step or a later one, as far as
    replay holds the episode.
    """

    def __init__(
        self,
        relabel: Relabel,
        observation: SpaceSpec | None,
        columns: Mapping[str, Array],
        held: HeldSegments,
        continues_episodes: bool,
    ) -> None:
        """`continues_episodes`: whether an episode continues in the next incarnation of its vector env."""
        self._goals, self._share = Goals(relabel, observation), relabel.share
        self._columns, self._held, self._continues_episodes = columns, held, continues_episodes
        self._achieved = view(columns["obs"], self._goals.space, self._goals.achieved)
        _, self._steps, self._envs = columns["reward"].shape
        self._rest = np.zeros((held.places, self._steps, self._envs), np.int32)
        """Rows of the episode from each row on, in its segment."""
        self._is_open = np.zeros((held.places, self._envs), bool)
        """Whether the episode of the last row continues in the next segment."""
        self._next = np.full(held.places, -1, np.int64)
        """Place of the next segment of the vector env; -1: not held."""
        self._newest: dict[int, tuple[int, SegmentMeta]] = {}
        """The newest segment of each vector env: its number among all that were added, and its description."""

    def added(self, place: int, meta: SegmentMeta) -> None:
        """Replay holds a segment now."""
        slot, t = self._held.slots[place], np.arange(self._steps)[:, None]
        ended = self._columns["terminated"][slot] | self._columns["truncated"][slot]
        last = np.minimum.accumulate(np.where(ended, t, self._steps - 1)[::-1])[::-1]
        self._rest[place], self._is_open[place], self._next[place] = last - t + 1, ~ended[-1], -1
        number, before = self._newest.get(meta.id.vector_env, (-1, meta))
        is_continued = self._continues_episodes or meta.id.incarnation == before.id.incarnation
        if number >= self._held.oldest and is_continued and meta.id.index == before.id.index + 1:
            self._next[number % self._held.places] = place
        self._newest[meta.id.vector_env] = int(self._held.generations[place]), meta

    def relabel(self, sample: ReplaySample, n_step: int, gamma: float, generator: np.random.Generator) -> None:
        """Change goals, returns, discounts and next observations of a share of `sample`, in place."""
        chosen = np.flatnonzero(generator.random(len(sample.rows)) < self._share)
        if not len(chosen):
            return
        place, within = np.divmod(sample.rows[chosen], self._steps * self._envs)
        t, env = np.divmod(within, self._envs)
        slot, goal = self._held.slots[place], self._later_goal(place, t, env, generator)
        window = t[:, None] + np.arange(n_step)
        at = (slot[:, None], np.minimum(window, self._steps - 1), env[:, None])
        pairs = self._achieved[at[0], at[1] + 1, at[2]], np.repeat(goal[:, None], n_step, axis=1)
        reward, others = self._goals.computed("reward", *pairs), self._goals.computed("terminated", *pairs)
        terminated, truncated = self._columns["terminated"][at], self._columns["truncated"][at]
        if others is not None:
            terminated, truncated = others, truncated | terminated  # the window stops where the episode does
        assert reward is not None
        target = n_step_targets(reward, terminated, truncated, window < self._steps, gamma)
        sample.n_step_return[chosen], sample.discount[chosen] = target.n_step_return, target.discount
        sample.next_obs[chosen] = self._columns["obs"][slot, t + target.length, env]
        for obs in (sample.obs, sample.next_obs):
            view(obs, self._goals.space, self._goals.desired)[chosen] = goal

    def _later_goal(self, place: Array, t: Array, env: Array, generator: np.random.Generator) -> Array:
        """Goals `[B, *goal]`, each achieved by one of the held rows of the episode from row t on."""
        places, lengths = self._episode(place, t, env)
        ends = lengths.cumsum(0)
        nth = generator.integers(0, ends[-1])
        part, each = (ends <= nth).sum(0), np.arange(len(t))
        row = nth - (ends - lengths)[part, each] + np.where(part == 0, t, 0)
        goal: Array = self._achieved[self._held.slots[places[part, each]], row + 1, env]
        return goal

    def _episode(self, place: Array, t: Array, env: Array) -> tuple[Array, Array]:
        """Places of the segments from row t of each to the end of its episode, and its rows in them: `[segments, B]`.

        An episode of fewer segments than another has 0 rows in the further ones.
        """
        places, lengths = [place], [self._rest[place, t, env]]
        is_open = self._is_open[place, env] & (t + lengths[0] == self._steps)
        while (is_open := is_open & (self._next[places[-1]] >= 0)).any():
            place = np.where(is_open, self._next[places[-1]], places[-1])
            length = self._rest[place, 0, env]
            places.append(place)
            lengths.append(np.where(is_open, length, 0))
            is_open = is_open & self._is_open[place, env] & (length == self._steps)
        return np.stack(places), np.stack(lengths)
