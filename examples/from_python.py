"""Train, load the best policy and play with it: `python from_python.py`."""

from __future__ import annotations

import gymnasium as gym

import zmqrl


def main() -> None:
    summary = zmqrl.train("cartpole-ppo", seed=1, run_dir="runs/from-python")
    print(f"{summary.status}: {summary.train_return_mean_100} after {summary.env_steps} env steps")
    policy = zmqrl.load_policy("runs/from-python")
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    played, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        played, over = played + float(reward), terminated or truncated
    env.close()
    print(f"one greedy episode: {played}")


if __name__ == "__main__":
    main()
