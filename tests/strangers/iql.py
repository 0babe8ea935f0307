"""Implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169, equations 5 to 7). Temperature 0: behaviour cloning."""

from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical, gaussian, mean_and_log_std
from zmqrl.replay.spec import ReplaySpec

CRITICS = ("q1", "q2")


@dataclass(frozen=True)
class IQLConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    expectile: float = 0.7
    temperature: float = 3.0
    """Inverse temperature beta of the advantages."""
    max_weight: float = 100.0


class IQL(Algorithm):
    Config = IQLConfig
    modes = frozenset({"single", "sync", "async", "offline"})
    on_policy = False
    actions = frozenset({"discrete", "box"})

    @property
    def is_discrete(self):
        return self.env.action.kind == "discrete"

    def network(self):
        section, obs, space = self.network_section, self.env.observation, self.env.action
        size = space.n if self.is_discrete else space.shape[0]
        actor = tower("actor", section, obs, size if self.is_discrete else 2 * size, output_gain=0.01)
        critics = ((name, tower(name, section, obs, 1, output_gain=1.0, joined=size)) for name in CRITICS)
        value = tower("value", section, obs, 1, output_gain=1.0)
        return NetworkSpec((("actor", actor), ("value", value), *critics), learner_only=("value", *CRITICS))

    def acting(self):
        layers, head = self.network().tower("actor"), "categorical" if self.is_discrete else "gaussian"
        return ActingSpec(layers, head, self.env.action, self.env.observation, input=self.input)

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        groups = (Group("actor"), Group("value"), Group("q", CRITICS, target=True))
        return IQLLearner(self, context, groups)


class IQLLearner(ReplayLearner):
    def train(self, batch):
        config, net, obs = self.config, self.net, batch["obs"]
        with torch.no_grad():
            best = torch.minimum(*self.q(batch, target=True))
            target = batch["n_step_return"] + batch["discount"] * net("value", batch["next_obs"]).squeeze(1)
        surplus = best - net("value", obs).squeeze(1)
        weight = torch.where(surplus.detach() < 0, 1 - config.expectile, config.expectile)
        loss_value = (weight * surplus.square()).mean()
        net.step("value", loss_value)
        loss_q = sum((q - target).square().mean() for q in self.q(batch))
        net.step("q", loss_q)
        advantage = (config.temperature * surplus.detach()).exp().clamp(max=config.max_weight)
        loss_actor = -(advantage * self.log_prob(net("actor", obs), batch["action"])).mean()
        net.step("actor", loss_actor)
        net.update_targets(config.tau)
        return {"loss/value": loss_value, "loss/q": loss_q, "loss/actor": loss_actor}

    def q(self, batch, **options):
        action, env = batch["action"], self.algorithm.env
        if self.algorithm.is_discrete:
            action = torch.nn.functional.one_hot(action, env.action.n).float()
        return [self.net(name, batch["obs"], action, **options).squeeze(1) for name in CRITICS]

    def log_prob(self, outputs, action):
        if self.algorithm.is_discrete:
            return categorical(outputs, action)[0]
        return gaussian(*mean_and_log_std(outputs), action)[0]
