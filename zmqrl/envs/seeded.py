"""Envs of one agent, stepped one by one: what single and sync are built on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from zmqrl.envs.base import EnvSlotState, StepResult, Where, close_env, packed, unpacked
from zmqrl.envs.make import stripped
from zmqrl.envs.packing import BadObservation
from zmqrl.envs.returned import NOTHING
from zmqrl.envs.slots import RESETTING, RUNNING, SlotVectorEnv
from zmqrl.errors import EnvFault, name_of
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
        self._write = None if spec.observation.kind == "box" else self._packer.write
        """Of observations that are not an array."""

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        for slot, state in enumerate(states or (EnvSlotState(),) * self.num_envs):
            self._episodes[slot] = state.episode
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
        write = self._write
        terminated.fill(False)
        truncated.fill(False)
        slot, returned = 0, NOTHING
        try:
            for slot, action in enumerate(self._given(actions)):
                if phases[slot]:
                    self._not_running(slot)
                    continue
                returned = steps[slot](action)
                row, gain, ended, cut, _ = returned
                if write is not None:
                    write(slot, row)
                else:
                    if type(row) is not np.ndarray:
                        row = np.asarray(row)
                    if row.shape != shape:
                        what = f"step returned an observation of shape {row.shape}, its space has {shape}"
                        self._fault_of_step(slot, returned, what)
                    obs[slot] = row
                reward[slot] = gain
                count = elapsed[slot] + 1
                if ended:
                    terminated[slot] = True
                    phases[slot] = RESETTING
                if cut or count >= limits[slot]:
                    truncated[slot] = True
                    phases[slot] = RESETTING
                elapsed[slot] = count
        except EnvFault:
            raise
        except BadObservation as error:
            self._fault_of_step(slot, returned, f"step returned {error}")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._fault_of_step(slot, returned, f"step raised {name_of(error)}: {error}", error)
        self._check()
        return self._result

    def close(self) -> None:
        for env in self._envs:
            close_env(env)
        self._envs, self._steps = [], []

    def _add(self, slot: int, make: Callable[[], Any]) -> None:
        try:
            env = make()
        except Exception as error:  # the user's constructor may raise anything
            where = Where(self.spec.id, self._vector_env, slot, 0, 0, 0)
            raise where.fault(f"the env cannot be created: {name_of(error)}: {error}") from error
        # Counting steps and checking the order of calls is done here: two Python calls per step less.
        inner, limit = stripped(env)
        self._envs.append(inner)
        self._steps.append(inner.step)
        self._limits.append(limit)

    def _fault_of_step(self, slot: int, returned: Any, what: str, cause: Exception | None = None) -> NoReturn:
        self._elapsed[slot] += 1  # it was not counted yet
        self._check_form(slot, self._envs[slot], "step", returned, cause)
        self._fault(slot, what, cause)

    def _not_running(self, slot: int) -> None:
        self._reward[slot] = 0.0
        if self._phase[slot] == RESETTING:
            self._episodes[slot] += 1
            self._reset(slot)

    def _reset(self, slot: int) -> None:
        self._elapsed[slot] = 0
        self._phase[slot] = RUNNING
        env, returned = self._envs[slot], NOTHING
        try:
            returned = env.reset(seed=self._seed_of(slot))
            found = returned[0]
            if self._write is not None:
                self._write(slot, found)
                return
            row = np.asarray(found)
        except BadObservation as error:
            self._check_form(slot, env, "reset", returned, error)
            self._fault(slot, f"reset returned {error}")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._check_form(slot, env, "reset", returned, error)
            self._fault(slot, f"reset raised {name_of(error)}: {error}", error)
        if row.shape != self._shape:
            self._check_form(slot, env, "reset", returned)
            self._fault(slot, f"reset returned an observation of shape {row.shape}, its space has {self._shape}")
        if row.dtype.kind not in "fiub" or (row.dtype.kind == "f" and self._obs.dtype.kind != "f"):
            self._fault(
                slot, f"reset returned an observation of dtype {row.dtype}, its space has dtype {self._obs.dtype}"
            )
        self._obs[slot] = row

    def _replay(self, slot: int, state: EnvSlotState) -> None:
        """Repeat a slot's actions. An env that does not reproduce may end early: it then resets next."""
        assert state.actions is not None
        ended, on_replay = False, self.on_replay
        try:
            for action in self._given(np.asarray(state.actions)):
                self._elapsed[slot] += 1
                row, _, terminated, truncated, _ = self._steps[slot](action)
                if self._write is not None:
                    self._write(slot, row)
                else:
                    self._obs[slot] = row
                if on_replay is not None:
                    on_replay()
                ended = bool(terminated or truncated or self._elapsed[slot] >= self._limits[slot])
                if ended:
                    break
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._fault(slot, f"step raised {name_of(error)} in a replay: {error}", error)
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
                except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                    self._fault(slot, f"get_state raised {name_of(error)}: {error}", error)
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
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                self._fault(slot, f"set_state raised {name_of(error)}: {error}", error)
        self._obs[slot], self._elapsed[slot] = state.obs, state.elapsed
