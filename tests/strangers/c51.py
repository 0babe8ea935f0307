"""C51: Q-learning on distributions of returns (Bellemare et al. 2017, arXiv 1707.06887, section 4)."""

from dataclasses import dataclass

import numpy as np

from zmqrl.acting.heads import EpsilonGreedy
from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner, Schedule, Scheduled, value_at
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import ReplaySpec

EPSILON = Schedule(1.0, 0.05, 0.5)


@dataclass(frozen=True)
class C51Config:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    tau: float = 0.01
    epsilon: Scheduled = EPSILON
    atoms: int = 51
    low: float = -10.0
    high: float = 10.0


class ExpectedValue(EpsilonGreedy):
    """Acts on the expected values of the distributions."""

    takes = EpsilonGreedy.takes | {"low", "high"}

    def act(self, outputs, t, context):
        return super().act(self.values(outputs), t, context)

    def act_greedily(self, outputs):
        return super().act_greedily(self.values(outputs))

    def values(self, outputs):
        logits = outputs.reshape(self.rows, self.spec.action.n, -1)
        p = np.exp(logits - logits.max(2, keepdims=True))
        low, high = self.spec.options["low"], self.spec.options["high"]
        return (p / p.sum(2, keepdims=True)) @ np.linspace(low, high, p.shape[2], dtype=np.float32)


class C51(Algorithm):
    Config = C51Config
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        outputs = self.env.action.n * self.config.atoms
        return NetworkSpec((("q", tower("q", self.network_section, self.env.observation, outputs, output_gain=1.0)),))

    def acting(self):
        layers, head = self.network().tower("q"), f"{__name__}:ExpectedValue"
        options = {"low": self.config.low, "high": self.config.high}
        return ActingSpec(layers, head, self.env.action, self.env.observation, input=self.input, options=options)

    def schedule(self, progress):
        return {"epsilon": value_at(self.config.epsilon, progress)}

    def replay(self):
        return ReplaySpec()

    def learner(self, context):
        return C51Learner(self, context, (Group("q", target=True),))


class C51Learner(ReplayLearner):
    def __init__(self, algorithm, context, groups):
        super().__init__(algorithm, context, groups)
        self.support = self.tensor(np.linspace(self.config.low, self.config.high, self.config.atoms))

    def train(self, batch):
        with torch.no_grad():
            following = self.logits(batch["next_obs"], target=True).softmax(2)
            p = of_action(following, (following @ self.support).argmax(1))
            target = project(p, batch["n_step_return"], batch["discount"], self.support)
        log_p = of_action(self.logits(batch["obs"]), batch["action"]).log_softmax(1)
        loss = -(target * log_p).sum(1).mean()
        self.net.step("q", loss)
        self.net.update_targets(self.config.tau)
        return {"loss/q": loss}

    def logits(self, obs, **options):
        """`[B, n, atoms]`."""
        return self.net("q", obs, **options).unflatten(1, (-1, self.config.atoms))


def of_action(values, action):
    """Select the values `[B, K]` of `action [B]` from `values [B, n, K]`."""
    return values.gather(1, action.reshape(-1, 1, 1).expand(-1, 1, values.shape[2])).squeeze(1)


def project(p, returns, discount, support):
    """Projection of `returns + discount * support` with probabilities `p [B, atoms]` onto `support` (algorithm 1).

    Each moved atom gives its probability to its two neighbours in `support`, more to the nearer one (equation 7).
    """
    low, high, step = support[0], support[-1], support[1] - support[0]
    moved = (returns.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(low, high)
    share = (1 - (moved.unsqueeze(1) - support.unsqueeze(1)).abs() / step).clamp(min=0)
    return (share * p.unsqueeze(1)).sum(2)
