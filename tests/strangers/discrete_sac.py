"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207, equations 10 to 12)."""

from dataclasses import dataclass

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import ReplaySpec

CRITICS = ("q1", "q2")


@dataclass(frozen=True)
class DiscreteSACConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    target_entropy: float = 0.98
    """Share of the largest entropy."""


class DiscreteSAC(Algorithm):
    Config = DiscreteSACConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        section, obs, n = self.network_section, self.env.observation, self.env.action.n
        critics = tuple((name, tower(name, section, obs, n, output_gain=1.0)) for name in CRITICS)
        towers = (("actor", tower("actor", section, obs, n, output_gain=0.01)), *critics)
        return NetworkSpec(towers, (("log_alpha", (), 0.0),), learner_only=(*CRITICS, "log_alpha"))

    def acting(self):
        layers = self.network().tower("actor")
        return ActingSpec(layers, "categorical", self.env.action, self.env.observation, input=self.input)

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        groups = (Group("actor"), Group("q", CRITICS, target=True), Group("log_alpha"))
        return DiscreteSACLearner(self, context, groups)


class DiscreteSACLearner(ReplayLearner):
    def train(self, batch):
        net, action = self.net, batch["action"].unsqueeze(1)
        alpha = net.parameter("log_alpha").detach().exp()
        with torch.no_grad():
            log_p = net("actor", batch["next_obs"]).log_softmax(1)
            next_q = torch.minimum(*(net(name, batch["next_obs"], target=True) for name in CRITICS))
            value = (log_p.exp() * (next_q - alpha * log_p)).sum(1)
            target = batch["n_step_return"] + batch["discount"] * value
        loss_q = sum(
            (net(name, batch["obs"]).gather(1, action).squeeze(1) - target).square().mean() for name in CRITICS
        )
        net.step("q", loss_q)
        with torch.no_grad():
            q = torch.minimum(*(net(name, batch["obs"]) for name in CRITICS))
        log_p = net("actor", batch["obs"]).log_softmax(1)
        loss_actor = (log_p.exp() * (alpha * log_p - q)).sum(1).mean()
        net.step("actor", loss_actor)
        entropy = -(log_p.exp() * log_p).sum(1).detach().mean()
        surplus = entropy - self.config.target_entropy * np.log(self.algorithm.env.action.n)
        net.step("log_alpha", net.parameter("log_alpha") * surplus)
        net.update_targets(self.config.tau)
        return {"loss/q": loss_q, "loss/actor": loss_actor, "alpha": alpha, "entropy": entropy}
