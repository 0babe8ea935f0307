"""CartPole with a pole whose length is in the environment of the process: without it there is no env."""

from __future__ import annotations

import os
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv

VARIABLE = "POLE_LENGTH"


class Env(CartPoleEnv):
    """Length in metres from `VARIABLE`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = float(os.environ[VARIABLE])
        self.polemass_length = self.masspole * self.length
