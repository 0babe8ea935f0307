"""Quantile regression DQN (Dabney et al. 2018, arXiv 1710.10044): each action has quantiles of its return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.dqn import DQN, DQNLearner, EpsilonSection, PrioritisedSection, target_period
from zmqrl.config.points import Points
from zmqrl.config.sections import FORBID_UNKNOWN, Fraction, Positive
from zmqrl.learning import PRIORITY, Batch
from zmqrl.learning.schedule import Rate
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec


@dataclass(frozen=True)
class QRDQNConfig:
    """The fields other than `kind: qrdqn`. The size of replay and the replay ratio are in `replay`."""

    __pydantic_config__ = FORBID_UNKNOWN

    learning_rate: Rate = 5e-4
    """Adam's step size."""
    gamma: Fraction = 0.99
    """Discount per step."""
    batch_size: Positive = 128
    """Rows per update."""
    quantiles: Positive = 50
    """Quantiles of each action's return."""
    n_step: Positive = 1
    """Rewards summed before bootstrapping."""
    double: bool = False
    """The online network chooses the next action, the target network values it."""
    prioritised: PrioritisedSection | None = None
    """Sample by the loss of a row; null samples uniformly."""
    target_update_every: Positive | None = None
    """Updates between two moves of the target network; null: 500, and 1 with `target_tau`."""
    target_tau: Annotated[float, Gt(0), Le(1)] | None = None
    """Share of the online network mixed into the target network in each move; null copies it whole."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Above 0: AdamW (Loshchilov & Hutter 2019)."""
    adam_epsilon: Annotated[float, Gt(0)] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Bound of the gradient's global norm; null switches it off."""
    epsilon: EpsilonSection | Points[Fraction] = field(default_factory=EpsilonSection)
    """Exploration."""

    def __post_init__(self) -> None:
        """`target_update_every` as a number."""
        object.__setattr__(self, "target_update_every", target_period(self))

    @property
    def optimiser(self) -> str:
        """Name of the optimiser, as `DQNConfig.optimiser` has it."""
        return "adamw" if self.weight_decay else "adam"


class QRDQN(DQN, Algorithm):
    """Discrete actions."""

    Config: ClassVar[type[Any]] = QRDQNConfig
    config: Any

    @property
    def executors(self) -> tuple[str, ...]:
        """Autograd alone."""
        return ("eager", "compiled")

    def network(self) -> NetworkSpec:
        """One tower `q`: the quantiles of action 0, then those of action 1, and so on."""
        outputs = self.env.action.n * self.config.quantiles
        layers = tower(
            "q", self.network_section, self.env.observation, outputs, output_gain=0.0, orthogonal=False, dueling=False
        )
        return NetworkSpec((("q", layers),))

    def acting(self) -> ActingSpec:
        """Epsilon-greedy in the mean of the quantiles."""
        layers = self.network().tower("q")
        return ActingSpec(
            layers=layers,
            head="zmqrl.acting.quantile:QuantileGreedy",
            action=self.env.action,
            observation=self.env.observation,
            input=self.input,
            options={"quantiles": self.config.quantiles},
        )

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return QRDQNLearner(self, context)


class QRDQNLearner(DQNLearner):
    """Quantile Huber loss with kappa 1, summed over the quantiles that are trained."""

    config: Any

    def train(self, batch: Batch, moves_target: bool = False) -> Mapping[str, Tensor]:
        """Equation 13 and algorithm 1 of the paper."""
        net, config = self.net, self.config
        with torch.no_grad():
            following = self._quantiles(batch["next_obs"], target=True)
            chooser = self._quantiles(batch["next_obs"]) if config.double else following
            best = chooser.mean(2).argmax(1)
            target = batch["n_step_return"].unsqueeze(1) + batch["discount"].unsqueeze(1) * _chosen(following, best)
        quantiles = _chosen(self._quantiles(batch["obs"]), batch["action"])
        per_row = quantile_huber(quantiles, target)
        loss = (batch["weight"] * per_row).mean()
        net.step("q", loss)
        if moves_target:
            net.update_targets(1.0 if config.target_tau is None else config.target_tau)
        results = {"loss/q": loss, "q_mean": quantiles.mean()}
        return results if config.prioritised is None else {**results, PRIORITY: per_row}

    def _quantiles(self, obs: Tensor, target: bool = False) -> Tensor:
        """`[B, n, quantiles]`."""
        outputs = self.net("q", obs, target=target)
        return outputs.reshape(outputs.shape[0], -1, self.config.quantiles)


def _chosen(quantiles: Tensor, action: Tensor) -> Tensor:
    """`[B, quantiles]` of `action [B]`, out of `[B, n, quantiles]`."""
    index = action.reshape(-1, 1, 1).expand(-1, 1, quantiles.shape[2])
    return quantiles.gather(1, index).squeeze(1)


def quantile_huber(quantiles: Tensor, target: Tensor) -> Tensor:
    """The loss `[B]`: mean over `target [B, M]`, sum over `quantiles [B, N]` at the levels (i + 1/2) / N."""
    count = quantiles.shape[1]
    level = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    error = target.unsqueeze(1) - quantiles.unsqueeze(2)
    slope = error.clamp(-1.0, 1.0)
    huber = slope * (error - 0.5 * slope)
    weight = (level.view(1, -1, 1) - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * huber).mean(2).sum(1)
