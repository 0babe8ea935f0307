"""PPO with random network distillation (Burda et al. 2018, arXiv 1810.12894, algorithm 1): two values."""

from dataclasses import dataclass, replace

import numpy as np

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import BatchLearner, Group, Noise
from zmqrl.learning.normalisation import RewardNormaliser
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import NetworkSpec
from zmqrl.ops.policies import categorical
from zmqrl.ops.returns import generalised_advantages

LEARNER_ONLY = ("critic", "curious", "predictor", "random")


@dataclass(frozen=True)
class RNDConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gamma_intrinsic: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_cost: float = 0.001
    extrinsic_weight: float = 2.0
    intrinsic_weight: float = 1.0
    predicted_share: float = 0.25
    features: int = 16
    epochs: int = 4
    minibatch_size: int = 128


class RND(Algorithm):
    Config = RNDConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = True
    actions = frozenset({"discrete"})
    termination_cuts_value = False

    def network(self):
        outputs = {"actor": self.env.action.n, "critic": 1, "curious": 1}
        outputs |= dict.fromkeys(("predictor", "random"), self.config.features)
        section, obs = self.network_section, self.env.observation
        gains = {"actor": 0.01}
        towers = ((n, tower(n, section, obs, size, output_gain=gains.get(n, 1.0))) for n, size in outputs.items())
        return NetworkSpec(tuple(towers), learner_only=LEARNER_ONLY)

    def acting(self):
        layers, extras = self.network().tower("actor"), (self.extra("log_prob"),)
        return ActingSpec(layers, "categorical", self.env.action, self.env.observation, extras, input=self.input)

    def learner_statistics(self):
        return {"reward": 1}

    def learner(self, context):
        return RNDLearner(self, context)


class RNDLearner(BatchLearner):
    def __init__(self, algorithm, context):
        self.scale = RewardNormaliser(algorithm.config.gamma_intrinsic, 10.0, context.weights)
        trained = Group("net", ("actor", "critic", "curious", "predictor"), max_grad_norm=0.5)
        super().__init__(algorithm, context, (trained, Group("random")), {"novelty": self.scale})

    def noise(self):
        return {"is_predicted": Noise((), "uniform")}

    def prepare(self, batch, progress):
        columns, config = batch.columns, self.config
        obs = self.observations(columns["obs"])
        flat, valid = obs.flatten(0, 1), columns["valid"]
        novelty = self.surprise(flat).reshape(obs.shape[:2])[1:].cpu().numpy() * valid
        done = columns["terminated"] | columns["truncated"]
        endless = {"terminated": np.zeros_like(done), "truncated": done}
        novelty = self.scale.merge_and_normalise(replace(batch, columns={**columns, **endless, "reward": novelty}))
        self.add_metrics({"novelty": novelty[valid].mean()})
        advantage, targets = 0.0, {}
        for name, reward, ends, gamma, weight in (
            ("critic", columns["reward"], columns, config.gamma, config.extrinsic_weight),
            ("curious", novelty, endless, config.gamma_intrinsic, config.intrinsic_weight),
        ):
            value = self.net(name, flat).reshape(obs.shape[:2]).cpu().numpy()
            flags = ends["terminated"], ends["truncated"], valid
            of_value = generalised_advantages(reward, value, *flags, gamma, config.gae_lambda)
            targets[name] = of_value + value[:-1]
            advantage = advantage + weight * of_value
        more = {**targets, "obs": obs[:-1], "next_obs": obs[1:], "advantage": advantage}
        return self.rows(batch, "action", "log_prob", **more)

    def train(self, batch):
        config, net, x = self.config, self.net, batch["obs"]
        log_prob, entropy = categorical(net("actor", x), batch["action"])
        ratio = (log_prob - batch["log_prob"]).exp()
        advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        loss_actor = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        errors = [(net(name, x).squeeze(1) - batch[name]).square().mean() for name in ("critic", "curious")]
        is_predicted = (batch["is_predicted"] < config.predicted_share).float()
        surprise = (self.surprise(batch["next_obs"]) * is_predicted).sum() / is_predicted.sum().clamp(min=1)
        net.step("net", loss_actor + 0.5 * sum(errors) + surprise - config.entropy_cost * entropy.mean())
        return {"loss/actor": loss_actor, "loss/critic": errors[0], "loss/curious": errors[1], "surprise": surprise}

    def surprise(self, x):
        """Squared error `[B]` of the predictor."""
        return (self.net("predictor", x) - self.net("random", x).detach()).square().mean(1)
