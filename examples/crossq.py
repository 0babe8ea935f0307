"""CrossQ (Bhatt et al. 2024, arXiv 1902.05605): SAC without target networks, with batch renormalisation.

A critic computes the values of both states of a transition in one batch, so that both have the same statistics.
Here: `zmqrl train --env Pendulum-v1 --algo crossq:CrossQ`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zmqrl.acting.spec import ActingSpec
from zmqrl.algorithms.base import Algorithm, LearnerContext, OffPolicyLearner
from zmqrl.config.sections import Fraction, Positive
from zmqrl.learning import Adam, Batch, Group, ReplayLearner
from zmqrl.loading import Tensor, torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.ops.policies import tanh_gaussian
from zmqrl.replay.spec import ReplaySpec

CRITICS, TEMPERATURE = ("q1", "q2"), "log_temperature"


@dataclass(frozen=True)
class CrossQConfig:
    learning_rate: float = 1e-3
    gamma: Fraction = 0.99
    batch_size: Positive = 256
    policy_delay: Positive = 3
    """Updates of the critics per update of actor and temperature."""
    adam_beta: Fraction = 0.5
    warmup: float = 100_000.0
    """Batches that a layer normalises as batch normalisation does."""


class CrossQ(Algorithm):
    """Continuous actions within bounds."""

    Config = CrossQConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"box"})
    needs_bounds = True

    @property
    def size(self) -> int:
        return math.prod(self.env.action.shape)

    def network(self) -> NetworkSpec:
        sizes = {"actor": (2 * self.size, 0.01, 0), **dict.fromkeys(CRITICS, (1, 1.0, self.size))}
        section, obs = self.network_section, self.env.observation
        plain = {name: tower(name, section, obs, n, output_gain=g, joined=j) for name, (n, g, j) in sizes.items()}
        towers = tuple((name, tuple(self.normalised(layers))) for name, layers in plain.items())
        return NetworkSpec(towers, ((TEMPERATURE, (), 0.0),), learner_only=(*CRITICS, TEMPERATURE))

    def normalised(self, layers: tuple[LayerSpec, ...]) -> Iterator[LayerSpec]:
        """The layers with a normalisation in front of each linear one."""
        options = (("warmup", self.config.warmup),)
        for layer in layers:
            if layer.kind == "linear":
                size, name = layer.inputs, f"{layer.name}_norm"
                yield LayerSpec("batch_renorm:BatchRenorm", name, size, size, options=options)
            yield layer

    def acting(self) -> ActingSpec:
        layers = self.network().tower("actor")
        return ActingSpec(layers, "squashed_gaussian", self.env.action, self.env.observation, input=self.input)

    def replay(self) -> ReplaySpec:
        return ReplaySpec()

    def learner(self, context: LearnerContext) -> OffPolicyLearner:
        adam = Adam(betas=(self.config.adam_beta, 0.999))
        groups = Group("actor", optimiser=adam), Group("critics", CRITICS, optimiser=adam), Group(TEMPERATURE)
        return CrossQLearner(self, context, groups)


class CrossQLearner(ReplayLearner):
    algorithm: CrossQ

    def noise(self) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("noise", "next_noise"), (self.algorithm.size,))

    def variant(self, number: int) -> Mapping[str, bool]:
        return {"moves_actor": (number + 1) % self.config.policy_delay == 0}

    def train(self, batch: Batch, moves_actor: bool = True) -> Mapping[str, Tensor]:
        net, obs, bounds = self.net, batch["obs"], self.algorithm.env.action
        low, high = self.tensor(bounds.low), self.tensor(bounds.high)
        stored = 2.0 * (batch["action"].flatten(1) - low) / (high - low) - 1.0
        temperature = net.parameter(TEMPERATURE).detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = tanh_gaussian(net("actor", batch["next_obs"]), batch["next_noise"])
        both, actions = torch.cat((obs, batch["next_obs"])), torch.cat((stored, next_action))
        (q1, next_q1), (q2, next_q2) = (net(name, both, actions).squeeze(1).chunk(2) for name in CRITICS)
        following = torch.minimum(next_q1, next_q2).detach() - temperature * next_log_prob
        target = batch["n_step_return"] + batch["discount"] * following
        loss_q = 0.5 * ((q1 - target).square() + (q2 - target).square()).mean()
        net.step("critics", loss_q)
        metrics = {"loss/q": loss_q, "q_mean": q1.mean(), "temperature": temperature}
        if moves_actor:
            action, log_prob = tanh_gaussian(net("actor", obs), batch["noise"])
            value = torch.minimum(*(net(name, obs, action, training=False).squeeze(1) for name in CRITICS))
            metrics["loss/actor"] = (temperature * log_prob - value).mean()
            net.step("actor", metrics["loss/actor"])
            surplus = (log_prob - self.algorithm.size).detach()
            net.step(TEMPERATURE, -(net.parameter(TEMPERATURE) * surplus).mean())
        return metrics
