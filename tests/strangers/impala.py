"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561, section 4), with `clip` APPO (PPO's objective on V-trace)."""

from dataclasses import dataclass

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import BatchLearner, Group, Rate, RMSProp
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical


@dataclass(frozen=True)
class IMPALAConfig:
    learning_rate: Rate = 2e-3
    gamma: float = 0.99
    batch_segments: int = 4
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    clip: float = 0.0
    """0: the policy gradient of IMPALA. Larger: the clipped objective of PPO, for several epochs."""
    epochs: int = 1
    minibatch_size: int = 1_000_000


class IMPALA(Algorithm):
    Config = IMPALAConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = True
    actions = frozenset({"discrete"})

    @property
    def batch_segments(self):
        return self.config.batch_segments

    def network(self):
        section, obs = self.network_section, self.env.observation
        actor = tower("actor", section, obs, self.env.action.n, output_gain=0.01)
        return NetworkSpec((("actor", actor), ("critic", tower("critic", section, obs, 1, output_gain=1.0))))

    def acting(self):
        layers, extras = self.network().tower("actor"), (self.extra("log_prob"),)
        return ActingSpec(layers, "categorical", self.env.action, self.env.observation, extras, input=self.input)

    def learner(self, context):
        net = Group("net", ("actor", "critic"), max_grad_norm=1.0, optimiser=RMSProp(epsilon=1e-3))
        return IMPALALearner(self, context, (net,))


class IMPALALearner(BatchLearner):
    def prepare(self, batch, progress):
        columns = batch.columns
        obs = self.observations(columns["obs"])
        shape = columns["reward"].shape
        value = self.net("critic", obs.flatten(0, 1)).reshape(obs.shape[:2]).cpu().numpy()
        action = self.tensor(columns["action"]).flatten()
        log_prob = categorical(self.net("actor", obs[:-1].flatten(0, 1)), action)[0].reshape(shape).cpu().numpy()
        ratio = np.exp(log_prob - columns["log_prob"])
        flags = (columns[name] for name in ("terminated", "truncated", "valid"))
        target, advantage = vtrace(columns["reward"], value, ratio, *flags, self.config.gamma)
        rho = np.minimum(ratio, 1)
        self.add_metrics({"rho/mean": rho[columns["valid"]].mean()})
        return self.rows(batch, "action", "log_prob", obs=obs[:-1], target=target, advantage=advantage, rho=rho)

    def train(self, batch):
        config = self.config
        log_prob, entropy = categorical(self.net("actor", batch["obs"]), batch["action"])
        if config.clip:
            ratio = (log_prob - batch["log_prob"]).exp()
            clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
            gain = torch.minimum(ratio * batch["advantage"], clipped * batch["advantage"])
        else:
            gain = batch["rho"] * log_prob * batch["advantage"]
        loss_critic = (self.net("critic", batch["obs"]).squeeze(1) - batch["target"]).square().mean()
        loss = -gain.mean() + config.baseline_cost * loss_critic - config.entropy_cost * entropy.mean()
        self.net.step("net", loss)
        return {"loss/actor": -gain.mean(), "loss/critic": loss_critic, "entropy": entropy.mean()}


def vtrace(reward, value, ratio, terminated, truncated, valid, gamma, rho_max=1.0, c_max=1.0):
    """Targets of V-trace (equation 1) and advantages `r + gamma v' - V` of its policy gradient, each `[T, E]`.

    `value [T + 1, E]` has the values of the observations, and `ratio [T, E]` the probability ratios of the actions.
    """
    rho, c = np.minimum(ratio, rho_max), np.minimum(ratio, c_max)
    surplus = np.zeros_like(value)  # v - V
    advantage = np.zeros_like(reward)
    for t in reversed(range(len(reward))):
        continues = ~(terminated[t] | truncated[t])
        ahead = continues * surplus[t + 1]
        delta = rho[t] * (reward[t] + gamma * ~terminated[t] * value[t + 1] - value[t])
        surplus[t] = np.where(valid[t], delta + gamma * c[t] * ahead, 0)
        advantage[t] = reward[t] + gamma * ~terminated[t] * (value[t + 1] + ahead) - value[t]
    return (value + surplus)[:-1], advantage
