"""The switch between the hosts: a bridge in a network of its own; cables can be pulled, pairs cut off, wires slowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import WAIT_S

from .kernel import Network

WIRE = str(Path(__file__).with_name("wire.py"))
TABLE = "add table bridge lab; add chain bridge lab forward { type filter hook forward priority 0; }"


class Switch:
    """Ports are numbered as the hosts are."""

    def __init__(self) -> None:
        self._network = Network()
        self._network.ip("link add br0 type bridge", "link set br0 up", "link set lo up")
        self._wires: dict[int, subprocess.Popen[bytes]] = {}

    def plug(self, port: int, host: Network, address: str) -> None:
        """Join a host's network to the switch as its eth0."""
        self._network.ip(
            f"link add p{port} type veth peer name eth0 netns {host.path}", f"link set p{port} master br0 up"
        )
        host.ip(f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up")

    def link(self, port: int, up: bool) -> None:
        """Pull or plug in the cable: frames get lost silently, as no address changes."""
        self._network.ip(f"link set p{port} {'up' if up else 'down'}")

    def cut(self, one: str, other: str) -> None:
        """Drop all that goes between two addresses, ARP included."""
        rules = [
            f"add rule bridge lab forward {what}"
            for a, b in ((one, other), (other, one))
            for what in (f"ip saddr {a} ip daddr {b} drop", f"arp saddr ip {a} arp daddr ip {b} drop")
        ]
        self._network.run("nft", "; ".join([TABLE, *rules]))

    def heal(self) -> None:
        """Undo every `cut`."""
        self._network.run("nft", f"{TABLE}; delete table bridge lab")

    def slow(self, port: int, delay_ms: float, loss: float) -> None:
        """Put a wire of so much delay each way and loss (a fraction) before a port; none of both takes it out."""
        self._take_out_wire(port)
        if not delay_ms and not loss:
            return
        near, far = f"a{port}", f"b{port}"
        wire = subprocess.Popen(
            self._network.command([sys.executable, "-ISu", WIRE, near, far, str(delay_ms), str(loss)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._wires[port] = wire
        assert wire.stdout is not None
        if wire.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the wire before port {port} ended with {wire.wait(WAIT_S)}")
        self._network.ip(
            f"link add w{port} type bridge",
            f"link set w{port} up",
            f"link set p{port} master w{port}",
            f"link set {near} master w{port} up",
            f"link set {far} master br0 up",
        )

    def _take_out_wire(self, port: int) -> None:
        wire = self._wires.pop(port, None)
        if wire is None:
            return
        self._network.ip(f"link set p{port} master br0", f"link del w{port}")
        _end(wire)

    def close(self) -> None:
        for wire in self._wires.values():
            _end(wire)
        self._wires.clear()
        self._network.close()


def _end(wire: subprocess.Popen[bytes]) -> None:
    assert wire.stdin is not None and wire.stdout is not None
    wire.stdin.close()
    wire.wait(WAIT_S)
    wire.stdout.close()
