"""Knock at a broker's door without a key that it knows: `strangers.py ADDRESS` prints how many answers came."""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlparse

import zmq

from zmqrl.messages import bus
from zmqrl.messages.frames import pack

WAIT_MS = 1000


def probe_peer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: tuple[bytes, bytes, bytes] | None
) -> object:
    """A DEALER that says it is a worker; `keys`: server, public, secret."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if keys is not None:
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = keys
    dealer.connect(address)
    dealer.send(pack(bus.WorkerExit(0, 0)))
    dealer.send(pack(bus.HostReport("h1", {}, [], [0, 1, 2, 3], [], "")))
    return dealer


def main(address: str) -> int:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    poller = zmq.Poller()
    for keys in (None, (zmq.curve_keypair()[0], *zmq.curve_keypair())):
        poller.register(probe_peer(context, address, keys), zmq.POLLIN)
    url = urlparse(address)
    with socket.create_connection((str(url.hostname), url.port or 0), 5.0) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        answers = len(poller.poll(WAIT_MS))
    context.destroy(linger=0)
    return answers


if __name__ == "__main__":
    print(main(sys.argv[1]))
