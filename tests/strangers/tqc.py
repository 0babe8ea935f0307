"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269, section 4, algorithm 1)."""

from dataclasses import dataclass

from tests.strangers.implicit_quantiles import midpoints
from tests.strangers.iqn import quantile_huber
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import tanh_gaussian
from zmqrl.replay.spec import ReplaySpec


@dataclass(frozen=True)
class TQCConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.005
    critics: int = 5
    quantiles: int = 25
    dropped: int = 2
    """Atoms per critic: the `critics * dropped` largest of all atoms are left out."""


class TQC(Algorithm):
    Config = TQCConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions, needs_bounds = frozenset({"box"}), True

    @property
    def critics(self):
        return tuple(f"q{number}" for number in range(self.config.critics))

    def network(self):
        size, section, obs = self.env.action.shape[0], self.network_section, self.env.observation
        actor = tower("actor", section, obs, 2 * size, output_gain=0.01)
        shape = {"outputs": self.config.quantiles, "output_gain": 1.0, "joined": size}
        critics = ((name, tower(name, section, obs, **shape)) for name in self.critics)
        return NetworkSpec(
            (("actor", actor), *critics), (("log_alpha", (), 0.0),), learner_only=(*self.critics, "log_alpha")
        )

    def acting(self):
        layers = self.network().tower("actor")
        return ActingSpec(layers, "squashed_gaussian", self.env.action, self.env.observation, input=self.input)

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        groups = (Group("actor"), Group("q", self.critics, target=True), Group("log_alpha"))
        return TQCLearner(self, context, groups)


class TQCLearner(ReplayLearner):
    def __init__(self, algorithm, context, groups):
        super().__init__(algorithm, context, groups)
        self.fractions = self.tensor(midpoints(self.config.quantiles))
        self.low, self.high = (self.tensor(side) for side in (algorithm.env.action.low, algorithm.env.action.high))

    def noise(self):
        return dict.fromkeys(("noise", "next_noise"), self.algorithm.env.action.shape)

    def train(self, batch):
        net, config = self.net, self.config
        stored = 2 * (batch["action"] - self.low) / (self.high - self.low) - 1
        alpha = net.parameter("log_alpha").detach().exp()
        with torch.no_grad():
            action, log_prob = tanh_gaussian(net("actor", batch["next_obs"]), batch["next_noise"])
            atoms = truncated(
                self.q(batch["next_obs"], action, target=True).flatten(1), config.critics * config.dropped
            )
            following = truncated(atoms, config.critics * config.dropped) - alpha * log_prob.unsqueeze(1)
            target = batch["n_step_return"].unsqueeze(1) + batch["discount"].unsqueeze(1) * following
        q = self.q(batch["obs"], stored)
        loss_q = sum(quantile_huber(q[:, number], self.fractions, target).mean() for number in range(config.critics))
        net.step("q", loss_q)
        action, log_prob = tanh_gaussian(net("actor", batch["obs"]), batch["noise"])
        loss_actor = (alpha * log_prob - self.q(batch["obs"], action).mean((1, 2))).mean()
        net.step("actor", loss_actor)
        surplus = log_prob.detach() - action.shape[1]
        net.step("log_alpha", -(net.parameter("log_alpha") * surplus).mean())
        net.update_targets(config.tau)
        return {"loss/q": loss_q, "loss/actor": loss_actor, "alpha": alpha}

    def q(self, obs, action, **options):
        """`[B, critics, quantiles]`."""
        return torch.stack([self.net(name, obs, action, **options) for name in self.algorithm.critics], 1)


def truncated(atoms, dropped):
    """Select the K - dropped smallest of `atoms [B, K]`."""
    return atoms.sort(1).values[:, : atoms.shape[1] - dropped]
