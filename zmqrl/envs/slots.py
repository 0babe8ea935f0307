"""What the vector envs have in common that step their envs one by one, each episode with a seed that can be named."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from zmqrl.envs.base import Numbers, StepResult, VectorEnv, Where, first_bad_slot
from zmqrl.envs.packing import Packer
from zmqrl.envs.returned import MOST_LAYERS, NOTHING, REWARD, BadValue, InfoReader, fault_of, place, raised
from zmqrl.errors import user_exceptions
from zmqrl.random_streams import episode_seed
from zmqrl.spaces import LARGEST_FLOAT32, forbids_all
from zmqrl.types import Array, EnvSpec

RUNNING, RESETTING, PARKED, LEFT = 0, 1, 2, 3
"""Phases of a slot. Left: its agent's episode has ended, and other agents of its env continue."""
ON_PROGRESS = "on_progress"
Receiver: TypeAlias = Callable[[dict[str, float]], object]


def receivers(env: Any, most_layers: int = MOST_LAYERS) -> list[Receiver]:
    """Methods `on_progress` of an env and of its wrappers, the innermost first; a forwarded name is not one of them.

    Of gymnasium's `SyncVectorEnv` those of each env, and of its `AsyncVectorEnv`, whose envs are in processes of their
    own, the outermost one of each.
    """
    if env is None or not most_layers:
        return []
    if isinstance(env, AsyncVectorEnv):
        return [partial(env.call, ON_PROGRESS)] if any(env.call("has_wrapper_attr", ON_PROGRESS)) else []
    inner = env.envs if isinstance(env, SyncVectorEnv) else [inspect.getattr_static(env, "env", None)]
    found = [receiver for one in inner for receiver in receivers(one, most_layers - 1)]
    return [*found, getattr(env, ON_PROGRESS)] if callable(inspect.getattr_static(env, ON_PROGRESS, None)) else found


def pass_numbers(env: Any, numbers: Numbers) -> None:
    """Call each of `receivers` with a dict of its own. Raises what the user's code raises."""
    for receive in receivers(env):
        receive(dict(numbers))


class SlotVectorEnv(VectorEnv, ABC):
    """Episode k of slot e is reset with `episode_seed(seed, vector_env, e, k, incarnation)`.

    The agents of a multi-agent env have the seed of the first of their slots.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int, vector_env: int, incarnation: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._seed, self._vector_env, self._incarnation = seed, vector_env, incarnation
        self._elapsed = [0] * num_envs
        self._episodes = [0] * num_envs
        self._phase = [RUNNING] * num_envs
        self._obs = np.zeros((num_envs, *spec.observation.shape), spec.observation.dtype)
        self._reward = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.zeros(num_envs, bool)
        self._result = StepResult(self._obs, self._reward, self._terminated, self._truncated)
        self._discrete = spec.action.kind == "discrete"
        self._packer = Packer(spec.observation, self._obs)

    def report_on(self, names: Sequence[str]) -> None:
        self.reader = InfoReader(names, self.num_envs)
        self.reports = self.reader.values

    def ended(self) -> Array:
        phases = np.array(self._phase)
        found: Array = (phases == RESETTING) | (phases == LEFT)
        return found

    def on_progress(self, numbers: Numbers) -> None:
        for slot in range(0, self.num_envs, self.spec.slots_per_env):
            self._receive(slot, numbers)

    def _receive(self, slot: int, numbers: Numbers | None) -> None:
        """Pass `numbers`, if there are any, to the env of `slot`."""
        if numbers is not None:
            try:
                pass_numbers(self._env_of(slot), numbers)
            except user_exceptions() as error:
                self._fault_in(slot, ON_PROGRESS, NOTHING, error)

    def park(self, slot: int) -> None:
        """Do not step or reset this slot any more: its last observation stays, rewards are 0."""
        self._phase[slot] = PARKED

    def _given(self, actions: Array) -> Any:
        """Python ints, or rows of a fresh array (an env may keep its action)."""
        given = self.spec.action.for_env(actions)
        return given.tolist() if self._discrete else np.array(given)

    def _check(self, reward: Array | None = None) -> None:
        """Check all slots; `reward`: None where it is known to be finite."""
        bad = first_bad_slot(self._packer.floats, reward)
        if bad is not None:
            slot, what = bad
            call = "step" if self._elapsed[slot] else "reset"
            part = "observation" if abs(self._reward[slot]) <= LARGEST_FLOAT32 else REWARD
            self._fault(slot, what, place(self._env_of(slot), call, part))
        if self._packer.mask is not None:
            forbidden = forbids_all(self._packer.mask, self.spec.action.choices)
            forbidden &= np.array(self._phase) == RUNNING  # no action is needed after the end of an episode
            if forbidden.any():
                self._fault(int(forbidden.argmax()), "the action_mask of the observation forbids every action")

    def _seed_of(self, slot: int) -> int:
        first = slot - slot % self.spec.slots_per_env
        return episode_seed(self._seed, self._vector_env, first, self._episodes[slot], self._incarnation)

    def _where(self, slot: int) -> Where:
        seed, episode, step = self._seed_of(slot), self._episodes[slot], self._elapsed[slot]
        return Where(self.spec.id, self._vector_env, slot, seed, episode, step)

    def _created(self, slot: int, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except user_exceptions() as error:
            where, (what, at) = Where(self.spec.id, self._vector_env, slot, 0, 0, 0), raised(error)
            raise where.fault(f"the constructor {what}", at) from error

    @abstractmethod
    def _env_of(self, slot: int) -> Any:
        """The env of the user."""

    def _fault_in(self, slot: int, call: str, returned: Any, error: BaseException, note: str = "") -> NoReturn:
        """Raise the fault of `error`, which a call of the env raised, or reading what it has `returned`."""
        what, at = fault_of(self._env_of(slot), call, returned, error)
        if isinstance(error, BadValue):
            self._fault(slot, what + note, at)
        raise self._where(slot).fault(what + note, at) from error

    def _fault(self, slot: int, what: str, at: str = "") -> NoReturn:
        agents = self.spec.agents
        agent = f"agent {agents[slot % len(agents)]!r}" if agents else ""
        raise self._where(slot).fault(what if agent in what else f"{agent}: {what}", at) from None
