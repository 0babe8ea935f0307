"""A wrapper that changes settings of its process, as numerical libraries do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Setting(gym.Wrapper[Any, Any, Any, Any]):
    """Changes them in its 40th step, and expects them in each later one."""

    steps = 0

    def step(self, action: Any) -> Any:
        import torch

        self.steps += 1
        if self.steps == 40:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.use_deterministic_algorithms(True)
            np.seterr(under="raise")
        if self.steps >= 40:
            assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float64, False)
        return super().step(action)
