"""Double DQN with hindsight experience replay (Andrychowicz et al. 2017, arXiv 1707.01495, algorithm 1, `future`)."""

from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner, Schedule, Scheduled, value_at
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.replay.spec import Relabel, ReplaySpec

EPSILON = Schedule(1.0, 0.1, 0.5)


@dataclass(frozen=True)
class HERConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.98
    batch_size: int = 64
    tau: float = 0.01
    epsilon: Scheduled = EPSILON
    reward: str | None = None
    """`module:function` of achieved and desired goals. None: stored goals alone, for envs without goals."""
    reached: str | None = None
    share: float = 0.8


class HER(Algorithm):
    Config = HERConfig
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
        config = self.config
        other = Relabel(config.reward, config.share, config.reached) if config.reward else None
        return ReplaySpec(relabel=other)

    def learner(self, context):
        return HERLearner(self, context, (Group("q", target=True),))


class HERLearner(ReplayLearner):
    def train(self, batch):
        net = self.net
        with torch.no_grad():
            best = net("q", batch["next_obs"]).argmax(1, keepdim=True)
            next_q = net("q", batch["next_obs"], target=True).gather(1, best).squeeze(1)
            target = batch["n_step_return"] + batch["discount"] * next_q
        q = net("q", batch["obs"]).gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss = torch.nn.functional.huber_loss(q, target)
        net.step("q", loss)
        net.update_targets(self.config.tau)
        return {"loss/q": loss, "reward": batch["n_step_return"].mean()}
