"""`zmqrl train --env ID --algo KIND`: the settings of the algorithm for an env, in place of a preset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from zmqrl.algorithms.start.make import kind_of
from zmqrl.errors import ConfigError, key_of
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

    @classmethod
    def of(cls, env: str, algorithm: str | None, place: str, named: str = "--env") -> WithoutPreset:
        """Env and algorithm as a user names them. ConfigError: the algorithm, which `place` has, is unknown."""
        kind = algorithm or DEFAULT_ALGORITHM
        if ":" in kind:  # the user's code
            return cls(env, kind, named)
        try:
            kind_of(kind.lower())
        except ConfigError as error:
            raise error.of(key_of(place)) from error.__cause__
        return cls(env, kind.lower(), named)

    @property
    def name(self) -> str:
        """Name of the run, as that of a preset: `cartpole-ppo`."""
        env, kind = (re.split(r"[:/]", path)[-1] for path in (self.env, self.algorithm))
        plain = re.sub(r"-v\d+$", "", env)
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{plain}-{kind}").lower().lstrip("-._") or "run"

    def sections(self, env: EnvSpec | None, own: Stored = MappingProxyType({})) -> Stored:
        """What a preset of this env and algorithm would hold.

        Args:
            env: Properties of the env; None: the sections have names alone.
            own: Keys of the algorithm that the user wrote. Defaults that lose their meaning with them are left out.
        """
        named = {"run": {"name": self.name}, "env": {"id": self.env}, "algorithm": {"kind": self.algorithm}}
        if env is None:
            return named
        kind = kind_of(self.algorithm)
        found = {name: dict(keys) for name, keys in kind.defaults(env).items()}
        keys = found.get("algorithm", {})
        changed = {key for key, value in own.items() if value != keys.get(key)}
        dropped = {key for joint in kind.joint_defaults if joint & changed for key in joint}
        found["algorithm"] = {key: value for key, value in keys.items() if key not in dropped}
        return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in named.items()}}
