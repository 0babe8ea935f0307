"""Implicit quantile networks (Dabney et al. 2018, arXiv 1806.06923, equations 3 and 4)."""

from dataclasses import dataclass

from tests.strangers.c51 import of_action
from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, Noise, ReplayLearner, Schedule, Scheduled, value_at
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import ReplaySpec

EPSILON = Schedule(1.0, 0.05, 0.5)


@dataclass(frozen=True)
class IQNConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    epsilon: Scheduled = EPSILON
    quantiles: int = 8
    cosines: int = 64


class MeanOfQuantiles(EpsilonGreedy):
    def act(self, outputs, t, context):
        return super().act(self.values(outputs), t, context)

    def act_greedily(self, outputs):
        return super().act_greedily(self.values(outputs))

    def values(self, outputs):
        return outputs.reshape(self.rows, -1, self.spec.action.n).mean(1)


class IQN(Algorithm):
    Config = IQNConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        n, quantiles = self.env.action.n, self.config.quantiles
        *hidden, last = tower("q", self.network_section, self.env.observation, n, output_gain=1.0)
        options = (("quantiles", float(quantiles)), ("cosines", float(self.config.cosines)))
        kind = "tests.strangers.implicit_quantiles:Quantiles"
        last = LayerSpec(kind, last.name, last.inputs, n * quantiles, gain=1.0, options=options)
        return NetworkSpec((("q", (*hidden, last)),))

    def acting(self):
        layers, head = self.network().tower("q"), f"{__name__}:MeanOfQuantiles"
        return ActingSpec(layers, head, self.env.action, self.env.observation, input=self.input)

    def schedule(self, progress):
        return {"epsilon": value_at(self.config.epsilon, progress)}

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        return IQNLearner(self, context, (Group("q", target=True),))


class IQNLearner(ReplayLearner):
    def noise(self):
        return dict.fromkeys(("taus", "next_taus", "best_taus"), Noise((self.config.quantiles,), "uniform"))

    def train(self, batch):
        with torch.no_grad():
            best = self.values(batch["next_obs"], batch["best_taus"], target=True).mean(2).argmax(1)
            following = of_action(self.values(batch["next_obs"], batch["next_taus"], target=True), best)
            target = batch["n_step_return"].unsqueeze(1) + batch["discount"].unsqueeze(1) * following
        q = of_action(self.values(batch["obs"], batch["taus"]), batch["action"])
        loss = quantile_huber(q, batch["taus"], target).mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss/q": loss}

    def values(self, obs, taus, **options):
        """`[B, n, K]`."""
        name = self.algorithm.network().tower("q")[-1].name
        return self.net("q", obs, noise={name: taus}, **options).unflatten(1, (taus.shape[1], -1)).transpose(1, 2)


def quantile_huber(q, tau, target):
    """Quantile Huber loss `[B]` with kappa 1 of quantiles `q [B, N]` at `tau [B, N]` or `[N]`, and `target [B, M]`."""
    delta = target.unsqueeze(1) - q.unsqueeze(2)
    huber = torch.where(delta.abs() <= 1, 0.5 * delta.square(), delta.abs() - 0.5)
    return ((tau.unsqueeze(-1) - (delta.detach() < 0).float()).abs() * huber).mean(2).sum(1)
