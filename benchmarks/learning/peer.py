"""A run of Stable-Baselines3: `python -m benchmarks.learning.peer CASE SEED FOLDER`.

Its last policy then plays greedy episodes on fresh seeds; FOLDER/played.json has their returns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from benchmarks.learning.cases import MINATAR, Case, case_of
from benchmarks.peers.logged import Logged
from benchmarks.scores import EPISODES, FRESH_SEED


def plain_env(case: Case) -> gymnasium.Env[Any, Any]:
    """The env without a log. Episodes of MinAtar have the limit that they have in zmqrl."""
    if "minatar" not in case.env:
        return gymnasium.make(case.env)
    from minatar.gym import BaseEnv

    env = gymnasium.wrappers.TimeLimit(BaseEnv(**MINATAR["env.kwargs"]), MINATAR["env.max_episode_steps"])
    return gymnasium.wrappers.DtypeObservation(env, "float32")


def argument(value: Any) -> Any:
    """A number, or a schedule that falls from it to 0."""
    return (lambda remaining: value[1] * remaining) if isinstance(value, tuple) else value


def trained(case: Case, seed: int) -> tuple[Any, VecEnv]:
    """The model after its env steps."""
    env: VecEnv = make_vec_env(lambda: Logged(plain_env(case)), n_envs=case.peer_envs, seed=seed)
    if case.normalise:
        env = VecNormalize(env)
    kind: Any = {"PPO": PPO, "DQN": DQN}[case.algorithm]
    given = {name: argument(value) for name, value in case.peer.items()}
    return kind("MlpPolicy", env, device="cpu", seed=seed, **given).learn(case.env_steps), env


def main(name: str, seed: int, folder: Path) -> None:
    """Train, then play."""
    torch.set_num_threads(1)
    case = case_of(name)
    model, env = trained(case, seed)
    fresh: VecEnv = DummyVecEnv([lambda: Monitor(plain_env(case))])
    if isinstance(env, VecNormalize):
        fresh = VecNormalize(fresh, training=False, norm_reward=False)
        fresh.obs_rms = env.obs_rms
    fresh.seed(FRESH_SEED + seed)
    returns, _ = evaluate_policy(model, fresh, n_eval_episodes=EPISODES, return_episode_rewards=True)
    (folder / "played.json").write_text(json.dumps(returns))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
