"""Whether a worker's host reaches the ports of the learner's host: tried as the run would, encrypted.

Each probe makes its own key pair. Who knows the public key of the probe that listens gets an answer.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import zmq

from zmqrl.messages.doctor import Answer, Listen, Listening, Reach, Reached
from zmqrl.wire.sockets import bind_tcp, connect, make_keys, make_socket, own_addresses

TCP_S = 2.0
OTHERS_S = 0.3
"""How long further addresses are waited for, once one has answered on every port."""
ROUND_TRIPS = 5
POLL_MS = 200


class Door:
    """The learner's host for the time of the check: answers every message on its ports to those who know its key.

    Owns a thread; the sockets are made, used and closed in it.
    """

    def __init__(self, order: Listen) -> None:
        self._order = order
        self._stop = threading.Event()
        self._said: Future[Listening] = Future()
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)
        self._thread.start()

    def listening(self) -> Listening:
        """Ports and addresses, or why a port is unavailable."""
        return self._said.result()

    def close(self) -> None:
        """Waits until the ports are free again."""
        self._stop.set()
        self._thread.join()

    def _serve(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        doors = [make_socket(context, zmq.ROUTER) for _ in self._order.ports]
        try:
            self._said.set_result(self._open(doors))
            self._answer(doors)
        finally:
            context.destroy(linger=0)

    def _open(self, doors: Sequence[zmq.Socket[Any]]) -> Listening:
        bound, keys = [], make_keys()
        for door, port in zip(doors, self._order.ports, strict=True):
            try:
                bound.append(bind_tcp(door, "*", port, keys))
            except zmq.ZMQError as error:
                return Listening((), (), "", f"port {port}: {os.strerror(error.errno or 0)}{_user_of(port)}")
        return Listening(tuple(bound), tuple(own_addresses()), keys.public)

    def _answer(self, doors: Sequence[zmq.Socket[Any]]) -> None:
        poller = zmq.Poller()
        for ready in doors:
            poller.register(ready, zmq.POLLIN)
        while not self._stop.is_set():
            found = dict(poller.poll(POLL_MS))
            for door in doors:
                if door in found:
                    door.send_multipart(door.recv_multipart())


def _user_of(port: int) -> str:
    """Which process has the port, as far as we may see it."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid is not None:
                process = psutil.Process(connection.pid)
                return f" by pid {process.pid} ({process.name()}) of {process.username()}"
    except psutil.Error:
        return ""
    return ""


def reach(order: Reach) -> Reached:
    """Every port at every address, all at once; never longer than the limit and `TCP_S`."""
    places = [(address, port) for address in order.addresses for port in order.ports]
    with ThreadPoolExecutor(max_workers=max(1, len(places)), thread_name_prefix="tcp") as pool:
        plain = {place: pool.submit(_tcp, *place) for place in places}
        round_trips = _knock(order, places)
        said = {place: future.result() for place, future in plain.items()}
    return Reached(tuple(_answer(address, order.ports, round_trips, said) for address in order.addresses))


Place = tuple[str, int]


def _answer(
    address: str, ports: Sequence[int], round_trips: Mapping[Place, float], said: Mapping[Place, str]
) -> Answer:
    wrong = {str(port): None if (address, port) in round_trips else said[address, port] for port in ports}
    times = [round_trips[address, port] for port in ports if (address, port) in round_trips]
    return Answer(address, wrong, min(times) * 1000 if times else None)


def _knock(order: Reach, places: Sequence[Place]) -> dict[Place, float]:
    """Seconds of the least round trip by place, for those that answer."""
    context: zmq.Context[Any] = zmq.Context()
    poller, place_of = zmq.Poller(), {}
    keys = replace(make_keys(), server=order.server)
    try:
        for address, port in places:
            knocking = connect(context, zmq.DEALER, f"tcp://{address}:{port}", keys)
            knocking.send(b"0")
            poller.register(knocking, zmq.POLLIN)
            place_of[knocking] = (address, port)
        answered = _first_answers(poller, place_of, order)
        return {place_of[knocking]: _round_trip(knocking) for knocking in answered}
    finally:
        context.destroy(linger=0)


def _first_answers(
    poller: zmq.Poller, place_of: Mapping[zmq.Socket[Any], Place], order: Reach
) -> list[zmq.Socket[Any]]:
    until = time.monotonic() + order.limit_s
    answered: list[zmq.Socket[Any]] = []
    while len(answered) < len(place_of) and (left_s := until - time.monotonic()) > 0:
        for knocking, _ in poller.poll(int(left_s * 1000) + 1):
            knocking.recv()
            poller.unregister(knocking)
            answered.append(knocking)
        at = [place_of[knocking][0] for knocking in answered]
        if any(at.count(address) == len(order.ports) for address in order.addresses):
            until = min(until, time.monotonic() + OTHERS_S)
    return answered


def _round_trip(knocking: zmq.Socket[Any]) -> float:
    least = float("inf")
    for number in range(1, ROUND_TRIPS + 1):
        begun = time.perf_counter()
        knocking.send(b"%d" % number)
        if not knocking.poll(int(TCP_S * 1000)):
            break
        knocking.recv()
        least = min(least, time.perf_counter() - begun)
    return least


def _tcp(address: str, port: int) -> str:
    """Result of a plain TCP connection to a port that does not answer."""
    try:
        socket.create_connection((address, port), TCP_S).close()
        return "connected, but another program answers on this port"
    except TimeoutError:
        return "no answer: filtered or not routed"
    except OSError as error:
        return (error.strerror or str(error)).lower()
