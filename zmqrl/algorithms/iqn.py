"""Implicit quantile networks (Dabney et al. 2018, arXiv 1806.06923): quantiles at fractions that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner
from zmqrl.algorithms.q_learning.base import QLearningAlgorithm, QLearningConfig
from zmqrl.algorithms.q_learning.learner import TRAINED, USES
from zmqrl.algorithms.qrdqn import QRDQNLearner
from zmqrl.config.sections import Positive
from zmqrl.learning import Batch, Noise
from zmqrl.loading import Tensor
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.targets import quantile_huber

COSINE = "q.cosine"
"""The layer that depends on the fractions."""


@dataclass(frozen=True)
class IQNConfig(QLearningConfig):
    """The fields other than `kind: iqn`. The size of replay and the replay ratio are in `replay`."""

    double: bool = False
    quantiles: Positive = 64
    """Fractions that an update draws for each row and estimate: N and N' of the paper."""
    acting_quantiles: Positive = 32
    """Fractions of the q values of acting, in equal distances: K of the paper."""
    cosines: Positive = 64
    """Cosines of a fraction that the network sees."""


class IQN(QLearningAlgorithm):
    """Discrete actions."""

    Config: ClassVar[type[Any]] = IQNConfig

    def network(self) -> NetworkSpec:
        """The layer `cosine` comes before the last layer; without fractions the outputs are q values."""
        *hidden, last = super().network().tower("q")
        options = (("cosines", float(self.config.cosines)), ("fractions", float(self.config.acting_quantiles)))
        cosine = LayerSpec("cosine", COSINE, last.inputs, last.inputs, gain=0.0, options=options)
        return NetworkSpec((("q", (*hidden, cosine, last)),))

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return IQNLearner(self, context)


class IQNLearner(QRDQNLearner):
    """Quantile Huber loss with kappa 1 at the fractions that were drawn (equation 3)."""

    def noise(self) -> Mapping[str, tuple[int, ...] | Noise]:
        """Fractions of each use, and the noise of noisy layers."""
        fractions = Noise((self.config.quantiles,), "uniform")
        return {**super().noise(), **{f"{use}.{COSINE}": fractions for use in USES}}

    def noise_of_use(self, batch: Batch, use: str) -> dict[str, Tensor]:
        """The last layer has a row for each fraction: those of one observation have the same noise."""
        last, drawn = self.net.spec.tower("q")[-1].name, super().noise_of_use(batch, use)
        if last in drawn:
            drawn[last] = drawn[last].unsqueeze(1).expand(-1, self.config.quantiles, -1).flatten(0, 1)
        return drawn

    def outputs(self, batch: Batch, name: str, use: str, target: bool = False) -> Tensor:
        rows = super().outputs(batch, name, use, target)  # [B * K, n, 1]
        return rows.reshape(-1, self.config.quantiles, rows.shape[1]).transpose(1, 2)

    def losses(self, batch: Batch, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = quantile_huber(outputs, target, batch[f"{TRAINED}.{COSINE}"])
        return losses, losses
