"""From a resolved configuration to the algorithm, as launcher and learner both make it."""

from __future__ import annotations

from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import from_json
from zmqrl.config.sections import Config
from zmqrl.plugins import load
from zmqrl.types import EnvSpec


def make_algorithm(config: Config, env: EnvSpec) -> Algorithm:
    """The algorithm of `config.algorithm["kind"]`; `ConfigError` when its settings do not go together."""
    kind = load(config.algorithm["kind"], "zmqrl.algorithms", Algorithm)
    options = {name: value for name, value in config.algorithm.items() if name != "kind"}
    section = config.env
    algorithm: Algorithm = kind(
        from_json(kind.Config, options), config.network, env, section.segment_steps, section.num_envs
    )
    return algorithm
