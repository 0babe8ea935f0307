"""Suites for your own kinds: what each seam promises, as functions over a maker (docs/extending.md)."""

from __future__ import annotations

from zmqrl.testing.algorithm import ALGORITHM
from zmqrl.testing.data_store import DATA_STORE, KEEP
from zmqrl.testing.env import ENV
from zmqrl.testing.layer import LAYER, Layer
from zmqrl.testing.network import NETWORK, Network
from zmqrl.testing.orchestrator import ORCHESTRATOR, Hosts, Machines
from zmqrl.testing.sampler import SAMPLER
from zmqrl.testing.segment_transport import SEGMENT_TRANSPORT, Ends, transport_maker

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
    "Ends",
    "Hosts",
    "Layer",
    "Machines",
    "Network",
    "transport_maker",
]
