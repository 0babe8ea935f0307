"""Multi-agent envs as PettingZoo's parallel API has them, under one policy: every agent has a slot of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from zmqrl.envs.base import AT_RESET, EnvSlotState, StepResult, close_env
from zmqrl.envs.returned import NOTHING, REWARD, BadValue, flag, has_form, number, place
from zmqrl.envs.slots import LEFT, PARKED, RESETTING, RUNNING, SlotVectorEnv
from zmqrl.errors import EnvFault, user_exceptions
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
        self.env, self._steps, self._elapsed = env, steps, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        """Reset of the env, and of the count of steps."""
        self._elapsed = 0
        return self.env.reset(**options)

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Step of the env; at the limit every agent is truncated."""
        returned = self.env.step(actions)
        self._elapsed += 1
        if self._elapsed < self._steps or not has_form("step", returned) or not isinstance(returned[3], Mapping):
            return returned
        obs, reward, terminated, truncated, info = returned
        return obs, reward, terminated, dict.fromkeys(truncated, True), info


class ParallelVectorEnv(SlotVectorEnv):
    """N / A copies of an env with A agents: agent a of copy c has slot c * A + a.

    Every agent is there after a reset and none joins later. One that has ended is not given to `step` any more.
    """

    def __init__(
        self, spec: EnvSpec, make: Callable[[], Any], num_envs: int, seed: int, vector_env: int, incarnation: int = 0
    ) -> None:
        """`num_envs`: N, a multiple of the agents of `spec`."""
        super().__init__(spec, num_envs, seed, vector_env, incarnation)
        self._envs: list[Any] = [self._created(first, make) for first in range(0, num_envs, len(spec.agents))]
        self._agents: Sequence[Any] = self._envs[0].possible_agents
        """Agents of `spec` as the env names them: a number may be one."""
        self._known = frozenset(self._agents)
        self._gone: set[int] = set()
        """Slots of agents that are not in `agents` any more."""

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        for copy, slots in enumerate(self._slots()):
            group = states[slots.start : slots.stop] if states else (EnvSlotState(),) * len(slots)
            for slot, state in zip(slots, group, strict=True):
                self._episodes[slot] = state.episode
            self._receive(slots.start, dict(group[0].numbers).get(AT_RESET))
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
        self._check(self._reward)
        return self._result

    def close(self) -> None:
        for env in self._envs:
            close_env(env)
        self._envs = []

    def _slots(self) -> list[range]:
        agents = len(self._agents)
        return [range(first, first + agents) for first in range(0, self.num_envs, agents)]

    def _reset(self, copy: int, slots: range) -> None:
        for slot in slots:
            self._elapsed[slot], self._phase[slot] = 0, RUNNING
            self._terminated[slot] = self._truncated[slot] = False
        self._gone.difference_update(slots)
        slot, returned = slots.start, NOTHING
        try:
            returned = self._envs[copy].reset(seed=self._seed_of(slot))
            found, _ = returned
            for slot, agent in zip(slots, self._agents, strict=True):
                if isinstance(found, Mapping) and agent not in found:
                    self._fault(slot, "it is not there after a reset; agents that join later are not supported")
                self._packer.write(slot, _of(agent, "observation", found))
        except EnvFault:
            raise
        except user_exceptions() as error:
            self._fault_in(slot, "reset", returned, error)

    def _step(self, copy: int, slots: range, running: Sequence[int], given: Any) -> None:
        """One step of copy `copy`, whose agents in the slots `running` act."""
        env, agents, phases = self._envs[copy], self._agents, self._phase
        chosen = {agents[slot - slots.start]: given[slot] for slot in running}
        for slot in running:
            self._elapsed[slot] += 1
        slot, returned = running[0], NOTHING
        try:
            returned = env.step(chosen)
            obs, reward, terminated, truncated, info = returned
            for slot in running:
                agent = agents[slot - slots.start]
                if self.reports is not None:
                    self.reader.read(slot, _of(agent, "info", info))
                self._packer.write(slot, _of(agent, "observation", obs))
                self._reward[slot] = number(_of(agent, REWARD, reward))
                self._terminated[slot] = flag("terminated", _of(agent, "terminated", terminated))
                self._truncated[slot] = flag("truncated", _of(agent, "truncated", truncated))
                if self._terminated[slot] or self._truncated[slot]:
                    phases[slot] = LEFT
                elif agent not in env.agents:
                    self._fault(slot, "it left `agents` and was neither terminated nor truncated")
            self._check_agents(slots, running[0], set(env.agents))
        except EnvFault:
            raise
        except user_exceptions() as error:
            self._fault_in(slot, "step", returned, error)
        if not any(phases[slot] == RUNNING for slot in slots):
            for slot in slots:
                phases[slot] = PARKED if phases[slot] == PARKED else RESETTING

    def _check_agents(self, slots: range, first: int, there: set[Any]) -> None:
        """An agent that has ended may be in `agents` until the next step, and does not return. `first`: that acts."""
        found = [f"{str(agent)!r} joined; not supported: not in `possible_agents`" for agent in there - self._known]
        for slot, agent in zip(slots, self._agents, strict=True):
            if self._phase[slot] == LEFT:
                if agent not in there:
                    self._gone.add(slot)
                elif slot in self._gone:
                    found.append(f"{str(agent)!r} came back; not supported: it may return after the next reset")
        if found:
            raise self._where(first).fault(f"agent {found[0]}", place(self._env_of(first), "step"))

    def _replay(self, copy: int, slots: range, states: Sequence[EnvSlotState]) -> None:
        """Repeat what the agents did. An env that does not reproduce may end early: it then resets next."""
        history = [self._given(np.asarray(state.actions)) for state in states]
        numbers = dict(states[0].numbers)
        for step in range(len(history[0])):
            running = [slot for slot in slots if self._phase[slot] == RUNNING]
            if not running:
                break
            self._receive(slots.start, numbers.get(step))
            self._step(copy, slots, running, {slot: history[slot - slots.start][step] for slot in running})
            if self.on_replay is not None:
                self.on_replay()
        if states[0].resetting:
            for slot in slots:
                self._phase[slot] = RESETTING

    def _env_of(self, slot: int) -> Any:
        return self._envs[slot // len(self._agents)]


def _of(agent: Any, part: str, values: Any) -> Any:
    """What the dict `values` has for an agent."""
    try:
        return values[agent]
    except Exception as error:  # the user's own mapping may raise anything
        if not isinstance(values, Mapping):
            raise BadValue(f"{part} of type {type(values).__name__}; expected a dict by agent", part) from error
        lacks = "it, and it had not ended" if part == "observation" else f"agent {str(agent)!r}"
        raise BadValue(f"no {part} of {lacks}", part) from error
