"""What is measured, and the command of each system for it.

Every system runs on the CPU with one thread of torch for each process, without evaluations, and zmqrl as users have it:
with acknowledgements, digests, checks and the ledger.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.peers.install import python_of

Kind = Literal["target", "rate", "memory"]
System = Literal["zmqrl", "stable-baselines3", "pufferlib", "sample-factory"]
ENDLESS = 1_000_000_000
TARGET = 475.0
WARM_S, WORKERS = 5.0, 2
ASYNC: tuple[System, ...] = ("zmqrl", "pufferlib", "sample-factory")
WITH_SB3: tuple[System, ...] = ("zmqrl", "stable-baselines3")
DQN = {
    "network.hidden": [256, 256],
    "replay.ratio": 0.5,
    "replay.learning_starts": 1000,
    "algorithm.batch_size": 64,
    "algorithm.loss": "huber",
    "algorithm.max_grad_norm": 10.0,
    "algorithm.epsilon.fraction": 1e-5,
}
FAST = {"run.total_env_steps": ENDLESS, "run.schedule_env_steps": ENDLESS}
FIRST_STEP = ("475-async", "475-sync")
"""Cases whose runs also give the time from the command to the first env step."""
COLLECTS: Mapping[System, str] = {"zmqrl": "zmqrl.worker"}
"""Part of the command line of the processes whose env steps count; default: all. zmqrl also checks an env."""


@dataclass(frozen=True)
class Case:
    """A measurement of several systems."""

    name: str
    title: str
    unit: str
    kind: Kind
    systems: tuple[System, ...]
    seconds: float
    """target: limit after the command. Else: duration after the first env step."""
    preset: str
    settings: Mapping[str, Any]
    """Of zmqrl, beside those of the preset."""
    mode: str
    env: str
    per_step: float = 1.0
    """Updates per env step, where the rate is that of updates."""

    @property
    def less_is_better(self) -> bool:
        """Whether the figure is a time or a size."""
        return self.kind != "rate"


CASES = (
    Case(
        "475-async",
        "CartPole, async: from the command to a mean return of 475",
        *("s", "target", ASYNC, 60.0, "cartpole-ppo", {}, "async", "cartpole"),
    ),
    Case(
        "475-sync",
        "CartPole, sync: from the command to a mean return of 475",
        *("s", "target", WITH_SB3, 60.0, "cartpole-ppo", {}, "sync", "cartpole"),
    ),
    Case(
        "async-steps",
        "CartPole, async PPO while training, 16 updates of 256 rows per 1,024 env steps",
        *("env steps/s", "rate", ASYNC, 15.0, "cartpole-ppo", FAST, "async", "cartpole"),
    ),
    Case(
        "sac",
        "Pendulum, SAC, 256-256, minibatch 256, 1 update per env step",
        *("updates/s", "rate", WITH_SB3, 20.0, "pendulum-sac", FAST, "sync", "pendulum"),
    ),
    Case(
        "dqn",
        "CartPole, DQN, 256-256, minibatch 64, 0.5 updates per env step",
        *("updates/s", "rate", WITH_SB3, 15.0, "cartpole-dqn", {**FAST, **DQN}, "async", "cartpole", 0.5),
    ),
    Case(
        "memory",
        "CartPole, PPO: memory (PSS) of all processes, 2 workers",
        *("MB", "memory", (*ASYNC, "stable-baselines3"), 8.0, "cartpole-ppo", FAST, "async", "cartpole"),
    ),
)


def zmqrl_command(case: Case, seed: int, folder: Path) -> list[str]:
    """`zmqrl train`."""
    words = [sys.executable, "-m", "zmqrl", "train", case.preset, "--mode", case.mode, "--plain"]
    words += ["--workers", str(WORKERS), "--seed", str(seed), "--run-dir", str(folder / "run")]
    env = f"benchmarks.peers.logged:{case.env}"
    settings = {"env.id": env, "evaluator.episodes": 0, "run.stop_at_return": None, **case.settings}
    for key, value in settings.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return words


def peer_command(system: System) -> Callable[[Case, int, Path], list[str]]:
    """`run_NAME.py CASE SEED FOLDER` in the environment of the peer."""

    def command(case: Case, seed: int, folder: Path) -> list[str]:
        module = f"benchmarks.peers.run_{system.replace('-', '_')}"
        return [str(python_of(system)), "-m", module, case.name, str(seed), str(folder)]

    return command


COMMANDS: Mapping[System, Callable[[Case, int, Path], list[str]]] = {
    "zmqrl": zmqrl_command,
    **{system: peer_command(system) for system in ("stable-baselines3", "pufferlib", "sample-factory")},
}
