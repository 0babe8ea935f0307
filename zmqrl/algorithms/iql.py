"""Implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169): values of the best actions that a data set has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, Lt

from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.algorithms.bc import BC, BCConfig, BCLearner
from zmqrl.algorithms.start.defaults import Sections, continuous_defaults
from zmqrl.config.sections import Fraction
from zmqrl.learning import Batch, Group, ReplayLearner
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import NetworkSpec
from zmqrl.networks.torch_input import TorchInput
from zmqrl.replay.base import AnySample, Replay
from zmqrl.types import MODES, EnvSpec, ModeName

CRITICS = ("q1", "q2")


@dataclass(frozen=True)
class IQLConfig(BCConfig):
    """The fields other than `kind: iql`. Defaults are those of the paper for locomotion."""

    gamma: Fraction = 0.99
    """Discount per step."""
    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the critics mixed into their targets in each update."""
    expectile: Annotated[float, Gt(0), Lt(1)] = 0.7
    """Expectile (tau of the paper) of the values of the actions of the data that is a state's value; 0.5: the mean."""
    inverse_temperature: Annotated[float, Ge(0)] = 3.0
    """Factor (beta of the paper) of the advantage in the weight exp(beta A) of an action; 0: behaviour cloning."""
    max_weight: Annotated[float, Gt(0)] = 100.0
    """Bound of this weight."""


class IQL(BC, Algorithm):
    """Any actions."""

    Config: ClassVar[type[IQLConfig]] = IQLConfig
    modes: ClassVar[frozenset[ModeName]] = frozenset(MODES)
    config: IQLConfig

    @classmethod
    def defaults(cls, env: EnvSpec) -> Sections:
        """Defaults of SAC."""
        return continuous_defaults(env)

    def network(self) -> NetworkSpec:
        """That of `bc`; `value`, `q1` and `q2`, which only the learner has."""
        policy, section, obs = super().network(), self.network_section, self.env.observation
        size = network_input(self.env.action).size
        critics = ((name, tower(name, section, obs, 1, output_gain=1.0, joined=size)) for name in CRITICS)
        towers = (("value", tower("value", section, obs, 1, output_gain=1.0)), *critics)
        return NetworkSpec((*policy.towers, *towers), policy.parameters, learner_only=("value", *CRITICS))

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return IQLLearner(self, context)


class IQLLearner(BCLearner):
    """Steps value, policy and critics in each update, in the order of the code of the paper."""

    config: IQLConfig

    def __init__(self, algorithm: IQL, context: LearnerContext) -> None:
        super().__init__(algorithm, context, (Group("value"), Group("critics", CRITICS, target=True)))
        action = algorithm.env.action
        self._encoded = TorchInput(network_input(action), action)
        scaled = action.is_bounded and action.unscalable is None
        self._low, self._high = (
            self.tensor(side if scaled else (s,)) for side, s in ((action.low, -1.0), (action.high, 1.0))
        )

    def sample(self, replay: Replay, number: int) -> AnySample:
        """Transitions."""
        return ReplayLearner.sample(self, replay, number)

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Equations 5, 7 and 6 of the paper."""
        config, net, obs = self.config, self.net, batch["obs"]
        action = self.encoded(batch["action"])
        lower = torch.minimum(*self.q(obs, action, target=True))
        surplus = lower - net("value", obs).squeeze(1)
        share = torch.where(surplus.detach() < 0, 1.0 - config.expectile, config.expectile)
        loss_value = (share * surplus.square()).mean()
        net.step("value", loss_value)
        with torch.no_grad():
            value, following = (net("value", batch[name]).squeeze(1) for name in ("obs", "next_obs"))
            weight = (config.inverse_temperature * (lower - value)).exp().clamp(max=config.max_weight)
            target = batch["n_step_return"] + batch["discount"] * following
        log_prob, entropy = self.policy(batch)
        loss_actor = -(weight * log_prob).mean()
        net.step("actor", loss_actor)
        q1, q2 = self.q(obs, action)
        loss_q = (q1 - target).square().mean() + (q2 - target).square().mean()
        net.step("critics", loss_q)
        net.update_targets(config.target_tau)
        losses = {"loss/value": loss_value, "loss/actor": loss_actor, "loss/q": loss_q}
        return {**losses, "q_mean": q1.mean(), "weight_mean": weight.mean(), "entropy": entropy.mean()}

    def q(self, obs: Tensor, action: Tensor, target: bool = False) -> Sequence[Tensor]:
        """What each critic has for encoded actions, `[B]`."""
        return [self.net(name, obs, action, target=target).squeeze(1) for name in CRITICS]

    def encoded(self, action: Tensor) -> Tensor:
        """Discrete entries as one-hot, continuous ones scaled to [-1, 1] where they have bounds."""
        found = self._encoded(action)
        if self.algorithm.env.action.choices:
            return found
        return 2.0 * (found.flatten(1) - self._low) / (self._high - self._low) - 1.0
