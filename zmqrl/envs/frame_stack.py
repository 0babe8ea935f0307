"""The last k observations as one, for acting. Segments hold each frame once (`zmqrl.replay.base`)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from zmqrl.envs.base import packed, state_spec, unpacked
from zmqrl.envs.packing import Packer
from zmqrl.envs.returned import has_form
from zmqrl.envs.spaces import observation_spec
from zmqrl.errors import ConfigError

Env = gym.Env[Any, Any]


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Observations `[k, ...]`, oldest first; a reset repeats the first one, as gymnasium's FrameStackObservation."""

    def __init__(self, env: Env, depth: int) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"needs Box observations, the env has {space}", key=("env", "frame_stack"), value=str(depth)
            )
        low, high = (np.repeat(side[None], depth, 0) for side in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype)
        self._frames = np.zeros((depth, *space.shape), space.dtype)
        self._write = Packer(observation_spec(str(env), space), self._frames).write

    def reset(self, **options: Any) -> Any:
        """The first observation, k times."""
        returned: Any = self.env.reset(**options)
        if not has_form("reset", returned):  # the vector env names it
            return returned
        self._write(0, returned[0])
        self._frames[1:] = self._frames[0]
        return self._frames.copy(), returned[1]

    def step(self, action: Any) -> Any:
        """The oldest frame leaves the stack."""
        returned: Any = self.env.step(action)
        if not has_form("step", returned):
            return returned
        self._frames[:-1] = self._frames[1:]
        self._write(-1, returned[0])
        return self._frames.copy(), *returned[1:]


class RestorableFrameStack(FrameStack):
    """Frame stack with `env.recovery: state`: the frames are part of the state."""

    def __init__(self, env: Env, depth: int) -> None:
        super().__init__(env, depth)
        self._state = state_spec(env)

    def get_state(self) -> Any:
        """uint8: the frames, then the state of the env."""
        inner: Any = self.env
        return np.concatenate((self._frames.view(np.uint8).reshape(-1), packed(inner.get_state(), self._state)))

    def set_state(self, state: Any) -> None:
        """Back to what `get_state` gave."""
        inner: Any = self.env
        frames = np.array(state[: self._frames.nbytes]).view(self._frames.dtype)
        self._frames[:] = frames.reshape(self._frames.shape)
        inner.set_state(unpacked(state[self._frames.nbytes :], self._state))


def stack_frames(inner: Env, limit: float, depth: int, restorable: bool) -> Env:
    """`inner` with stacks of `depth` frames, and the `limit` of steps that was taken off it."""
    stacked = (RestorableFrameStack if restorable else FrameStack)(inner, depth)
    return stacked if limit == float("inf") else TimeLimit(stacked, int(limit))
