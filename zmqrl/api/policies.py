"""Trained policies from Python: `load_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqrl.acting.base import ActingContext, Place, Policy, noise_for
from zmqrl.acting.heads import clip_to
from zmqrl.acting.previous import PreviousStep
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.api.runs import Run
from zmqrl.config.foreign.aliases import python_hint
from zmqrl.config.paths import expanded
from zmqrl.config.sections import EnvSection
from zmqrl.envs.packing import packed_batch
from zmqrl.planning.policies import stored_policy, trained_env
from zmqrl.run_files.trust import opened
from zmqrl.spaces import forbids_all, view
from zmqrl.types import PREVIOUS, Array, EnvSpec, SpaceSpec


class LoadedPolicy:
    """The policy of a run: `policy(obs) -> action`, for one observation or a batch. From `load_policy`.

    A recurrent policy remembers what it has seen of the envs of its batch. Call `reset` where an episode begins; for
    other policies it has no effect. A policy that was trained with the previous action and reward
    (`ActingSpec.previous`) remembers its actions, and takes the rewards: `policy(obs, reward=...)`.
    """

    def __init__(
        self, policy: Policy, env: EnvSpec, section: EnvSection | None = None, sampler: ActionSampler | None = None
    ) -> None:
        """`sampler`: None: greedy actions."""
        self._policy, self._env, self._sampler = policy, env, sampler
        self._clipped = clip_to(env.action)
        self.section = section
        """The env of the scores of the run: what `evaluate` makes where no env is given."""
        self._state: dict[str, Array] = {}
        self._rows = 0

    def __call__(self, obs: Any, reward: Any = None) -> Array:
        """The action for one observation, or the actions for a batch.

        Args:
            obs: A batch of a Dict or Tuple has its structure, with a leading axis in each part.
            reward: Of the last step, one number or `[N]`, for a policy with previous action and reward; others ignore
                it. That of an env whose episode begins has no effect.

        Raises:
            ValueError: `obs` is of another space, or its `action_mask` forbids every action. A recurrent policy acted
                for another number of envs before, and was not reset. A policy with previous action and reward has
                acted since the last reset, and `reward` is missing.
        """
        space, action = self._env.observation, self._env.action
        batch, single = _batch(space, obs)
        if space.action_mask is not None and forbids_all(view(batch, space, space.action_mask), action.choices).any():
            raise ValueError("the action_mask of the observation forbids every action")
        if not self._rows:
            self._state, self._rows = self._policy.zero_state(len(batch)), len(batch)
        if self._state and len(batch) != self._rows:
            raise ValueError(f"{len(batch)} observations after {self._rows}: call reset() before other envs begin")
        actions = np.array(action.for_env(self._chosen(batch, reward)))
        first: Array = actions[0]
        return first if single else actions

    def _chosen(self, batch: Array, reward: Any) -> Array:
        """Stored actions, clipped to the action space."""
        state, sampler = self._state, self._sampler
        if PREVIOUS in state:
            last = state[PREVIOUS][:, -1]  # 1 until the reward is known; 0 where an episode begins
            if reward is None and last.any():
                raise ValueError("the policy sees the last reward: call policy(obs, reward=...), or reset() before")
            np.copyto(last, np.asarray(0.0 if reward is None else reward, np.float32), where=last != 0)
        chosen = self._policy.act_greedily(batch, state) if sampler is None else sampler.act(self._policy, batch, state)
        if PREVIOUS in state:
            PreviousStep(self._env.action, len(batch)).write(state, chosen, 1.0)
        return self._clipped(chosen)

    def reset(self, ended: Any = None) -> None:
        """An episode begins in all envs, or in those of the batch where `ended [N]` is true."""
        if ended is None:
            self._rows = 0
            return
        for array in self._state.values():
            array[np.asarray(ended, dtype=bool)] = 0.0

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            """Names what to write in place of a method of Stable-Baselines3's models."""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{python_hint(name)}")


class ActionSampler:
    """Draws actions as a rollout worker does, with the schedule values of the end of the run."""

    def __init__(self, spec: ActingSpec, seed: int) -> None:
        self._spec, self._generator = spec, np.random.default_rng(seed)

    def act(self, policy: Policy, obs: Array, state: dict[str, Array]) -> Array:
        """Actions for `obs [N, ...]`, as a worker stores them."""
        spec, rows = self._spec, len(obs)
        size = 0 if spec.action.choices else int(np.prod(spec.action.shape, dtype=np.int64))
        noise = noise_for(self._generator, 1, rows, size, spec.noise, len(spec.action.choices))
        extras = {column.name: np.zeros((1, rows, *column.shape[2:]), column.dtype) for column in spec.extras}
        return policy.act(obs, 0, ActingContext(noise, extras, Place.of(0, 1, rows), state))


def load_policy(path: Run | str | Path, stochastic: bool = False, seed: int = 0, trust: bool = False) -> LoadedPolicy:
    """The trained policy of a run: `load_policy(path)(obs) -> action`, for one observation or a batch.

    Args:
        path: A run, or its directory. The best version, or else the newest, is loaded.
        stochastic: Sample actions as in training, at the end of its schedules; False: greedy actions.
        seed: Of the sampled actions.
        trust: Import what the configuration of a run names that another user made.

    Raises:
        UntrustedRun: Another user made it, it names code, and `zmqrl trust` was not called for it.
        FolderOfRuns: `path` is the folder of several runs, which the message names.
        ConfigError: `path` has no configuration of a run.
        StoreError: It has no checkpoint.
    """
    directory = path.run_dir if isinstance(path, Run) else expanded(path)
    trusted = trust or isinstance(path, Run)
    config = opened(directory, lambda run: f"zmqrl.load_policy({run!r})", trusted)
    env = trained_env(directory, config)
    _, policy = stored_policy(directory, config, env)
    sampler = ActionSampler(make_algorithm(config, env).acting(), seed) if stochastic else None
    return LoadedPolicy(policy, env, config.scored_env, sampler)


def _batch(space: SpaceSpec, obs: Any) -> tuple[Array, bool]:
    """Batch of the rows of `obs`, and whether `obs` is a single observation."""
    trained = f"the policy was trained with {described(space)}"
    if space.kind == "box":
        obs = _rows(space, obs, trained)
    try:
        return packed_batch(space, obs)
    except ValueError as error:  # numpy raises ValueError for rows of unequal lengths
        raise ValueError(f"{error}; {trained}") from None


def _rows(space: SpaceSpec, obs: Any, trained: str) -> Array:
    if obs is None or isinstance(obs, (Mapping, str)):
        raise ValueError(f"observation of type {type(obs).__name__}; {trained}")
    try:
        rows = np.asarray(obs)
    except (TypeError, ValueError) as error:
        raise ValueError(f"observation of type {type(obs).__name__}: {error}; {trained}") from None
    if rows.shape != space.shape and (not rows.ndim or rows.shape[1:] != space.shape):
        raise ValueError(f"observation of shape {rows.shape}; {trained}")
    return rows


def described(space: SpaceSpec) -> str:
    """Shape of a space, or its kind and size; of a composite one, each part."""
    if space.parts:
        return ", ".join(f"{part.name}: {described(part.space)}" for part in space.parts)
    return str(space.shape) if space.kind == "box" else f"{space.kind} {list(space.choices)}"
