"""Time of a worker's env step against that of another checkout of zmqrl, such as the commit before a change.

usage: python -m benchmarks.env_step --before CHECKOUT [--preset NAME] [--env ID] [--rounds N]

Run it in the checkout to compare. Two processes, one with the code of each checkout, fill a segment in turn: acting
with the network of a preset (cartpole-ppo), stepping 8 envs, checking what they return. It is CPU time, since other
processes may use the cores. Two processes with the same code differ by some percent: each round has new ones. Prints
the median of the ratios of the rounds, each the median of its pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARM = 20


def child(preset: str, env_id: str | None) -> None:
    """Fill a segment for each line of stdin, and print the seconds."""
    import numpy as np

    from zmqrl.acting.numpy_policy import make_policy
    from zmqrl.acting.spec import ActingSpec
    from zmqrl.algorithms.start.make import make_algorithm
    from zmqrl.config.codec import from_json
    from zmqrl.envs.vector import make_vector_env
    from zmqrl.networks.initial import initial_weights
    from zmqrl.planning.configure import load
    from zmqrl.planning.plan_run import plan_run
    from zmqrl.rollout.collector import Collector

    settings = ["env.num_envs=8", "env.segment_steps=128"]
    if env_id is not None:
        settings += [f"env.id={env_id}", "env.max_episode_steps=500"]
    config = load(preset, overrides=settings, mode="sync", workers=1).config
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_run(config, Path(folder, "run"), time.time())
    acting, algorithm = from_json(ActingSpec, plan.acting), make_algorithm(plan.config, plan.env)
    policy = make_policy(acting)
    weights = {**initial_weights(algorithm.network(), 1), **algorithm.statistics()}
    policy.load(weights, dict.fromkeys(("epsilon", "noise", "uniform"), 0.1))
    collector = Collector(make_vector_env(plan.config.env, plan.env, "sync", 1, 0), policy, acting, 1, 0)
    collector.start()
    columns = {column.name: np.zeros(column.shape, column.dtype) for column in plan.columns}
    for index, _ in enumerate(sys.stdin):
        begun = time.process_time()
        collector.collect(columns, index, lambda _: None, lambda: False)
        print(json.dumps((time.process_time() - begun) / columns["reward"].size), flush=True)


class Child:
    """The process of one checkout."""

    def __init__(self, checkout: Path, work: Sequence[str]) -> None:
        command = [sys.executable, __file__, "--child", *work]
        environment = {**os.environ, "PYTHONPATH": f"{checkout}:{os.environ.get('PYTHONPATH', '')}"}
        environment |= {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seconds(self) -> float:
        """CPU time of an env step, over one segment."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """It ends with its input."""
        self._process.communicate()


def main() -> None:
    """Print the figures, or be a child."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path)
    options.add_argument("--preset", default="cartpole-ppo")
    options.add_argument("--env", help="in place of that of the preset")
    options.add_argument("--pairs", type=int, default=100)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--child", action="store_true")
    given = options.parse_args()
    if given.child:
        child(given.preset, given.env)
        return
    if given.before is None:
        options.error("--before CHECKOUT is required")
    work = ["--preset", given.preset, *(() if given.env is None else ("--env", given.env))]
    found = [ratio(given.before.resolve(), work, given.pairs, number) for number in range(given.rounds)]
    shown = " ".join(f"{one:.3f}" for one in found)
    print(f"{' '.join(work[1::2])}: ratio {statistics.median(found):.4f} ({shown})")


def ratio(other: Path, work: Sequence[str], pairs: int, number: int) -> float:
    """Of one pair of processes: the median of the ratios. Each is started first in half of the rounds, and is first in
    half of the pairs.
    """
    checkouts = [other, ROOT] if number % 2 else [ROOT, other]
    processes = {checkout: Child(checkout, work) for checkout in checkouts}
    before, after = processes[other], processes[ROOT]
    found = []
    for pair in range(WARM + pairs):
        first = before.seconds() if pair % 2 else None
        second = after.seconds()
        found.append(second / (before.seconds() if first is None else first))
    for one in (before, after):
        one.end()
    return statistics.median(found[WARM:])


if __name__ == "__main__":
    main()
