"""Munchausen DQN (Vieillard et al. 2020, arXiv 2007.14430, equation 2 and section 4)."""

from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner, Schedule, Scheduled, value_at
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import ReplaySpec

EPSILON = Schedule(1.0, 0.05, 0.5)


@dataclass(frozen=True)
class MunchausenConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    epsilon: Scheduled = EPSILON
    temperature: float = 0.03
    alpha: float = 0.9
    lowest: float = -1.0


class Munchausen(Algorithm):
    Config = MunchausenConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        section, obs = self.network_section, self.env.observation
        return NetworkSpec((("q", tower("q", section, obs, self.env.action.n, output_gain=1.0)),))

    def acting(self):
        layers = self.network().tower("q")
        return ActingSpec(layers, "epsilon_greedy", self.env.action, self.env.observation, input=self.input)

    def schedule(self, progress):
        return {"epsilon": value_at(self.config.epsilon, progress)}

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        return MunchausenLearner(self, context, (Group("q", target=True),))


class MunchausenLearner(ReplayLearner):
    def train(self, batch):
        config, net, action = self.config, self.net, batch["action"].unsqueeze(1)
        with torch.no_grad():
            scaled = net("q", batch["obs"], target=True) / config.temperature
            bonus = config.temperature * scaled.log_softmax(1).gather(1, action).squeeze(1)
            next_q = net("q", batch["next_obs"], target=True)
            log_policy = (next_q / config.temperature).log_softmax(1)
            soft = (log_policy.exp() * (next_q - config.temperature * log_policy)).sum(1)
            reward = batch["n_step_return"] + config.alpha * bonus.clamp(min=config.lowest, max=0)
            target = reward + batch["discount"] * soft
        q = net("q", batch["obs"]).gather(1, action).squeeze(1)
        loss = torch.nn.functional.huber_loss(q, target)
        net.step("q", loss)
        net.update_targets(config.tau)
        return {"loss/q": loss, "bonus": bonus.mean()}
