"""Ape-X DQN (Horgan et al. 2018, arXiv 1803.00933, sections 3 and 4.1): first priorities by the workers."""

from dataclasses import dataclass

import numpy as np

from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import PRIORITY, Group, ReplayLearner, RMSProp
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import Prioritised, ReplaySpec


@dataclass(frozen=True)
class ApexConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    n_step: int = 3
    ladder_base: float = 0.4
    ladder_alpha: float = 7.0
    alpha: float = 0.6
    beta: float = 0.4


class FirstPriority(EpsilonGreedy):
    """Absolute TD errors of n steps, with the q values with which the worker acted (section 3, appendix F)."""

    takes = EpsilonGreedy.takes | {"gamma", "n_step"}
    fills = frozenset({"priority"})

    def complete(self, outputs, columns, context):
        options = self.spec.options
        taken = np.take_along_axis(outputs[:-1], columns["action"][..., None], axis=2).squeeze(2)
        target = n_step_targets(columns, outputs[1:].max(2), options["gamma"], int(options["n_step"]))
        context.extras["priority"][...] = np.abs(target - taken)


class Apex(Algorithm):
    Config = ApexConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        section, obs, n = self.network_section, self.env.observation, self.env.action.n
        return NetworkSpec((("q", tower("q", section, obs, n, output_gain=1.0, dueling=True)),))

    def acting(self):
        layers, extras = self.network().tower("q"), (self.extra("priority"),)
        names = ("gamma", "n_step", "ladder_base", "ladder_alpha")
        options = {name: float(getattr(self.config, name)) for name in names}
        head, space, obs = f"{__name__}:FirstPriority", self.env.action, self.env.observation
        return ActingSpec(layers, head, space, obs, extras, input=self.input, options=options)

    def replay(self):
        prioritised = Prioritised(alpha=self.config.alpha, beta=self.config.beta)
        return ReplaySpec(n_step=self.config.n_step, prioritised=prioritised, first_priority="priority")

    def learner(self, context):
        optimiser = RMSProp(alpha=0.95, epsilon=1.5e-7, centred=True)
        return ApexLearner(self, context, (Group("q", target=True, max_grad_norm=40.0, optimiser=optimiser),))


class ApexLearner(ReplayLearner):
    def train(self, batch):
        net = self.net
        with torch.no_grad():
            best = net("q", batch["next_obs"]).argmax(1, keepdim=True)
            next_q = net("q", batch["next_obs"], target=True).gather(1, best).squeeze(1)
            target = batch["n_step_return"] + batch["discount"] * next_q
        delta = net("q", batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1) - target
        loss = (batch["weight"] * delta.square()).mean() / 2
        net.step("q", loss)
        net.update_targets(self.config.tau)
        return {"loss/q": loss, PRIORITY: delta.detach().abs()}


def n_step_targets(columns, value, gamma, steps):
    """`[T, N]`: rewards of `steps` rows or up to the end of episode or segment, then `value [T, N]` after the last."""
    continues = ~(columns["terminated"] | columns["truncated"])
    continues[-1] = False
    ahead = value
    for _ in range(steps):
        target = columns["reward"] + gamma * ~columns["terminated"] * ahead
        ahead = np.where(continues, np.roll(target, -1, axis=0), value)
    return target
