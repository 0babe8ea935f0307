"""Presets with settings that strain the bus, the replay or the checkpoints; `--scenario` names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.types import ModeName

PRIORITISED = "algorithm.prioritised={alpha: 0.6, beta: 0.4, beta_end: 1.0, epsilon: 1.0e-4}"


@dataclass(frozen=True)
class Scenario:
    """A preset, its mode and what is set over it."""

    preset: str
    name: str | None = None
    """None: the preset as it is."""
    mode: ModeName | None = None
    overrides: tuple[str, ...] = ()
    workers: int = 2
    purpose: str = ""
    learns: bool = True
    """Whether it has to reach the env's threshold within the preset's env steps."""


def _small_replay(*overrides: str) -> tuple[str, ...]:
    return ("replay.capacity=1600", "replay.learning_starts=500", *overrides)


_ALL: Mapping[str, Scenario] = {
    "ppo-sync": Scenario("cartpole-ppo", mode="sync", purpose="on-policy, rounds of one version"),
    "dqn-sync": Scenario(
        "cartpole-dqn",
        mode="sync",
        overrides=_small_replay(PRIORITISED, "run.checkpoint_every_s=2"),
        purpose="prioritised replay at capacity with eviction, rollback to older full checkpoints",
        learns=False,
    ),
    "dqn-async-0.02": Scenario(
        "cartpole-dqn",
        mode="async",
        overrides=_small_replay("replay.ratio=0.02"),
        purpose="one update per 50 env steps: workers wait for the learner",
        learns=False,
    ),
    "dqn-async-0.25": Scenario(
        "cartpole-dqn",
        mode="async",
        overrides=_small_replay("replay.ratio=0.25", PRIORITISED),
        purpose="one update per 4 env steps, prioritised",
        learns=False,
    ),
    "ppo-async": Scenario("cartpole-ppo", mode="async", purpose="on-policy, without rounds", learns=False),
    "one-vector-env": Scenario(
        "cartpole-ppo",
        mode="sync",
        overrides=("env.vector_envs=1", "algorithm.minibatch_size=64"),
        workers=1,
        purpose="a single vector env on a single worker",
        learns=False,
    ),
    "short-segments": Scenario(
        "cartpole-ppo",
        mode="sync",
        overrides=("env.segment_steps=1", "algorithm.minibatch_size=8", "algorithm.epochs=1"),
        purpose="segments of one step: a version for every 8 env steps",
        learns=False,
    ),
    "ppo-pipelined": Scenario(
        "cartpole-ppo", mode="pipelined", purpose="workers act a round while the learner trains the one before"
    ),
    "dqn-pipelined": Scenario(
        "cartpole-dqn",
        mode="pipelined",
        overrides=_small_replay(PRIORITISED, "run.checkpoint_every_s=2"),
        purpose="the same with replay, rollback to older full checkpoints",
        learns=False,
    ),
}
SCENARIOS: Mapping[str, Scenario] = {name: replace(scenario, name=name) for name, scenario in _ALL.items()}


def scenario_named(name: str) -> Scenario:
    """ConfigError names those that there are."""
    if name not in SCENARIOS:
        raise ConfigError("unknown", key=("--scenario",), value=repr(name), fix=f"known: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def listing() -> str:
    """A line for each."""
    return "\n".join(f"{name:16} {scenario.preset:14} {scenario.purpose}" for name, scenario in SCENARIOS.items())
