"""Atari as Mnih et al. 2015 prepare it: one wrapper for `env.wrappers` (extra `atari`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing

from zmqrl.types import Array

FIRE = "FIRE"


class Atari(gym.Wrapper[Any, Any, Any, Any]):
    """No-op starts, frame skip with maximum, grey images of 84x84, a stack of frames, reward clip, fire at a start.

    The env is made with `frameskip: 1`. Observations are uint8 `[stack, size, size]`, the newest frame last. With
    `stack: 1` they are single frames `[size, size]` for `env.frame_stack`, which stores each frame once.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        stack: int = 4,
        size: int = 84,
        frame_skip: int = 4,
        noop_max: int = 30,
        clip_reward: bool = True,
        fire_reset: bool = True,
        episodic_life: bool = False,
    ) -> None:
        """`episodic_life`: the loss of a life ends the episode; the game continues in the next one.

        Such an episode does not follow from its seed: mode async, or `env.recovery: restart_episode`.
        """
        super().__init__(AtariPreprocessing(env, noop_max, frame_skip, size))
        self._frames = np.zeros((stack, size, size), np.uint8)
        shape = self._frames.shape if stack > 1 else (size, size)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        meanings: list[str] = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._fire = meanings.index(FIRE) if fire_reset and FIRE in meanings else None
        self._clip, self._episodic = clip_reward, episodic_life
        self._over, self._lives = True, 0

    def score_full_episodes(self) -> None:
        """Return the rewards and the episodes of the game itself: for the evaluator and `zmqrl eval`."""
        self._clip = self._episodic = False

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new game, or after the loss of a life the same one."""
        if self._over or not self._episodic:
            frame, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        else:
            frame, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                frame, info = self.env.reset(seed=seed)
        self._over = False
        if self._fire is not None:
            frame, _, terminated, truncated, info = self.env.step(self._fire)
            if terminated or truncated:
                frame, info = self.env.reset(seed=seed)
        self._frames[:] = frame
        self._lives = self._count_lives()
        return self._observation(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """`frame_skip` frames with one action."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._over = bool(terminated or truncated)
        self._frames[:-1] = self._frames[1:]
        self._frames[-1] = frame
        lives, lost = self._count_lives(), False
        if self._episodic:
            lost = lives < self._lives
        self._lives = lives
        gain = float(np.sign(float(reward))) if self._clip else float(reward)
        return self._observation(), gain, bool(terminated) or lost, bool(truncated), info

    def _observation(self) -> Array:
        return self._frames.reshape(self.observation_space.shape).copy()

    def _count_lives(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]
