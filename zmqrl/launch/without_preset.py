"""`zmqrl train --env ID --algo KIND`: the settings of the algorithm for an env, in place of a preset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zmqrl.algorithms.make import kind_of
from zmqrl.types import EnvSpec

DEFAULT_ALGORITHM = "ppo"
Stored = Mapping[str, Any]


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

    def sections(self, env: EnvSpec | None) -> Stored:
        """What a preset of this env and algorithm would hold; without the properties of the env, their names alone."""
        named = {"run": {"name": self.name}, "env": {"id": self.env}, "algorithm": {"kind": self.algorithm}}
        if env is None:
            return named
        found = {name: dict(keys) for name, keys in kind_of(self.algorithm).defaults(env).items()}
        if env.max_episode_steps is None and env.state is None:
            found.setdefault("env", {})["recovery"] = "restart_episode"  # exact: needs one of the two
        return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in named.items()}}
