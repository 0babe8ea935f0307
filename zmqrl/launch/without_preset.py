"""`zmqrl train --env ID --algo KIND`: the settings of the algorithm for an env, in place of a preset."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zmqrl.algorithms.make import kind_of
from zmqrl.config.load import Loaded
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError

DEFAULT_ALGORITHM = "ppo"
Stored = Mapping[str, Any]
PROBED_ENVS = 5040
"""A multiple of any number of agents up to 10, which `probe` checks; the algorithm sets the number for the run."""


@dataclass(frozen=True)
class WithoutPreset:
    """An env and an algorithm."""

    env: str
    algorithm: str = DEFAULT_ALGORITHM
    named: str = "--env"
    """The option or argument that gave the env, for messages."""

    @property
    def name(self) -> str:
        """Name of the run, as that of a preset: `cartpole-ppo`."""
        env, kind = (re.split(r"[:/]", path)[-1] for path in (self.env, self.algorithm))
        plain = re.sub(r"-v\d+$", "", env)
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{plain}-{kind}").lower().lstrip("-._") or "run"

    def sections(self, resolved: Callable[[Stored], Loaded]) -> Stored:
        """What a preset of this env and algorithm would hold.

        Args:
            resolved: Makes a configuration over such sections; its keys of `env` decide which spaces there are.

        Raises:
            ConfigError: The env cannot be created, or the algorithm is unknown.
        """
        named = {"run": {"name": self.name}, "env": {"id": self.env}, "algorithm": {"kind": self.algorithm}}
        loaded = resolved({**named, "env": {"id": self.env, "num_envs": PROBED_ENVS}})
        try:
            env = probe(loaded.config.env)
        except ConfigError as error:
            raise ConfigError(loaded.sources.locate(str(error))) from error
        found = {name: dict(keys) for name, keys in kind_of(self.algorithm).defaults(env).items()}
        return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in named.items()}}
