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
    from zmqrl.testing.env import ENV
    from zmqrl.testing.layer import LAYER, Layer
    from zmqrl.testing.network import NETWORK, Network
    from zmqrl.testing.orchestrator import ORCHESTRATOR, Hosts, Machines
    from zmqrl.testing.sampler import SAMPLER
    from zmqrl.testing.segment_transport import SEGMENT_TRANSPORT, Ends, transport_maker
    from zmqrl.testing.training import TRAINING

MODULES = {
    "ALGORITHM": "algorithm",
    "DATA_STORE": "data_store",
    "ENV": "env",
    "KEEP": "data_store",
    "LAYER": "layer",
    "NETWORK": "network",
    "ORCHESTRATOR": "orchestrator",
    "SAMPLER": "sampler",
    "SEGMENT_TRANSPORT": "segment_transport",
    "TRAINING": "training",
    "Ends": "segment_transport",
    "Hosts": "orchestrator",
    "Layer": "layer",
    "Machines": "orchestrator",
    "Network": "network",
    "Report": "check",
    "check_algorithm": "check",
    "transport_maker": "segment_transport",
}
"""Where each name is."""

__all__ = [
    "ALGORITHM",
    "DATA_STORE",
    "ENV",
    "KEEP",
    "LAYER",
    "NETWORK",
    "ORCHESTRATOR",
    "SAMPLER",
    "SEGMENT_TRANSPORT",
    "TRAINING",
    "Ends",
    "Hosts",
    "Layer",
    "Machines",
    "Network",
    "Report",
    "check_algorithm",
    "transport_maker",
]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{MODULES[name]}"), name)
