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
    from zmqrl.config.aliases import python_hint

    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{python_hint(name)}")
