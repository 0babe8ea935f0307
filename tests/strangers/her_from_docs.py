"""DDPG with hindsight experience replay (Andrychowicz et al. 2017), and a point in a plane that must reach a goal."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from zmqrl.acting.spec import ActingSpec, NoiseSpec
from zmqrl.algorithms.base import Algorithm
from zmqrl.learning import Group, ReplayLearner
from zmqrl.loading import torch
from zmqrl.networks.build import tower
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.replay.spec import Relabel, ReplaySpec

RADIUS = 0.1


def reward(achieved, desired):
    """0 where the point is at the goal, else -1, for goals `[..., 2]`."""
    return np.where(np.linalg.norm(achieved - desired, axis=-1) <= RADIUS, 0.0, -1.0)


class Point(gym.Env):
    """An action is an acceleration; the point has to be at the goal and to stay there. No step terminates."""

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    observation_space = gym.spaces.Dict(
        observation=gym.spaces.Box(-2, 2, (4,), np.float32),
        achieved_goal=gym.spaces.Box(-2, 2, (2,), np.float32),
        desired_goal=gym.spaces.Box(-2, 2, (2,), np.float32),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.velocity = np.zeros(2), np.zeros(2)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.goal = self.np_random.uniform(0.6, 1.0) * np.array([np.cos(angle), np.sin(angle)])
        return self.observation(), {}

    def step(self, action):
        self.velocity = 0.8 * self.velocity + 0.05 * np.asarray(action, np.float64)
        self.position = np.clip(self.position + self.velocity, -1.5, 1.5)
        return self.observation(), float(reward(self.position, self.goal)), False, False, {}

    def observation(self):
        here = self.position.astype(np.float32)
        whole = np.concatenate((self.position, self.velocity)).astype(np.float32)
        return {"observation": whole, "achieved_goal": here, "desired_goal": self.goal.astype(np.float32)}


@dataclass(frozen=True)
class HERConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.98
    batch_size: int = 128
    tau: float = 0.01
    noise: float = 0.1
    """Deviation of the exploration, in units of half the range of an action."""
    random_share: float = 0.2
    """Share of uniform actions after the warm-up."""
    warmup_env_steps: int = 1000
    action_penalty: float = 1e-2
    share: float = 0.8
    """Share of transitions with another goal: 0.8 is k = 4. 0 is DDPG without hindsight."""
    reward: str = f"{__name__}:reward"
    """Function of achieved and desired goals."""
    least_return: float | None = None
    """Lower bound of the targets. The paper has -1 / (1 - gamma) for rewards of -1 and 0, with 0 as upper bound."""


class HER(Algorithm):
    Config = HERConfig
    modes = frozenset({"single", "sync", "async"})
    on_policy = False
    actions, needs_bounds = frozenset({"box"}), True

    @property
    def size(self):
        return self.env.action.shape[0]

    def network(self):
        section, obs = self.network_section, self.env.observation
        actor = (*tower("actor", section, obs, self.size, output_gain=0.01), LayerSpec("tanh"))
        critic = tower("q", section, obs, 1, output_gain=1.0, joined=self.size)
        return NetworkSpec((("actor", actor), ("q", critic)), learner_only=("q",))

    def acting(self):
        layers, noise = self.network().tower("actor"), (NoiseSpec("uniform", self.size, "uniform"),)
        space, obs = self.env.action, self.env.observation
        return ActingSpec(layers, "deterministic_noise", space, obs, input=self.input, noise=noise)

    def schedule(self, progress):
        warm = progress.env_steps >= self.config.warmup_env_steps
        return {"noise": self.config.noise, "uniform": self.config.random_share if warm else 1.0}

    def replay(self):
        config = self.config
        return ReplaySpec(relabel=Relabel(config.reward, config.share) if config.share else None)

    def learner(self, context):
        return HERLearner(self, context, (Group("actor", target=True), Group("q", target=True)))


class HERLearner(ReplayLearner):
    def __init__(self, algorithm, context, groups):
        super().__init__(algorithm, context, groups)
        self.low, self.high = (
            self.tensor(np.array(side)) for side in (algorithm.env.action.low, algorithm.env.action.high)
        )

    def train(self, batch):
        net, config, obs, next_obs = self.net, self.config, batch["obs"], batch["next_obs"]
        taken = (2 * (batch["action"] - self.low) / (self.high - self.low) - 1).clamp(-1, 1)
        with torch.no_grad():
            following = net("q", next_obs, net("actor", next_obs, target=True), target=True).squeeze(1)
            target = batch["n_step_return"] + batch["discount"] * following
            if config.least_return is not None:
                target = target.clamp(config.least_return, 0.0)
        loss_q = (net("q", obs, taken).squeeze(1) - target).square().mean()
        net.step("q", loss_q)
        action = net("actor", obs)
        loss_actor = config.action_penalty * action.square().mean() - net("q", obs, action).mean()
        net.step("actor", loss_actor)
        net.update_targets(config.tau)
        return {"loss/q": loss_q, "loss/actor": loss_actor, "q_mean": target.mean()}
