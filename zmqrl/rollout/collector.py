"""One vector env's collector: fills segments by acting in it. No sockets: workers and single mode use it alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from zmqrl.acting.base import ActingContext, Place, Policy, noise_for
from zmqrl.acting.heads import clip_to
from zmqrl.acting.previous import PreviousStep
from zmqrl.acting.spec import ActingSpec
from zmqrl.acting.state import unpack_state, zero_state
from zmqrl.config.codec import replace
from zmqrl.envs.base import EnvSlotState, Numbers, StepResult, VectorEnv
from zmqrl.random_streams import stream
from zmqrl.types import ACTING_STATE, ACTING_STATE_END, REPORT_COLUMN, STATE_COLUMN, Array

PURPOSE = "acting"


class StopFlag:
    """Whether collecting is to end. A signal handler may set `requested`."""

    def __init__(self) -> None:
        self.requested = False
        """Stays true."""
        self.condition: Callable[[], bool] | None = None
        """Checked between two env steps; once it is true, the end is requested."""

    def check(self) -> bool:
        """Whether the end is requested now."""
        if not self.requested and self.condition is not None:
            self.requested = self.condition()
        return self.requested


class Collector:
    """Holds a vector env between segments. One thread.

    Noise is drawn for a whole segment from the stream (seed, "acting", vector env, incarnation, index), so a segment's
    bits depend on its name, the weights, the env's state and the recurrent state alone. `incarnation` is 0 in single
    and sync.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        spec: ActingSpec,
        seed: int,
        vector_env: int,
        incarnation: int = 0,
        vector_envs: int = 0,
    ) -> None:
        """`vector_envs`: of the whole run as it was planned; 0: `vector_env` is the last."""
        self.vector_env = vector_env
        self._place = Place.of(vector_env, vector_envs or vector_env + 1, env.num_envs)
        self._state = zero_state(spec.state, env.num_envs)
        self._state_every = spec.state_every
        self._noise = spec.noise
        self._env = env
        self._policy = policy
        self._seed, self._incarnation = seed, incarnation
        self._action_size = 0 if spec.action.choices else int(np.prod(spec.action.shape, dtype=np.int64))
        self._entries = len(spec.action.choices)
        self.clipped = clip_to(spec.action)
        """What the env receives for stored actions `[..., A]`."""
        self._extras = tuple(column.name for column in spec.extras)
        self._previous = PreviousStep(spec.action, env.num_envs) if spec.previous else None
        self._obs: Array
        self._ended: Array
        self._ended_count = 0
        self._received: tuple[int, ...] | None = None

    def receive(self, moment: tuple[int, ...], numbers: Numbers) -> None:
        """Pass the numbers to the env, once for each `moment`: before its first reset, or between two segments."""
        if moment != self._received:
            self._received = moment
            self._env.on_progress(numbers)

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> None:
        """Reset, or continue where `states` (with actions as they were stored) give the state of the env."""
        if states:
            states = tuple(s if s.actions is None else replace(s, actions=self.clipped(s.actions)) for s in states)
        self._obs = np.array(self._env.start(states or None))
        self._ended = self._env.ended()
        self._ended_count = int(self._ended.sum())
        unpack_state([s.acting_state for s in states or ()] or [None] * self._env.num_envs, self._state)

    def collect(
        self, columns: Mapping[str, Array], index: int, progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> int | None:
        """Fill one segment's `columns` and return its valid rows; None when `stopped` between two steps.

        `progress` receives the valid rows so far after every step. The policy must hold the segment's version.
        """
        obs, action, reward = columns["obs"], columns["action"], columns["reward"]
        terminated, truncated, valid = columns["terminated"], columns["truncated"], columns["valid"]
        steps, envs = reward.shape
        state, every = self._state, self._state_every or steps
        act, clipped, step, context = self._policy.act, self.clipped, self._step(columns), self._context(columns, index)
        ended, ended_count, rows = self._ended, self._ended_count, 0
        depth = len(obs) - steps  # frames of a stack; each is stored once, after those that the first row needs
        obs[:depth] = self._obs if depth == 1 else np.moveaxis(self._obs, 1, 0)
        seen, newest = obs[0] if depth == 1 else self._obs, obs[depth:]
        valid.fill(True)
        for t in range(steps):
            if stopped():
                return None
            if ended_count:
                valid[t] = ~ended
            if state and t % every == 0:
                for name, array in state.items():
                    columns[ACTING_STATE + name][t // every] = array
            action[t] = chosen = act(seen, t, context)
            seen, reward[t], done, cut = step(clipped(chosen))
            newest[t] = seen if depth == 1 else seen[:, -1]
            seen = newest[t] if depth == 1 else seen
            terminated[t], truncated[t] = done, cut
            rows += envs - ended_count
            if state:
                self._advance_state(chosen, reward[t], ended)
            ended = done | cut
            ended_count = int(np.count_nonzero(ended))
            progress(rows)
        self._finish(columns, seen, context)
        self._obs, self._ended, self._ended_count = seen.copy(), ended, ended_count
        return rows

    def close(self) -> None:
        """Close the env."""
        self._env.close()

    def _step(self, columns: Mapping[str, Array]) -> Callable[[Array], StepResult]:
        """`step` of the env; it writes the next row of what the env reports, if it reports anything."""
        env, reports = self._env, self._env.reports
        if reports is None:
            return env.step
        rows = iter(columns[REPORT_COLUMN])

        def step(actions: Array) -> StepResult:
            result = env.step(actions)
            next(rows)[:] = reports
            return result

        return step

    def _context(self, columns: Mapping[str, Array], index: int) -> ActingContext:
        """What the policy needs for the segment, with its noise."""
        generator = stream(self._seed, PURPOSE, self.vector_env, self._incarnation, index)
        steps, envs = columns["reward"].shape
        noise = noise_for(generator, steps, envs, self._action_size, self._noise, self._entries)
        extras = {name: columns[name] for name in self._extras}
        return ActingContext(noise, extras, self._place, self._state)

    def _advance_state(self, action: Array, reward: Array, resets: Array) -> None:
        """State before the next row. Where this row was a reset, another episode begins with it."""
        if self._previous is not None:
            self._previous.write(self._state, action, reward)
        if resets.any():
            for array in self._state.values():
                array[resets] = 0.0

    def _finish(self, columns: Mapping[str, Array], seen: Array, context: ActingContext) -> None:
        """What follows the last row: columns of the head, and the states of the envs and of the policy."""
        if context.outputs:
            self._policy.complete(seen, columns, context)
        if STATE_COLUMN in columns:
            columns[STATE_COLUMN][0] = self._env.states()
        for name, array in self._state.items():
            columns[ACTING_STATE_END + name][0] = array
