"""R2D2 (Kapturowski et al. 2019), and a bandit that can be played well only with the previous action and reward."""

from dataclasses import dataclass, replace
from typing import Annotated

import gymnasium as gym
import numpy as np
from annotated_types import Ge

from zmqrl.acting.spec import ActingSpec, previous_size
from zmqrl.acting.state import state_of
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import PRIORITY, Adam, Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import Prioritised, ReplaySpec

CORE = "q.lstm"


class Bandit(gym.Env):
    """One of three arms pays 1 in the whole episode. The observation says nothing about it."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.arm = int(self.np_random.integers(3))
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action == self.arm), False, False, {}


@dataclass(frozen=True)
class R2D2Config:
    learning_rate: float = 1e-3
    gamma: float = 0.97
    batch_size: int = 32
    n_step: Annotated[int, Ge(1)] = 3
    size: int = 32
    """Of the output of the LSTM."""
    burn_in: int = 4
    length: int = 8
    stride: Annotated[int, Ge(1)] = 4
    target_update_every: Annotated[int, Ge(1)] = 100
    rescaling: float = 1e-3
    """The epsilon of h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x."""
    alpha: float = 0.9
    beta: float = 0.6
    eta: float = 0.9
    """Share of the largest error of a sequence in its priority."""
    ladder_base: float = 0.4
    ladder_alpha: float = 7.0


class R2D2(Algorithm):
    Config = R2D2Config
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions = frozenset({"discrete"})

    def network(self):
        section, action, size = self.network_section, self.env.action, self.config.size
        *hidden, last = tower("q", section, self.env.observation, action.n, output_gain=1.0, dueling=True)
        seen = last.inputs + previous_size(action)
        joined, core = LayerSpec("concat", inputs=last.inputs, outputs=seen), LayerSpec("lstm", CORE, seen, size)
        return NetworkSpec((("q", (*hidden, joined, core, replace(last, inputs=size))),))

    def acting(self):
        layers, config = self.network().tower("q"), self.config
        memory = {"state": state_of(layers), "state_every": config.stride, "previous": True}
        space, obs, options = self.env.action, self.env.observation, {"ladder": config.ladder_alpha}
        return ActingSpec(layers, "epsilon_greedy", space, obs, input=self.input, options=options, **memory)

    def schedule(self, progress):
        return {"epsilon": self.config.ladder_base}

    def replay(self):
        config = self.config
        prioritised = Prioritised(alpha=config.alpha, beta=config.beta, max_share=config.eta)
        return ReplaySpec(length=config.length, burn_in=config.burn_in, stride=config.stride, prioritised=prioritised)

    def learner(self, context):
        group = Group("q", target=True, max_grad_norm=40.0, optimiser=Adam(epsilon=1e-3))
        return R2D2Learner(self, context, (group,))


class R2D2Learner(ReplayLearner):
    def variant(self, number):
        return {"moves_target": (number + 1) % self.config.target_update_every == 0}

    def train(self, batch, moves_target):
        net, config, skip = self.net, self.config, self.config.burn_in
        obs, reset, previous = (batch[name].transpose(0, 1) for name in ("obs", "reset", "previous"))
        start, first = {CORE: batch[f"state.{CORE}"]}, (reset[:skip], previous[:skip])
        with torch.no_grad():
            (_, state), (_, lagging) = (
                net.unroll("q", obs[:skip], start, *first, target=side) for side in (False, True)
            )
        rest = reset[skip:], previous[skip:]
        q, _ = net.unroll("q", obs[skip:], state, *rest)
        names = ("action", "reward", "terminated", "truncated", "mask")
        action, *rows, mask = (batch[name].transpose(0, 1)[skip:] for name in names)
        with torch.no_grad():
            following, _ = net.unroll("q", obs[skip:], lagging, *rest, target=True)
            best = following.gather(2, q.argmax(2, keepdim=True)).squeeze(2)
            after = inverse_h(best[1:], config.rescaling)
            target = h(n_step_returns(*rows, after, config.gamma, config.n_step), config.rescaling)
        delta = (q[:-1].gather(2, action.unsqueeze(2)).squeeze(2) - target) * mask
        loss = (batch["weight"] * delta.square().sum(0) / mask.sum(0)).mean() / 2
        net.step("q", loss)
        if moves_target:
            net.update_targets()
        return {"loss/q": loss, "q_mean": q.detach().mean(), PRIORITY: delta.detach().abs().T}


def n_step_returns(reward, terminated, truncated, after, gamma, steps):
    """Returns `[L, B]` of n steps, fewer at the end of the episode and of the sequence.

    `after [L, B]` is the value of the observation after each row.
    """
    continues = ~(terminated | truncated)[:-1]
    following = after
    for _ in range(steps):
        target = reward + gamma * ~terminated * following
        following = torch.cat((torch.where(continues, target[1:], after[:-1]), after[-1:]))
    return target


def h(x, epsilon):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def inverse_h(x, epsilon):
    root = (1 + 4 * epsilon * (x.abs() + 1 + epsilon)).sqrt()
    return x.sign() * (((root - 1) / (2 * epsilon)).square() - 1)
