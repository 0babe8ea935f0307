"""Envs of one agent, stepped one by one: what single and sync are built on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zmqrl.envs.base import AT_RESET, EnvSlotState, StepResult, close_env, packed, unpacked
from zmqrl.envs.make import stripped
from zmqrl.envs.returned import NO, NOTHING, flag, number
from zmqrl.envs.slots import RESETTING, RUNNING, SlotVectorEnv
from zmqrl.errors import EnvFault, user_exceptions
from zmqrl.spaces import LARGEST_FLOAT32
from zmqrl.types import Array, EnvSpec


class SeededVectorEnv(SlotVectorEnv):
    """Each slot is an env."""

    def __init__(
        self, spec: EnvSpec, make: Callable[[], Any], num_envs: int, seed: int, vector_env: int, incarnation: int = 0
    ) -> None:
        super().__init__(spec, num_envs, seed, vector_env, incarnation)
        self._envs: list[Any] = []
        self._steps: list[Callable[[Any], Any]] = []
        self._limits: list[float] = []
        for slot in range(num_envs):
            self._add(slot, make)
        self._shape = spec.observation.shape

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        for slot, state in enumerate(states or (EnvSlotState(),) * self.num_envs):
            self._episodes[slot] = state.episode
            self._receive(slot, dict(state.numbers).get(AT_RESET))
            self._reset(slot)
            if state.state is not None:
                self._restore(slot, state)
            elif state.actions is not None and len(state.actions):
                self._replay(slot, state)
        self._check()
        return self._obs

    def step(self, actions: Array) -> StepResult:
        obs, reward, terminated, truncated = self._result
        steps, phases, elapsed, limits, shape = self._steps, self._phase, self._elapsed, self._limits, self._shape
        plain, write = self._packer.plain, self._packer.write
        accepted, is_checked = None if plain is None else plain.accepted, True
        terminated.fill(False)
        truncated.fill(False)
        slot, returned = 0, NOTHING
        try:
            for slot, action in enumerate(self._given(actions)):
                if phases[slot]:
                    self._not_running(slot)
                    continue
                returned = NOTHING
                returned = steps[slot](action)
                row, gain, ended, cut, _ = returned
                if plain is None:
                    write(slot, row)
                else:
                    if type(row) is not np.ndarray:
                        row = plain.array(row)
                    if row.dtype is not accepted or row.shape != shape:
                        accepted = plain.check(row)
                    obs[slot] = row
                if type(gain) is not float or not -LARGEST_FLOAT32 <= gain <= LARGEST_FLOAT32:
                    gain, is_checked = number(gain), False
                reward[slot] = gain
                count = elapsed[slot] + 1
                ended = ended is not False and ended is not NO and flag("terminated", ended)
                cut = (cut is not False and cut is not NO and flag("truncated", cut)) or count >= limits[slot]
                if ended or cut:
                    terminated[slot], truncated[slot], phases[slot] = ended, cut, RESETTING
                elapsed[slot] = count
        except EnvFault:
            raise
        except user_exceptions() as error:
            elapsed[slot] += 1  # it was not counted yet
            self._fault_in(slot, "step", returned, error)
        self._check(None if is_checked else reward)
        return self._result

    def report_on(self, names: Sequence[str]) -> None:
        super().report_on(names)
        self._steps = [self.reader.reading(slot, step) for slot, step in enumerate(self._steps)]

    def close(self) -> None:
        for env in self._envs:
            close_env(env)
        self._envs, self._steps = [], []

    def _add(self, slot: int, make: Callable[[], Any]) -> None:
        # Counting steps and checking the order of calls is done here: two Python calls per step less.
        inner, limit = stripped(self._created(slot, make))
        self._envs.append(inner)
        self._steps.append(inner.step)
        self._limits.append(limit)

    def _env_of(self, slot: int) -> Any:
        return self._envs[slot]

    def _not_running(self, slot: int) -> None:
        self._reward[slot] = 0.0
        if self._phase[slot] == RESETTING:
            self._episodes[slot] += 1
            self._reset(slot)

    def _reset(self, slot: int) -> None:
        self._elapsed[slot] = 0
        self._phase[slot] = RUNNING
        returned = NOTHING
        try:
            returned = self._envs[slot].reset(seed=self._seed_of(slot))
            obs, _ = returned
            self._packer.write(slot, obs)
        except user_exceptions() as error:
            self._fault_in(slot, "reset", returned, error)

    def _replay(self, slot: int, state: EnvSlotState) -> None:
        """Repeat a slot's actions. An env that does not reproduce may end early: it then resets next."""
        assert state.actions is not None
        ended, numbers = False, dict(state.numbers)
        for step, action in enumerate(self._given(np.asarray(state.actions))):
            self._receive(slot, numbers.get(step))
            self._elapsed[slot] += 1
            returned = NOTHING
            try:
                returned = self._steps[slot](action)
                row, _, terminated, truncated, _ = returned
                self._packer.write(slot, row)
                ended = flag("terminated", terminated) | flag("truncated", truncated)
            except user_exceptions() as error:
                self._fault_in(slot, "step", returned, error, " (in a replay)")
            if self.on_replay is not None:
                self.on_replay()
            if ended or self._elapsed[slot] >= self._limits[slot]:
                ended = True
                break
        if ended or state.resetting:
            self._phase[slot] = RESETTING

    def states(self) -> Array:
        spec = self.spec.state
        assert spec is not None, "the env spec has no state"
        found: Array = np.zeros((self.num_envs, spec.nbytes), np.uint8)
        for slot, env in enumerate(self._envs):
            if self._phase[slot] == RUNNING:
                try:
                    found[slot] = packed(env.get_state(), spec)
                except user_exceptions() as error:
                    self._fault_in(slot, "get_state", NOTHING, error)
        return found

    def _restore(self, slot: int, state: EnvSlotState) -> None:
        """Put a slot into a state that it was in, in the same episode."""
        spec = self.spec.state
        assert spec is not None and state.state is not None, "checked before"
        if state.resetting:
            self._phase[slot] = RESETTING
        else:
            try:
                self._envs[slot].set_state(unpacked(state.state, spec))
            except user_exceptions() as error:
                self._fault_in(slot, "set_state", NOTHING, error)
        self._obs[slot], self._elapsed[slot] = state.obs, state.elapsed
