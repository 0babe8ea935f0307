"""Settings for an env without a preset: what several algorithms have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from zmqrl.types import EnvSpec

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Section to its keys, as in a preset."""
LEAST_IMAGE = 36
"""Sides of an image that the convolutions of Mnih et al. 2015 need."""

MOST_REPLAY_BYTES = 2_000_000_000


def on_policy_defaults(env: EnvSpec, segment_steps: int = 128, activation: str = "tanh") -> dict[str, dict[str, Any]]:
    """8 envs, as in Stable-Baselines3 Zoo and CleanRL."""
    return {
        "run": {"mode": "sync", "total_env_steps": total_of(env, 500_000)},
        "env": {"vector_envs": 4, "num_envs": envs_of(env, 2), "segment_steps": segment_steps},
        "network": network_of(env, (64, 64), activation),
        "algorithm": {},
    }


def off_policy_defaults(env: EnvSpec, segment_steps: int = 16) -> dict[str, dict[str, Any]]:
    """4 vector envs of one env each; an update per 4 env steps, as Mnih et al. 2015."""
    return {
        "run": {"mode": "sync", "total_env_steps": total_of(env, 300_000)},
        "env": {"vector_envs": 4, "num_envs": envs_of(env, 1), "segment_steps": segment_steps},
        "network": network_of(env, (128, 128), "relu"),
        "replay": {"capacity": capacity_of(env, 100_000), "learning_starts": 1_000, "ratio": 0.25},
        "algorithm": {},
    }


def continuous_defaults(env: EnvSpec) -> dict[str, dict[str, Any]]:
    """Defaults of Stable-Baselines3 for SAC, TD3 and DDPG: an update per env step, 256 x 256 units."""
    sections = off_policy_defaults(env, segment_steps=4)
    sections["run"]["total_env_steps"] = total_of(env, 200_000)
    sections["network"] = network_of(env, (256, 256), "relu")
    sections["replay"] = {"capacity": capacity_of(env, 200_000), "learning_starts": 1_000, "ratio": 1.0}
    return sections


def total_of(env: EnvSpec, env_steps: int) -> int:
    """Images take longer."""
    return 2_000_000 if env.observation.is_image else env_steps


def envs_of(env: EnvSpec, num_envs: int) -> int:
    """N: each agent has a slot of its own."""
    return num_envs * env.slots_per_env


def capacity_of(env: EnvSpec, env_steps: int) -> int:
    """Env steps of replay: fewer where their observations would fill the memory."""
    return max(1_000, min(env_steps, MOST_REPLAY_BYTES // env.observation.nbytes // 1_000 * 1_000))


def network_of(env: EnvSpec, hidden: tuple[int, ...], activation: str) -> dict[str, Any]:
    """Convolutions for an image that is large enough, else linear layers."""
    space = env.observation
    if space.is_image and sorted(space.shape)[1] >= LEAST_IMAGE:
        return {"kind": "cnn", "hidden": [512], "activation": "relu"}
    return {"kind": "mlp", "hidden": list(hidden), "activation": activation}
