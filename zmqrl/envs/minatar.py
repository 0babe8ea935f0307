"""MinAtar whose episodes follow from their seeds: a wrapper for `env.wrappers` (extra `minatar`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

NO_OP = 0


class MinAtar(gym.Wrapper[Any, Any, Any, Any]):
    """An episode begins with no action to repeat.

    MinAtar repeats the action before with probability 0.1 (`sticky_action_prob`), at the first step of an episode that
    of the episode before: then an episode does not follow from its seed and its actions.
    """

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset of the env, with the no-op as the action before."""
        self.env.unwrapped.game.last_action = NO_OP  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=None if options is None else dict(options))
