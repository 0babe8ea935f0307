"""Acting by runtime: memory of a worker, microseconds of one call, milliseconds of a new version.

usage: python -m benchmarks.acting [--rounds N] [--network mlp|cnn]

Memory is that of one process at a time with everything that a worker imports. Times are medians of processes that
work in turn, a call each, on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any, cast

import numpy as np

from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.sections import NetworkSection
from zmqrl.networks.build import tower
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.input import network_input
from zmqrl.networks.spec import NetworkSpec
from zmqrl.supervision.process_table import pss_mb
from zmqrl.types import SpaceSpec

BATCHES, ACTIONS, WARM = (1, 8, 32), 8, 5
NETWORKS = {
    "mlp": (SpaceSpec("box", (64,), "float32"), NetworkSection(hidden=(256, 256))),
    "cnn": (SpaceSpec("box", (4, 84, 84), "uint8"), NetworkSection(kind="cnn")),
}
"""64-256-256-8, and the network of Mnih et al. 2015."""
RUNTIMES = {"mlp": ("numpy", "torch", "onnx"), "cnn": ("torch", "onnx")}


def spec_of(network: str, runtime: str) -> ActingSpec:
    """A policy with q values."""
    observation, section = NETWORKS[network]
    section = replace(section, hidden=section.hidden if network == "mlp" else ())
    layers = tower("q", section, observation, ACTIONS, output_gain=1.0)
    described, action = network_input(observation, section), SpaceSpec("discrete", (), "int64", n=ACTIONS)
    spec = ActingSpec(layers, "epsilon_greedy", action, observation, runtime=cast(Any, runtime), input=described)
    if runtime != "onnx":
        return spec
    from zmqrl.export.acting_graph import with_graph  # in the parent alone

    return with_graph(spec)


def child() -> None:
    """A worker's half: a spec on stdin, then a command a line; a number for each."""
    import zmqrl.rollout.worker  # noqa: F401 - its memory counts

    spec = from_json(ActingSpec, json.loads(sys.stdin.readline()))
    policy, schedule = make_policy(spec), {"epsilon": 0.1}
    network, drawn = NetworkSpec((("q", spec.layers),)), np.random.default_rng(1)
    versions = [initial_weights(network, seed) for seed in (1, 2)]
    high = 255 if spec.observation.dtype == "uint8" else 1
    obs = {
        rows: (drawn.random((rows, *spec.observation.shape)) * high).astype(spec.observation.dtype) for rows in BATCHES
    }
    policy.load(versions[0], schedule)
    for line in sys.stdin:
        command, rows = line.split()
        begun = time.perf_counter()
        if command == "version":
            versions.reverse()
            policy.load(versions[0], schedule)
        policy.act_greedily(obs[int(rows)])
        seconds = time.perf_counter() - begun
        print(pss_mb(os.getpid()) if command == "memory" else seconds, flush=True)


class Child:
    """One process with one runtime."""

    def __init__(self, network: str, runtime: str) -> None:
        command = [sys.executable, "-c", "from benchmarks.acting import child; child()"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._send(json.dumps(to_json(spec_of(network, runtime))))

    def answer(self, command: str, rows: int) -> float:
        """Of a command."""
        assert self._process.stdout is not None
        self._send(f"{command} {rows}")
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """It ends with its input."""
        self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def memory_mb(network: str, runtime: str) -> float:
    """Of a process on its own that has acted with two versions."""
    alone = Child(network, runtime)
    for command, rows in (("act", 8), ("version", 8), ("act", 8)):
        alone.answer(command, rows)
    found = alone.answer("memory", 8)
    alone.end()
    return found


def measured(network: str, rounds: int) -> dict[str, dict[str, float]]:
    """By runtime."""
    found = {runtime: {"pss_mb": round(memory_mb(network, runtime), 1)} for runtime in RUNTIMES[network]}
    children = {runtime: Child(network, runtime) for runtime in RUNTIMES[network]}
    for rows in BATCHES:
        times: dict[str, list[float]] = {runtime: [] for runtime in children}
        for _ in range(WARM + rounds):
            for runtime, one in children.items():
                one.answer("act", rows)  # what another process has displaced from the caches
                times[runtime].append(one.answer("act", rows))
        for runtime, seconds in times.items():
            found[runtime][f"us_{rows}"] = round(statistics.median(seconds[WARM:]) * 1e6, 1)
    for runtime, one in children.items():
        seconds = [one.answer("version", 8) - one.answer("act", 8) for _ in range(max(5, rounds // 10))]
        found[runtime]["ms_per_version"] = round(statistics.median(seconds) * 1e3, 3)
        one.end()
    return found


def main() -> None:
    """Print JSON by network."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--network", choices=tuple(NETWORKS))
    given = options.parse_args()
    names = [given.network] if given.network else list(NETWORKS)
    print(json.dumps({name: measured(name, given.rounds) for name in names}, indent=1))


if __name__ == "__main__":
    main()
