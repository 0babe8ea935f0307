"""Stable-Baselines3: `run_stable_baselines3.py CASE SEED FOLDER`. Settings as of zmqrl's preset for the case."""

from __future__ import annotations

import sys

import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.logged import cartpole, pendulum

ENDLESS, HORIZON = 1_000_000_000, 250_000


def ppo(seed: int, is_parallel: bool) -> None:
    """The settings of rl-zoo. The 8 envs are stepped in this process, which is faster, or by 2 others."""

    def falling(first: float):  # type: ignore[no-untyped-def]
        return lambda remaining: first * remaining

    workers, envs = (SubprocVecEnv, 2) if is_parallel else (DummyVecEnv, 8)
    env = make_vec_env(cartpole, n_envs=envs, seed=seed, vec_env_cls=workers)
    model = PPO(
        "MlpPolicy",
        env,
        falling(1e-3),
        n_steps=256 // envs,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        clip_range=falling(0.2),
        device="cpu",
        seed=seed,
    )
    model.learn(ENDLESS if is_parallel else HORIZON)


def sac(seed: int) -> None:
    """The settings of rl-zoo; networks and minibatches are the defaults, 256-256 and 256."""
    SAC("MlpPolicy", pendulum(), learning_rate=1e-3, device="cpu", seed=seed).learn(ENDLESS)


def dqn(seed: int) -> None:
    """One update per two env steps."""
    model = DQN(
        "MlpPolicy",
        cartpole(),
        learning_rate=2.5e-4,
        buffer_size=10_000,
        learning_starts=1000,
        batch_size=64,
        gamma=0.99,
        train_freq=2,
        gradient_steps=1,
        target_update_interval=500,
        exploration_final_eps=0.05,
        exploration_fraction=1e-5,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=seed,
    )
    model.learn(ENDLESS)


def main(case: str, seed: int) -> None:
    """Train until the harness ends this process."""
    torch.set_num_threads(1)
    if case == "sac":
        sac(seed)
    elif case == "dqn":
        dqn(seed)
    else:
        ppo(seed, case == "memory")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
