"""Whether a worker's host reaches the ports of the learner's host, as the run would, and how fast a host encrypts.

Each end makes its own key pair. Who knows the public key of the end that listens gets an answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import zmq

from zmqrl.config import plan
from zmqrl.config.codec import replace
from zmqrl.config.plan import Endpoints
from zmqrl.messages.bus import ECHO_BYTES
from zmqrl.messages.doctor import Answer, Curve, Listening, Reached
from zmqrl.messages.doctor_requests import Listen, Reach
from zmqrl.wire.admission import Admission
from zmqrl.wire.gate import Gate
from zmqrl.wire.probe import FULL_PACKETS, TCP_S, plain_connection
from zmqrl.wire.sockets import bind_tcp, connect, make_keys, make_socket, own_addresses, port_holder

NO_ECHO = "connected, but another program answers on this port"
OTHERS_S = 0.3
"""How long further addresses are waited for, once one has answered on every port."""
ROUND_TRIPS = 5
ECHO_S = 3.0
LOST = -1.0
"""Value in the place of a round trip: only short messages arrive."""
POLL_MS = 200
CURVE_S = 0.2
MESSAGE_BYTES = 1 << 20
AHEAD = 8
"""Messages on their way: enough to keep both ends busy."""
SILENCE_MS = 1000
MB = 1e6
Endpoint: TypeAlias = tuple[str, int]
"""Address and port."""


class _AnyKey(Admission):
    """The ports of a run are open to the keys of its hosts; those of a check to all who know the key of its server."""

    def may_connect(self, public: str, to_enrol: bool) -> bool:
        return True


class EchoServer:
    """The learner's host for the time of the check: answers every message on its ports, behind the gate of a broker.

    Owns a thread; the sockets are made, used and closed in it.
    """

    def __init__(self, request: Listen) -> None:
        self._request, self._keys = request, make_keys()
        self._stop = threading.Event()
        self._listening: Future[Listening] = Future()
        self._thread = threading.Thread(target=self._serve, name="echo", daemon=True)
        self._thread.start()

    def listening(self) -> Listening:
        """Ports and addresses, or why a port is unavailable."""
        return self._listening.result()

    def close(self) -> None:
        """Waits until the ports are free again."""
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        gate = Gate(context, self._keys, _AnyKey())
        sockets = [make_socket(context, zmq.ROUTER) for _ in self._request.ports]
        try:
            self._listening.set_result(self._open(gate, sockets))
            self._answer(gate, sockets)
        finally:
            gate.close()
            context.destroy(linger=0)

    def _open(self, gate: Gate, sockets: Sequence[zmq.Socket[Any]]) -> Listening:
        bound = []
        for socket, port in zip(sockets, self._request.ports, strict=True):
            try:
                bound.append(gate.open_tcp(socket, plan.TcpListen(), port))
            except zmq.ZMQError as error:
                return Listening((), (), "", f"port {port}: {os.strerror(error.errno or 0)}{port_holder(port)}")
        return Listening(tuple(bound), tuple(own_addresses()), self._keys.public)

    def _answer(self, gate: Gate, sockets: Sequence[zmq.Socket[Any]]) -> None:
        poller = zmq.Poller()
        for socket in (*gate.sockets, *sockets):
            poller.register(socket, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(POLL_MS))
            gate.serve()
            for socket in sockets:
                if socket in ready:
                    socket.send_multipart(socket.recv_multipart())


def reach(request: Reach) -> Reached:
    """Every port at every address, all at once; never longer than the limit and `TCP_S`."""
    endpoints = [(address, port) for address in request.addresses for port in request.ports]
    with ThreadPoolExecutor(max_workers=max(1, len(endpoints)), thread_name_prefix="tcp") as pool:
        plain = {endpoint: pool.submit(plain_connection, *endpoint, NO_ECHO) for endpoint in endpoints}
        round_trips = _probe(request, endpoints)
        tried = {endpoint: future.result() for endpoint, future in plain.items()}
    return Reached(tuple(_answer(address, request.ports, round_trips, tried) for address in request.addresses))


def _answer(
    address: str, ports: Sequence[int], round_trips: Mapping[Endpoint, float], tried: Mapping[Endpoint, str]
) -> Answer:
    def wrong_of(port: int) -> str | None:
        time_s = round_trips.get((address, port))
        if time_s is None:
            return tried[address, port].lower()
        return f"answers, and {FULL_PACKETS} within {ECHO_S:g} s" if time_s == LOST else None

    wrong = {str(port): wrong_of(port) for port in ports}
    times = [round_trips[address, port] for port in ports if round_trips.get((address, port), LOST) != LOST]
    return Answer(address, wrong, min(times) * 1000 if times else None)


def _probe(request: Reach, endpoints: Sequence[Endpoint]) -> dict[Endpoint, float]:
    """Seconds of the least round trip by endpoint, for those that answer."""
    context: zmq.Context[Any] = zmq.Context()
    poller, endpoint_of = zmq.Poller(), {}
    keys = replace(make_keys(), server=request.server)
    try:
        for address, port in endpoints:
            dealer = connect(context, zmq.DEALER, Endpoints.tcp(address, (port,) * 3).control, keys)
            dealer.send(b"0")
            poller.register(dealer, zmq.POLLIN)
            endpoint_of[dealer] = (address, port)
        answered = _first_answers(poller, endpoint_of, request)
        times = {dealer: _round_trip(dealer) for dealer in answered}
        whole = _echoed(answered)
        return {endpoint_of[dealer]: time_s if dealer in whole else LOST for dealer, time_s in times.items()}
    finally:
        context.destroy(linger=0)


def _first_answers(
    poller: zmq.Poller, endpoint_of: Mapping[zmq.Socket[Any], Endpoint], request: Reach
) -> list[zmq.Socket[Any]]:
    until = time.monotonic() + request.limit_s
    answered: list[zmq.Socket[Any]] = []
    while len(answered) < len(endpoint_of) and (left_s := until - time.monotonic()) > 0:
        for dealer, _ in poller.poll(int(left_s * 1000) + 1):
            dealer.recv()
            poller.unregister(dealer)
            answered.append(dealer)
        at = [endpoint_of[dealer][0] for dealer in answered]
        if any(at.count(address) == len(request.ports) for address in request.addresses):
            until = min(until, time.monotonic() + OTHERS_S)
    return answered


def _echoed(dealers: Sequence[zmq.Socket[Any]]) -> set[zmq.Socket[Any]]:
    """Sockets that return a message of several full packets, as segments are."""
    poller, until = zmq.Poller(), time.monotonic() + ECHO_S
    found: set[zmq.Socket[Any]] = set()
    for dealer in dealers:
        dealer.send(bytes(ECHO_BYTES))
        poller.register(dealer, zmq.POLLIN)
    while len(found) < len(dealers) and (left_s := until - time.monotonic()) > 0:
        for dealer, _ in poller.poll(int(left_s * 1000) + 1):
            if len(dealer.recv()) == ECHO_BYTES:
                found.add(dealer)
    return found


def _round_trip(dealer: zmq.Socket[Any]) -> float:
    least = float("inf")
    for number in range(1, ROUND_TRIPS + 1):
        begun = time.perf_counter()
        dealer.send(b"%d" % number)
        if not dealer.poll(int(TCP_S * 1000)):
            break
        dealer.recv()
        least = min(least, time.perf_counter() - begun)
    return least


def measure_curve(test_s: float = CURVE_S) -> Curve:
    """Send to ourselves over loopback for `test_s`, encrypted; one connection, as a worker's."""
    if not zmq.has("curve"):
        return Curve(False, None)
    context: zmq.Context[Any] = zmq.Context()
    try:
        return Curve(True, _mb_per_s(context, test_s))
    finally:
        context.destroy(linger=0)


def _mb_per_s(context: zmq.Context[Any], test_s: float) -> float | None:
    server = make_keys()
    puller = make_socket(context, zmq.PULL)
    port = bind_tcp(puller, "127.0.0.1", 0, server)
    keys = replace(make_keys(), server=server.public)
    pusher = connect(context, zmq.PUSH, f"tcp://127.0.0.1:{port}", keys)
    payload = bytes(MESSAGE_BYTES)
    for _ in range(AHEAD):
        pusher.send(payload, copy=False)
    if not puller.poll(SILENCE_MS):
        return None
    puller.recv(copy=False)
    begun, received = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < test_s:
        pusher.send(payload, copy=False)
        if not puller.poll(SILENCE_MS):
            return None
        puller.recv(copy=False)
        received += 1
    return received * MESSAGE_BYTES / MB / elapsed
