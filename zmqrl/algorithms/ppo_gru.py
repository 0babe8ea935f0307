"""PPO with memory by default: a gated recurrent unit that actor and critic share. `kind: ppo` has other memories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.policy_gradient.plan import MemorySection
from zmqrl.algorithms.ppo import PPO, PPOConfig
from zmqrl.config.sections import FORBID_UNKNOWN, Positive


@dataclass(frozen=True)
class PPOGRUConfig(PPOConfig):
    """The fields of `kind: ppo`, and those of the recurrent unit."""

    __pydantic_config__ = FORBID_UNKNOWN

    shared: bool = True
    """Actor and critic share the hidden layers and the memory (`torso`)."""
    gru_size: Positive = 64
    """Numbers of recurrent state, unless `memory` is set."""
    sequence: Positive = 16
    """Rows of a sequence, a divisor of `env.segment_steps`, unless `memory` is set: gradients reach so many rows, state
    is stored so often."""


class PPOGRU(PPO, Algorithm):
    """PPO with `shared` and the memory `gru`: hidden layers, the unit, then a linear layer each (Cho et al. 2014)."""

    Config: ClassVar[type[PPOGRUConfig]] = PPOGRUConfig
    config: PPOGRUConfig

    @property
    def memory(self) -> MemorySection:
        """The unit, unless another memory is configured."""
        return self.config.memory or MemorySection("gru", self.config.gru_size, self.config.sequence)
