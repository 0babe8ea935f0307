"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv 1509.02971)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.sac import QActor, QActorConfig, QActorLearner
from zmqrl.config.codec import replace
from zmqrl.learning import Batch, Group, Rate
from zmqrl.loading import Tensor, torch
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.spaces import SpaceKind


@dataclass(frozen=True)
class DDPGConfig(QActorConfig):
    """The fields other than `kind: ddpg`. Defaults are those of Stable-Baselines3."""

    learning_rate: Rate = 1e-3
    """Adam's step size, of actor and critics."""
    target_tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Share of the networks mixed into their targets."""
    exploration_noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of the noise on workers' actions, in units of half the action range."""


class DDPG(QActor, Algorithm):
    """Continuous actions within bounds."""

    Config: ClassVar[type[DDPGConfig]] = DDPGConfig
    actions: ClassVar[frozenset[SpaceKind]] = frozenset({"box"})
    critic_count: ClassVar[int] = 1
    config: DDPGConfig

    @property
    def actor_outputs(self) -> int:
        """An action."""
        return self.action_size

    def network(self) -> NetworkSpec:
        """`actor`, which ends in tanh; the critics, which only the learner has."""
        spec = super().network()
        (name, actor), *critics = spec.towers
        return replace(spec, towers=((name, (*actor, LayerSpec("tanh"))), *critics))

    def acting(self) -> ActingSpec:
        """The actor's action plus Gaussian noise."""
        return replace(super().acting(), head="deterministic_noise")

    def schedule(self, progress: Progress) -> Mapping[str, float]:
        """`noise` and, during the warm-up, `uniform` actions for the workers."""
        return {"noise": self.config.exploration_noise, **super().schedule(progress)}

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        return DDPGLearner(self, context)


class DDPGLearner(QActorLearner):
    """Steps critics, actor and targets in each update."""

    algorithm: DDPG
    config: DDPGConfig

    def __init__(self, algorithm: DDPG, context: LearnerContext) -> None:
        norm = algorithm.config.max_grad_norm
        groups = (
            Group("actor", max_grad_norm=norm, target=True),
            Group("critics", algorithm.critics, max_grad_norm=norm, target=True),
        )
        super().__init__(algorithm, context, groups)

    def train(self, batch: Batch, moves_actor: bool = True) -> Mapping[str, Tensor]:
        """Algorithm 1 of the paper; the target is the lowest of the critics."""
        net, obs = self.net, batch["obs"]
        with torch.no_grad():
            next_q = reduce(torch.minimum, self.q(batch["next_obs"], self.next_action(batch), target=True))
            target = batch["n_step_return"] + batch["discount"] * next_q.squeeze(1)
        q = [one.squeeze(1) for one in self.q(obs, self.stored(batch))]
        loss_q = reduce(torch.add, [(one - target).square().mean() for one in q])
        net.step("critics", loss_q)
        metrics = {"loss/q": loss_q, "q_mean": q[0].mean()}
        if moves_actor:
            loss_actor = -net(self.algorithm.critics[0], obs, net("actor", obs)).mean()
            net.step("actor", loss_actor)
            net.update_targets(self.config.target_tau)
            metrics["loss/actor"] = loss_actor
        return metrics

    def next_action(self, batch: Batch) -> Tensor:
        """Actions of the target in the states after those of a sample, in [-1, 1]."""
        return self.net("actor", batch["next_obs"], target=True)
