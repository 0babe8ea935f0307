"""Distributed reinforcement learning on the machines one owns. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqrl.api import load_policy, train

__all__ = ["load_policy", "train"]


def __getattr__(name: str) -> Any:
    """Import the API only when it is used: every process of a run imports this package."""
    if name in __all__:
        from zmqrl import api

        return getattr(api, name)
    classes = ("A2C", "DDPG", "DQN", "PPO", "QRDQN", "SAC", "TD3")  # of Stable-Baselines3
    hint = "; write zmqrl.train(PRESET), and zmqrl.load_policy(RUN_DIR) for its policy" if name in classes else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
