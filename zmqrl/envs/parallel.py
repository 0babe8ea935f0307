"""Multi-agent envs as PettingZoo's parallel API has them, under one policy: every agent has a slot of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from zmqrl.envs.base import EnvSlotState, StepResult, Where, close_env
from zmqrl.envs.packing import BadObservation
from zmqrl.envs.returned import NOTHING
from zmqrl.envs.slots import LEFT, PARKED, RESETTING, RUNNING, SlotVectorEnv
from zmqrl.errors import EnvFault, name_of
from zmqrl.types import Array, EnvSpec


def is_parallel(env: Any) -> bool:
    """Whether `env` has the parallel API of PettingZoo. The package itself is not needed.

    `agents` exists only after a reset.
    """
    spaces = (getattr(env, name, None) for name in ("observation_space", "action_space"))
    has_agents = hasattr(env, "possible_agents") and not hasattr(env, "agent_iter")  # the AEC API has the latter
    return not isinstance(env, gym.Env) and has_agents and all(map(callable, spaces))


class StepLimit:
    """A parallel env whose episodes are truncated after `steps` steps, for every agent that is still there."""

    def __init__(self, env: Any, steps: int) -> None:
        self._env, self._steps, self._elapsed = env, steps, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> Any:
        """As the env's."""
        self._elapsed = 0
        return self._env.reset(**options)

    def step(self, actions: Mapping[str, Any]) -> Any:
        """As the env's."""
        obs, reward, terminated, truncated, info = self._env.step(actions)
        self._elapsed += 1
        if self._elapsed >= self._steps:
            truncated = dict.fromkeys(truncated, True)
        return obs, reward, terminated, truncated, info


class ParallelVectorEnv(SlotVectorEnv):
    """N / A copies of an env with A agents: agent a of copy c has slot c * A + a.

    Every agent is there after a reset and none joins later. One that has ended is not given to `step` any more.
    """

    def __init__(
        self, spec: EnvSpec, make: Callable[[], Any], num_envs: int, seed: int, vector_env: int, incarnation: int = 0
    ) -> None:
        """`num_envs`: N, a multiple of the agents of `spec`."""
        super().__init__(spec, num_envs, seed, vector_env, incarnation)
        self._envs: list[Any] = []
        for first in range(0, num_envs, len(spec.agents)):
            try:
                self._envs.append(make())
            except Exception as error:  # the user's constructor may raise anything
                where = Where(spec.id, vector_env, first, 0, 0, 0)
                raise where.fault(f"the env cannot be created: {name_of(error)}: {error}") from error
        self._agents: Sequence[Any] = self._envs[0].possible_agents
        """Those of `spec` as the env names them: a number may be one."""

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        for copy, slots in enumerate(self._slots()):
            group = states[slots.start : slots.stop] if states else (EnvSlotState(),) * len(slots)
            for slot, state in zip(slots, group, strict=True):
                self._episodes[slot] = state.episode
            self._reset(copy, slots)
            if group[0].actions is not None and len(group[0].actions):
                self._replay(copy, slots, group)
        self._check()
        return self._obs

    def step(self, actions: Array) -> StepResult:
        given, phases = self._given(actions), self._phase
        self._reward.fill(0.0)
        for copy, slots in enumerate(self._slots()):
            running = [slot for slot in slots if phases[slot] == RUNNING]
            if running:
                self._step(copy, slots, running, given)
            elif phases[slots.start] == RESETTING:
                for slot in slots:
                    self._episodes[slot] += 1
                self._reset(copy, slots)
        self._check()
        return self._result

    def close(self) -> None:
        for env in self._envs:
            close_env(env)
        self._envs = []

    def _slots(self) -> list[range]:
        """Of each copy."""
        agents = len(self._agents)
        return [range(first, first + agents) for first in range(0, self.num_envs, agents)]

    def _reset(self, copy: int, slots: range) -> None:
        for slot in slots:
            self._elapsed[slot], self._phase[slot] = 0, RUNNING
            self._terminated[slot] = self._truncated[slot] = False
        env, slot = self._envs[copy], slots.start
        returned = NOTHING
        try:
            returned = env.reset(seed=self._seed_of(slot))
            found = returned[0]
            for slot, agent in zip(slots, self._agents, strict=True):
                if agent not in found:
                    self._fault(slot, "it is not there after a reset; agents that join later are not supported")
                self._packer.write(slot, found[agent])
        except EnvFault:
            raise
        except BadObservation as error:
            self._fault(slot, f"reset returned {error}")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._check_form(slot, env, "reset", returned, error)
            self._env_fault(slot, f"reset raised {name_of(error)}: {error}", error)

    def _step(self, copy: int, slots: range, running: Sequence[int], given: Any) -> None:
        """One step of copy `copy`, whose agents in the slots `running` act."""
        env, agents, phases = self._envs[copy], self._agents, self._phase
        chosen = {agents[slot - slots.start]: given[slot] for slot in running}
        for slot in running:
            self._elapsed[slot] += 1
        slot, returned = running[0], NOTHING
        try:
            returned = env.step(chosen)
            obs, reward, terminated, truncated, _ = returned
            for slot in running:
                agent = agents[slot - slots.start]
                if agent not in obs:
                    self._fault(slot, "step returned no observation of it, and it had not ended")
                self._packer.write(slot, obs[agent])
                self._reward[slot] = reward[agent]
                self._terminated[slot], self._truncated[slot] = bool(terminated[agent]), bool(truncated[agent])
                if self._terminated[slot] or self._truncated[slot]:
                    phases[slot] = LEFT
                elif agent not in env.agents:
                    self._fault(slot, "it left `agents` and was neither terminated nor truncated")
        except EnvFault:
            raise
        except BadObservation as error:
            self._fault(slot, f"step returned {error}")
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._check_form(slot, env, "step", returned, error)
            self._env_fault(slot, f"step raised {name_of(error)}: {error}", error)
        if not any(phases[slot] == RUNNING for slot in slots):
            for slot in slots:
                phases[slot] = PARKED if phases[slot] == PARKED else RESETTING

    def _replay(self, copy: int, slots: range, states: Sequence[EnvSlotState]) -> None:
        """Repeat what the agents did. An env that does not reproduce may end early: it then resets next."""
        history = [self._given(np.asarray(state.actions)) for state in states]
        for step in range(len(history[0])):
            running = [slot for slot in slots if self._phase[slot] == RUNNING]
            if not running:
                break
            self._step(copy, slots, running, {slot: history[slot - slots.start][step] for slot in running})
            if self.on_replay is not None:
                self.on_replay()
        if states[0].resetting:
            for slot in slots:
                self._phase[slot] = RESETTING

    def _env_fault(self, slot: int, what: str, cause: Exception) -> NoReturn:
        """One of the whole env; `slot` is that of one of its agents."""
        raise self._where(slot).fault(what) from cause
