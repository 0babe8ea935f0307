"""The broker's sockets, ipc and behind the gate tcp for other hosts; and who may send what through them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import zmq

from zmqrl.config.plan import Endpoints, Keys, RunPlan, TcpListen, worker_indexes
from zmqrl.errors import ConfigError, WireError
from zmqrl.messages import bus
from zmqrl.types import AllowList
from zmqrl.wire.admission import Admission
from zmqrl.wire.gate import UNNAMED, Gate
from zmqrl.wire.runtime_folder import make_private
from zmqrl.wire.sockets import bind, port_holder


class BrokerSockets:
    """Sockets for its own host (ipc) and for others (tcp). Made, used and closed by the broker's main thread."""

    def __init__(
        self, endpoints: Endpoints, listen: TcpListen | None, keys: Keys | None, allowed: AllowList | None = None
    ) -> None:
        """`keys`: the broker's pair. `allowed`: the hosts that may connect.

        Raises:
            ConfigError: A port is taken, or would be open to all.
        """
        self._context: zmq.Context[Any] = zmq.Context()
        self.admission = Admission(allowed)
        """Who may connect, and whose messages count."""
        self._gate = Gate(self._context, keys if listen is not None else None, self.admission)
        self._local: dict[str, zmq.Socket[Any]] = {}
        """Socket of each endpoint of this host."""
        self.segments = self._bind(zmq.PULL, endpoints.segments)
        self.descriptors = self._bind(zmq.PUSH, endpoints.descriptors)
        self.notices = self._bind(zmq.PUB, endpoints.notices)
        self.control = self._bind(zmq.ROUTER, endpoints.control)
        for socket in (self.segments, self.notices, self.control):
            self._gate.watch(socket)
        self.guards: Sequence[zmq.Socket[Any]] = self._gate.sockets
        """To poll alongside the others; readable means `guard`."""
        self.ports: tuple[int, int, int] | None = None
        if listen is not None:
            try:
                segments, notices, control = listen.ports
                self.ports = (
                    self._open(self.segments, listen, segments),
                    self._open(self.notices, listen, notices),
                    self._open(self.control, listen, control, enrolment=True),
                )
            except BaseException:
                self.close()
                raise

    def _bind(self, kind: int, endpoint: str) -> zmq.Socket[Any]:
        _prepare(endpoint)
        socket = self._local[endpoint] = bind(self._context, kind, endpoint)
        return socket

    def _open(self, socket: zmq.Socket[Any], listen: TcpListen, port: int, enrolment: bool = False) -> int:
        try:
            return self._gate.open_tcp(socket, listen, port, enrolment)
        except zmq.ZMQError as error:
            what, fix = (
                f"cannot bind this port of {listen.address}: {error}{port_holder(port)}",
                "set another port, or auto",
            )
            raise ConfigError(what, key=("learner", "port"), value=str(port), fix=fix) from error

    def bind_again(self) -> bool:
        """Bind the sockets whose files were removed, as at a logout; returns whether there were any.

        Peers that are connected are not affected; those that come later need the file. The old listener stays:
        unbinding it would remove the new file as well, at some later moment.

        Raises:
            OSError, ConfigError, ZMQError: The file cannot be made.
        """
        gone = [endpoint for endpoint in self._local if not os.path.lexists(_path_of(endpoint) or "/")]
        for endpoint in gone:
            _prepare(endpoint)
            self._local[endpoint].bind(endpoint)
        return bool(gone)

    def guard(self) -> Counter[str]:
        """Answer authentication requests; rejections so far, by reason."""
        self._gate.serve()
        return self._gate.refused

    def host_of(self, frame: zmq.Frame) -> str | None:
        """`Gate.host_of`; None where no other host participates. WireError for a key that is not on the list."""
        return None if self.ports is None else self._gate.host_of(frame)

    def key_of(self, frame: zmq.Frame) -> str | None:
        """The public key of the connection that a message came from; None without encryption."""
        return None if self.ports is None else self._gate.key_of(frame)

    def close(self) -> None:
        """Let queued replies go for a moment, then close."""
        self._gate.close()
        self._context.destroy(linger=100)


class Senders:
    """Who may send what: from another host a message is accepted only for the workers assigned to this host. Pure.

    Each worker index belongs to one host as long as its agent names it: by the plan, else by the first that does.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._learner_host = plan.config.learner.host
        self._host_of = {index: host for host, assigned in worker_indexes(plan.workers).items() for index in assigned}

    def admit(self, user: str | None, message: bus.Message) -> bool:
        """Whether the message counts; `user` is the sender's host (`Gate.host_of`).

        Returns:
            False for a worker that no agent has named yet. Its messages are repeated, and its agent's may be later
            than its own, since they take different connections.

        Raises:
            WireError: This sender may not send it.
        """
        if user is None:  # the folder of the ipc sockets is open to this user alone
            return True
        match message:
            case bus.WorkerReport(remote=False):
                raise WireError("not remote", f"worker {message.index} of {_name(user)} cannot see the arena")
            case (
                bus.WorkerReport()
                | bus.RecordRequest()
                | bus.WorkerExit()
                | bus.Segment()
                | bus.Heartbeat(role="worker")
            ):
                return self._is_assigned(user, message.index)
            case bus.HostReport():
                self._check_agent(user, message)
                return True
            case bus.Fetch() | bus.PathProbe():
                return True
        raise WireError("not from there", f"{bus.kind_of(message)} from {_name(user)}")  # the learner is on our host

    def learn(self, host: str, workers: Iterable[int]) -> None:
        """The host of an agent that was admitted has these workers, alive or assigned, and no others."""
        named = set(workers)
        for index in named:
            self._host_of.setdefault(index, host)
        for index in self.workers_of(host):
            if index not in named:
                del self._host_of[index]

    def workers_of(self, host: str) -> list[int]:
        """Every worker that may live on the host."""
        return [index for index, holder in self._host_of.items() if holder == host]

    def _check_agent(self, user: str, report: bus.HostReport) -> None:
        host = report.host
        if host != user if user != UNNAMED else host == self._learner_host:
            raise WireError("host", f"{_name(user)} sends for {host}")
        for index in (*report.alive, *report.ready, *report.failed, *report.workers):
            if self._host_of.get(index, host) != host:
                raise WireError("host", f"{host} names worker {index} of {self._host_of[index]}")

    def _is_assigned(self, user: str, index: int) -> bool:
        """Without keys no process from outside is known by name: then any host but the learner's counts."""
        host = self._host_of.get(index)
        if host is not None and (host != user if user != UNNAMED else host == self._learner_host):
            raise WireError("host", f"{_name(user)} sends for worker {index} of {host}")
        return host is not None


def _path_of(endpoint: str) -> Path | None:
    """The socket's file, of an ipc endpoint."""
    url = urlparse(endpoint)
    return Path(url.path) if url.scheme == "ipc" else None


def _prepare(endpoint: str) -> None:
    """A broker that was killed leaves its socket file; the folder may have been removed, the one above it too."""
    path = _path_of(endpoint)
    if path is not None:
        for folder in (path.parent.parent, path.parent):
            if not folder.exists():
                make_private(folder)
        if path.parent.stat().st_uid != os.getuid():
            raise ConfigError(f"{path.parent} belongs to another user: remove it")
        path.unlink(missing_ok=True)


def _name(user: str) -> str:
    return user if user != UNNAMED else "a host without a key"
