"""`zmqrl train --env ID --algo KIND`: the settings of the algorithm for an env, in place of a preset."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zmqrl.config.codec import to_json
from zmqrl.config.load import Loaded
from zmqrl.launch.checked import call, checked_env, located

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

    def sections(self, resolved: Callable[[Stored], Loaded]) -> Stored:
        """What a preset of this env and algorithm would hold.

        Args:
            resolved: Makes a configuration over such sections; its keys of `env` decide which spaces there are.

        Raises:
            ConfigError: The env cannot be created, or the algorithm is unknown.
        """
        named = {"run": {"name": self.name}, "env": {"id": self.env}, "algorithm": {"kind": self.algorithm}}
        loaded = resolved(named)
        with located(loaded.sources):
            env = checked_env(loaded.config, is_whole=False)
        subject, limit_s = f"algorithm.kind: {self.algorithm!r}", loaded.config.limits.start_s
        found: dict[str, dict[str, Any]] = call(
            "defaults", self.algorithm, to_json(env), _own_keys(loaded), subject=subject, limit_s=limit_s
        )
        if env.max_episode_steps is None and env.state is None:
            found.setdefault("env", {})["recovery"] = "restart_episode"  # exact: needs one of the two
        return {**found, **{name: {**found.get(name, {}), **keys} for name, keys in named.items()}}


def _own_keys(loaded: Loaded) -> dict[str, Any]:
    """The keys of the algorithm that the user wrote."""
    return {key: value for key, value in loaded.config.algorithm.items() if f"algorithm.{key}" in loaded.sources.by_key}
