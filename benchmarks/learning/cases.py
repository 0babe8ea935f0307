"""What is trained, by zmqrl and by Stable-Baselines3: the presets with ten seeds, and the defaults of each.

With `presets` zmqrl has its preset. Stable-Baselines3 has the same settings where it has them all, which are those of
rl-zoo for PPO and of CleanRL for DQN on CartPole, and else rl-zoo's for the env. With `defaults` neither is given a
setting in addition to the env, the algorithm and the number of env steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Part = Literal["presets", "defaults"]
System = Literal["zmqrl", "stable-baselines3"]
SYSTEMS: tuple[System, ...] = ("zmqrl", "stable-baselines3")
MINATAR = {"env.kwargs": {"game": "asterix", "use_minimal_action_set": True}, "env.max_episode_steps": 5000}


@dataclass(frozen=True)
class Case:
    """An env and an algorithm, trained for a number of env steps."""

    name: str
    part: Part
    env: str
    algorithm: Literal["PPO", "DQN"]
    env_steps: int
    reference: float | None = None
    """Return that counts as 1, with that of random actions as 0. None: the median of Stable-Baselines3."""
    preset: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of zmqrl, in addition to those of the preset."""
    peer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class of Stable-Baselines3."""
    peer_envs: int = 1
    normalise: bool = False
    """Whether Stable-Baselines3 normalises observations and rewards."""

    @property
    def seeds(self) -> int:
        """Number of the seeds, from 1."""
        return 10 if self.part == "presets" else 3


CASES: tuple[Case, ...] = (
    Case(
        "cartpole-ppo",
        *("presets", "CartPole-v1", "PPO", 100_000, 500.0, "cartpole-ppo"),
        peer={
            "learning_rate": ("falling", 1e-3),
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "ent_coef": 0.0,
            "clip_range": ("falling", 0.2),
        },
        peer_envs=8,
    ),
    Case(
        "cartpole-dqn",
        *("presets", "CartPole-v1", "DQN", 250_000, 500.0, "cartpole-dqn"),
        peer={
            "learning_rate": 2.5e-4,
            "buffer_size": 10_000,
            "learning_starts": 10_000,
            "batch_size": 128,
            "train_freq": 10,
            "target_update_interval": 500,
            "exploration_fraction": 0.5,
            "exploration_final_eps": 0.05,
            "policy_kwargs": {"net_arch": [120, 84]},
        },
    ),
    Case(
        "acrobot-ppo",
        *("presets", "Acrobot-v1", "PPO", 250_000, -73.5, "acrobot-ppo"),
        peer={"n_steps": 256, "n_epochs": 4, "gae_lambda": 0.94, "ent_coef": 0.0},
        peer_envs=16,
        normalise=True,
    ),
    Case(
        "lunarlander-ppo",
        *("presets", "LunarLander-v3", "PPO", 400_000, 242.1, "lunarlander-ppo"),
        peer={"n_steps": 1024, "n_epochs": 4, "gamma": 0.999, "gae_lambda": 0.98, "ent_coef": 0.01},
        peer_envs=16,
    ),
    Case(
        "lunarlander-dqn",
        *("presets", "LunarLander-v3", "DQN", 100_000, 242.1, "lunarlander-dqn"),
        peer={
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    Case("lunarlander-continuous", "defaults", "LunarLanderContinuous-v3", "PPO", 100_000),
    Case("mountaincar-continuous", "defaults", "MountainCarContinuous-v0", "PPO", 50_000),
    Case("bipedalwalker", "defaults", "BipedalWalker-v3", "PPO", 100_000),
    Case("lunarlander", "defaults", "LunarLander-v3", "DQN", 50_000),
    Case("hopper", "defaults", "Hopper-v5", "PPO", 100_000),
    Case("swimmer", "defaults", "Swimmer-v5", "PPO", 100_000),
    Case("taxi", "defaults", "Taxi-v4", "PPO", 100_000),
    Case("asterix", "defaults", "minatar.gym:BaseEnv", "PPO", 100_000, settings=MINATAR),
    Case("asterix-dqn", "defaults", "minatar.gym:BaseEnv", "DQN", 100_000, settings=MINATAR),
)


def case_of(name: str) -> Case:
    """The case with this name."""
    return next(case for case in CASES if case.name == name)


def words_of(case: Case, seed: int, run: str, wrapper: str) -> Sequence[str]:
    """Arguments of `zmqrl`. `wrapper` is the last wrapper of the env."""
    words = [case.preset] if case.preset else ["--env", case.env, "--algo", case.algorithm.lower()]
    wrappers = [*(["zmqrl.envs.minatar:MinAtar"] if "minatar" in case.env else []), wrapper]
    settings = {
        "run.total_env_steps": case.env_steps,
        "run.schedule_env_steps": None,
        "run.stop_at_return": None,
        "env.wrappers": wrappers,
        "evaluator.episodes": 0,  # while it trains; Stable-Baselines3 evaluates nothing either
        "evaluator.env": {"wrappers": wrappers[:-1]},
        **case.settings,
    }
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    return ["train", *words, "--workers", "2", "--seed", str(seed), "--plain", "--run-dir", run, *given]
