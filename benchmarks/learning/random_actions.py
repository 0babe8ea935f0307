"""Mean return of random actions: `python -m benchmarks.learning.random_actions CASE EPISODES`."""

from __future__ import annotations

import statistics
import sys

from benchmarks.learning.cases import case_of
from benchmarks.learning.peer import plain_env


def main(name: str, episodes: int) -> float:
    """Episodes with the seeds 0, 1, ..."""
    env, returns = plain_env(case_of(name)), []
    env.action_space.seed(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        returned, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returned, ended = returned + float(reward), terminated or truncated
        returns.append(returned)
    return statistics.fmean(returns)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
