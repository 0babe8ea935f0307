"""Suites for your own kinds: what each seam promises, as functions over a maker (docs/extending.md).

Each name is imported at its first use: processes of a run with `zmqrl.testing.fakes` need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqrl.testing.algorithm import ALGORITHM
    from zmqrl.testing.check import Report, check_algorithm
    from zmqrl.testing.data_store import DATA_STORE, KEEP
    from zmqrl.testing.deployed import Hosts, Machines
    from zmqrl.testing.env import ENV
    from zmqrl.testing.layer import LAYER, Layer
    from zmqrl.testing.memory_backend import MEMORY_BACKEND, Ends, backend_maker
    from zmqrl.testing.network import NETWORK, Network
    from zmqrl.testing.orchestrator import ORCHESTRATOR
    from zmqrl.testing.sampler import SAMPLER
    from zmqrl.testing.training import TRAINING

NAMES = {
    "algorithm": ("ALGORITHM",),
    "check": ("Report", "check_algorithm"),
    "data_store": ("DATA_STORE", "KEEP"),
    "deployed": ("Hosts", "Machines"),
    "env": ("ENV",),
    "layer": ("LAYER", "Layer"),
    "memory_backend": ("MEMORY_BACKEND", "Ends", "backend_maker"),
    "network": ("NETWORK", "Network"),
    "orchestrator": ("ORCHESTRATOR",),
    "sampler": ("SAMPLER",),
    "training": ("TRAINING",),
}
"""What each module has."""

__all__ = [
    "ALGORITHM",
    "DATA_STORE",
    "ENV",
    "KEEP",
    "LAYER",
    "MEMORY_BACKEND",
    "NETWORK",
    "ORCHESTRATOR",
    "SAMPLER",
    "TRAINING",
    "Ends",
    "Hosts",
    "Layer",
    "Machines",
    "Network",
    "Report",
    "backend_maker",
    "check_algorithm",
]


def __getattr__(name: str) -> Any:
    for module, names in NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
