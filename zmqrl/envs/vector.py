"""Vector envs: seeded ones, and in async those of gymnasium, which step all envs in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np

from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import EnvSlotState, Numbers, StepResult, VectorEnv, Where, close_env, first_bad_slot
from zmqrl.envs.make import make_single
from zmqrl.envs.packing import Packer
from zmqrl.envs.parallel import ParallelVectorEnv
from zmqrl.envs.returned import FLAGS, NOTHING, REWARD, InfoReader, fault_of, numbers, place
from zmqrl.envs.seeded import SeededVectorEnv
from zmqrl.envs.slots import ON_PROGRESS, pass_numbers
from zmqrl.envs.vectorised import make_native
from zmqrl.errors import user_exceptions
from zmqrl.random_streams import episode_seed
from zmqrl.types import MODES, Array, EnvSpec, ModeName

OneVectorEnv = TypeVar("OneVectorEnv", bound=VectorEnv)
WHOLE_BATCH = -1
"""The slot in seeds and faults that concern no single env."""


class NativeVectorEnv(VectorEnv):
    """One seed, by (vector env, incarnation), for the whole batch; states are not rebuilt, envs start again."""

    def __init__(self, spec: EnvSpec, env: Any, num_envs: int, seed: int, vector_env: int, incarnation: int) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self._env = env
        self._vector_env = vector_env
        self._seed = episode_seed(seed, vector_env, WHOLE_BATCH, 0, incarnation)
        self._steps = 0
        self._done = np.zeros(num_envs, bool)
        self._flags = (num_envs,)
        plain = Packer(spec.observation, np.zeros((num_envs, *spec.observation.shape), spec.observation.dtype)).plain
        assert plain is not None, "only boxes have a native form"
        self._plain = plain

    def start(self, states: tuple[EnvSlotState, ...] | None = None) -> Array:
        self._steps = 0
        self._done = np.zeros(self.num_envs, bool)
        returned = NOTHING
        try:
            returned = self._env.reset(seed=self._seed)
            obs = self._read(returned[0])
        except user_exceptions() as error:
            self._fault(WHOLE_BATCH, *fault_of(self._env, "reset", returned, error), cause=error)
        self._check("reset", obs)
        return obs

    def on_progress(self, numbers: Numbers) -> None:
        try:
            pass_numbers(self._env, numbers)
        except user_exceptions() as error:
            self._fault(WHOLE_BATCH, *fault_of(self._env, ON_PROGRESS, NOTHING, error), cause=error)

    def step(self, actions: Array) -> StepResult:
        actions = self.spec.action.for_env(actions)
        self._steps += 1
        returned = NOTHING
        try:
            returned = self._env.step(actions)
            rows, gain, ended, cut, info = returned
            if self.reports is not None:
                self.reader.read_vector(info)
            obs, reward = self._read(rows), numbers(REWARD, gain, self._flags).astype(np.float64, copy=False)
            terminated = numbers("terminated", ended, self._flags, FLAGS).astype(bool, copy=False)
            truncated = numbers("truncated", cut, self._flags, FLAGS).astype(bool, copy=False)
        except user_exceptions() as error:
            self._fault(WHOLE_BATCH, *fault_of(self._env, "step", returned, error), cause=error)
        self._check("step", obs, reward)
        done = terminated | truncated
        if self._done.any() and (done[self._done].any() or reward[self._done].any()):
            self._fault(
                int(self._done.argmax()), "the step after the end of an episode is not a reset (NEXT_STEP autoreset)"
            )
        self._done = done
        return StepResult(obs, reward, terminated, truncated)

    def report_on(self, names: Sequence[str]) -> None:
        self.reader = InfoReader(names, self.num_envs)
        self.reports = self.reader.values

    def park(self, slot: int) -> None:
        """Nothing: all envs are stepped in one call, and the caller reads the rows that it needs."""

    def close(self) -> None:
        if self._env is not None:
            close_env(self._env)
            self._env = None

    def _read(self, rows: Any) -> Array:
        obs = self._plain.array(rows)
        self._plain.check(obs, self._flags)
        return obs

    def _check(self, call: str, obs: Array, reward: Array | None = None) -> None:
        bad = first_bad_slot((("", obs),) if obs.dtype.kind == "f" else (), reward)
        if bad is not None:
            self._fault(*bad, place(self._env, call))

    def _fault(self, slot: int, what: str, at: str = "", cause: BaseException | None = None) -> NoReturn:
        raise Where(self.spec.id, self._vector_env, slot, self._seed, 0, self._steps).fault(what, at) from cause


def make_vector_env(
    section: EnvSection, spec: EnvSpec, mode: ModeName, seed: int, vector_env: int, incarnation: int = 0
) -> VectorEnv:
    """Native in async where there is a native form; else env by env, with seeds by incarnation only in async.

    In single and sync a successor repeats its predecessor's episodes, so `incarnation` plays no part there.
    """
    if not MODES[mode].deterministic and spec.native_vector:
        native = make_native(section, section.num_envs)
        if native is not None:
            env = NativeVectorEnv(spec, native, section.num_envs, seed, vector_env, incarnation)
            return _reporting(env, section.report)
    keyed = 0 if MODES[mode].deterministic else incarnation
    make = partial(make_single, section)
    return make_seeded(spec, make, section.num_envs, seed, vector_env, keyed, section.report)


def make_seeded(
    spec: EnvSpec,
    make: Callable[[], Any],
    num_envs: int,
    seed: int,
    vector_env: int,
    incarnation: int = 0,
    report: Iterable[str] = (),
) -> SeededVectorEnv | ParallelVectorEnv | NativeVectorEnv:
    """Envs of `make` stepped one by one, of one agent or of several; a vectorised one as it is, with its own number."""
    if spec.vector_only:
        env = make()
        return _reporting(NativeVectorEnv(spec, env, env.num_envs, seed, vector_env, incarnation), report)
    kind = ParallelVectorEnv if spec.agents else SeededVectorEnv
    return _reporting(kind(spec, make, num_envs, seed, vector_env, incarnation), report)


def _reporting(env: OneVectorEnv, names: Iterable[str]) -> OneVectorEnv:
    if names := tuple(names):
        env.report_on(names)
    return env
