"""Train, load the best policy and play with it: `python from_python.py`."""

from __future__ import annotations

import zmqrl


def main() -> None:
    summary = zmqrl.train("cartpole-ppo", seed=1, run_dir="runs/from-python")
    print(f"{summary.status}: {summary.train_return_mean_100} after {summary.env_steps} env steps")
    policy = zmqrl.load_policy("runs/from-python")
    result = zmqrl.evaluate(policy, "CartPole-v1", episodes=5)
    print(f"greedy episodes: {result.mean:.1f} +- {result.std:.1f}")


if __name__ == "__main__":
    main()
