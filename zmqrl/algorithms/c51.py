"""C51 (Bellemare et al. 2017, arXiv 1707.06887): each action has a distribution of its return over fixed atoms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm, QLearningConfig
from zmqrl.algorithms.q_learning.learner import QLearner
from zmqrl.algorithms.start.defaults import Sections
from zmqrl.config.sections import ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import Batch
from zmqrl.loading import Tensor, np, torch
from zmqrl.networks.spec import LayerSpec
from zmqrl.ops.targets import project
from zmqrl.types import EnvSpec, ModeName


@dataclass(frozen=True)
class C51Config(QLearningConfig):
    """The fields other than `kind: c51`. The size of replay and the replay ratio are in `replay`."""

    double: bool = False
    atoms: Annotated[int, Ge(2)] = 51
    """Atoms of each action's return, with equal distances from `low` to `high`."""
    low: float = -10.0
    """The lowest atom. Discounted returns below it count as it."""
    high: float = 10.0
    """The highest atom. Discounted returns above it count as it."""


class C51(QLearningAlgorithm):
    """Discrete actions."""

    Config: ClassVar[type[Any]] = C51Config

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of Q-learning; atoms from -100 to 100, for images with clipped rewards from -10 to 10."""
        sections = super().defaults(env)
        support = {} if env.observation.is_image else {"atoms": 101, "low": -100.0, "high": 100.0}
        return {**sections, "algorithm": {**sections["algorithm"], **support}}

    def check(self, mode: ModeName, vector_envs: int, replay: ReplaySection) -> None:
        """Raise `ConfigError` when a batch exceeds replay, or the atoms are not in order."""
        super().check(mode, vector_envs, replay)
        if not self.config.low < self.config.high:
            what, key = f"must be above algorithm.low, here {self.config.low:g}", ("algorithm", "high")
            raise ConfigError(what, key=key, value=f"{self.config.high:g}", others=(("algorithm", "low"),))

    @property
    def atoms(self) -> int:
        return int(self.config.atoms)

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the expected values."""
        found, n, options = super().acting(), self.env.action.n, (("low", self.config.low), ("high", self.config.high))
        return replace(found, layers=(*found.layers, LayerSpec("expectation", "", n * self.atoms, n, options=options)))

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return C51Learner(self, context)


class C51Learner(QLearner):
    """The Kullback-Leibler divergence of the projected target (algorithm 1 of the paper) from the estimate."""

    def __init__(self, algorithm: C51, context: LearnerContext) -> None:
        super().__init__(algorithm, context)
        self.support = self.tensor(np.linspace(self.config.low, self.config.high, self.config.atoms))

    def returns(self, outputs: Tensor) -> Tensor:
        """Probabilities of the atoms."""
        return outputs.softmax(2)

    def q(self, returns: Tensor) -> Tensor:
        return returns @ self.support

    def moved(self, returns: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        return project(returns, reward, discount, self.support)

    def losses(self, batch: Batch, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = (torch.xlogy(target, target) - target * outputs.log_softmax(1)).sum(1)
        return losses, losses.detach().clamp(min=0.0)  # rounding may make it negative
