"""The sequence of checks: messages of the examining agents in, requests out. Without clock and sockets."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.doctor.measurement import ClockFacts, Failure, Hello, Measurement, StoreFacts
from zmqrl.messages.command import EXAMINATION
from zmqrl.messages.doctor import (
    Broken,
    Clock,
    Curve,
    EnvFacts,
    Examined,
    Folders,
    Listening,
    Locks,
    Machine,
    Reached,
    Reply,
    Seen,
    Watching,
    Written,
)
from zmqrl.messages.doctor_requests import Echo, Examine, Finish, Forget, Reach, Request, Watch, Write
from zmqrl.messages.orchestrator import Handshake

ECHOES = 5
WATCH_S = 3.0
NAME = ".zmqrl-doctor-"

Requests: TypeAlias = list[tuple[str, Request]]


@dataclass(frozen=True)
class HostRequests:
    """The checks of one host."""

    examine: Examine
    reach: Reach | None
    """Key, ports and addresses are those that the learner's host reports, unless `addresses` are given."""
    watches: bool
    """Whether the host looks into the store for what the learner's host writes."""


class Examination:
    """The learner's host is checked first: the others need its addresses and its store."""

    def __init__(self, requests: Mapping[str, HostRequests], learner: str) -> None:
        self.measurements = {host: Measurement(host) for host in requests}
        self._requests, self._learner = requests, learner
        self._clocks: dict[str, list[tuple[float, float, float]]] = {host: [] for host in requests}
        self._echoed_at: dict[str, float] = {}
        self._waiting: list[str] = []
        self._learner_examined = learner not in requests
        self._tokens = {host: secrets.token_hex(16) for host in requests}
        self._token_hosts: set[str] = set()
        """Hosts whose token lies, or will soon, in the store."""
        self._written: dict[str, Written] = {}
        self._seen: dict[str, Seen] = {}
        self._finishing: set[str] = set()
        self.over: set[str] = set()

    @property
    def done(self) -> bool:
        """Nothing is to be waited for any more."""
        return self.over == set(self._requests)

    def handle(self, host: str, reply: Handshake | Reply, now: float) -> Requests:
        """`now`: unix time here when the message arrived."""
        if host in self.over:
            return []
        match reply:
            case Handshake():
                return self._begin(host, reply, now)
            case Clock():
                return self._clock(host, reply, now)
            case Broken():
                return self.fail(host, Failure("probe", reply.cause, ""))
            case Examined():
                return self._examined(host)
            case Watching() | Written() | Seen():
                return self._store(host, reply)
        self._note(host, reply)
        match reply:
            case Reached():
                return self._watch(host)
            case EnvFacts():
                return self._end(host)
        return []

    def fail(self, host: str, failure: Failure, found: Handshake | None = None) -> Requests:
        """No further message of this host counts. `found`: by a shell, in the place of the agent's handshake."""
        if host in self.over:
            return []
        self.measurements[host] = replace(self.measurements[host], failure=failure)
        if found is not None:
            self.measurements[host] = replace(self.measurements[host], hello=Hello.of(found))
        return self._end(host)

    def is_idle(self, host: str) -> bool:
        """Whether no message of this host is due."""
        keeps_open = host == self._learner and self._learner_examined and host not in self._finishing
        return host in self._waiting or host in self._seen or (keeps_open and not self._seen)

    # one host after the other

    def _begin(self, host: str, handshake: Handshake, now: float) -> Requests:
        self.measurements[host] = replace(self.measurements[host], hello=Hello.of(handshake))
        if handshake.versions.get("examination") != str(EXAMINATION):
            return self._end(host)  # its versions are the finding
        self._echoed_at[host] = now
        return [(host, Echo())]

    def _clock(self, host: str, clock: Clock, now: float) -> Requests:
        sent = self._echoed_at.get(host)
        if sent is None:
            return []  # unrequested
        self._clocks[host].append((now - sent, clock.time_s - (sent + now) / 2, now))
        if len(self._clocks[host]) < ECHOES:
            self._echoed_at[host] = now
            return [(host, Echo())]
        round_trip_s, skew_s, _ = min(self._clocks[host])
        self.measurements[host] = replace(self.measurements[host], clock=ClockFacts(skew_s, round_trip_s))
        return [(host, self._requests[host].examine)]

    def _note(self, host: str, reply: Reply) -> None:
        fields = {
            Machine: "machine",
            Locks: "locks",
            Folders: "folders",
            Curve: "curve",
            Listening: "listening",
            Reached: "reached",
            EnvFacts: "env",
        }
        self.measurements[host] = replace(self.measurements[host], **{fields[type(reply)]: reply})  # type: ignore[arg-type]

    def _examined(self, host: str) -> Requests:
        if host == self._learner:
            return self._learner_is_known()
        if not self._learner_examined:
            self._waiting.append(host)
            return []
        return self._reach(host)

    def _learner_is_known(self) -> Requests:
        self._learner_examined = True
        waiting, self._waiting = self._waiting, []
        requests = [request for host in waiting for request in self._reach(host)]
        requests += [request for host in list(self._seen) for request in self._compare(host)]
        return requests + self._finish_learner()

    def _reach(self, host: str) -> Requests:
        requested, listening = self._requests[host].reach, self._of_learner().listening
        if requested is None or listening is None or listening.error is not None or self._is_over_learner():
            return self._watch(host)
        addresses, ports = requested.addresses or listening.addresses, requested.ports or listening.ports
        return [(host, structs.replace(requested, addresses=addresses, ports=ports, server=listening.server))]

    def _of_learner(self) -> Measurement:
        return self.measurements.get(self._learner, Measurement(self._learner))

    def _watch(self, host: str) -> Requests:
        folders = self._of_learner().folders
        store = folders.store if folders is not None else None
        if not self._requests[host].watches or store is None or store.error is not None or self._is_over_learner():
            return self._finish(host)
        requested = self._requests[host].examine.store
        if requested is None or store.there == "/":  # nothing of it exists: no directory to be compared
            return self._finish(host)
        up = _levels(store.path, store.there)
        return [(host, Watch(requested, up, self._name(host), self._tokens[host], WATCH_S))]

    def _store(self, host: str, reply: Watching | Written | Seen) -> Requests:
        if isinstance(reply, Watching):
            return self._watching(host, reply)
        if isinstance(reply, Seen):
            self._seen[host] = reply
            return self._compare(host)
        self._written[reply.name] = reply
        return [request for watcher in list(self._seen) for request in self._compare(watcher)]

    def _compare(self, host: str) -> Requests:
        """Needs the messages of two hosts, which come in any order."""
        seen = self._seen[host]
        written = self._written.get(seen.name)
        if written is None and not self._is_over_learner():
            return []
        del self._seen[host]
        if written is not None or seen.time_s is not None:
            facts = self._store_facts(host, seen, written)
            self.measurements[host] = replace(self.measurements[host], store=facts)
        return self._forget(host) + self._finish(host)

    def _watching(self, host: str, reply: Watching) -> Requests:
        if reply.error is not None:
            facts = StoreFacts(False, None, reply.error)
            self.measurements[host] = replace(self.measurements[host], store=facts)
            return self._finish(host)
        if self._is_over_learner():
            return self._finish(host)
        self._token_hosts.add(host)
        return [(self._learner, Write(self._store_there(), self._name(host), self._tokens[host]))]

    def _forget(self, host: str) -> Requests:
        """Nothing is left in the store, also when who watched for it died."""
        if host not in self._token_hosts or self._is_over_learner():
            return []
        self._token_hosts.remove(host)
        return [(self._learner, Forget(self._store_there(), self._name(host)))]

    def _name(self, host: str) -> str:
        """A separate file for each host: no process waits for the slowest."""
        return f"{NAME}{self._tokens[host][:8]}"

    def _store_there(self) -> str:
        folders = self._of_learner().folders
        assert folders is not None and folders.store is not None, "the folders are known before a host watches"
        return folders.store.there

    def _store_facts(self, host: str, seen: Seen, written: Written | None) -> StoreFacts:
        if seen.time_s is None:
            cause = written.error if written is not None else None
            return StoreFacts(False, None, cause or f"another directory: the file was not visible within {WATCH_S:g} s")
        here, there = self.measurements[host].clock, self._of_learner().clock
        if written is None or here is None or there is None:
            return StoreFacts(True, None, None)
        return StoreFacts(True, max(0.0, (seen.time_s - here.skew_s) - (written.time_s - there.skew_s)), None)

    # the end

    def _is_over_learner(self) -> bool:
        return self._learner in self.over or self._learner not in self._requests

    def _finish(self, host: str) -> Requests:
        if host in self._finishing:
            return []
        self._finishing.add(host)
        return [(host, Finish())]

    def _finish_learner(self) -> Requests:
        """Finish the learner's host as the last one: it listens and writes for the others."""
        others = set(self._requests) - {self._learner}
        if self._is_over_learner() or not self._learner_examined or not others <= self.over:
            return []
        return self._finish(self._learner)

    def _end(self, host: str) -> Requests:
        self.over.add(host)
        self._seen.pop(host, None)
        if host in self._waiting:
            self._waiting.remove(host)
        if host == self._learner:
            return self._learner_is_known()
        return self._forget(host) + self._finish_learner()


def _levels(path: str, there: str) -> int:
    """How many levels `there` lies above `path`."""
    return len(path.rstrip("/").split("/")) - len(there.rstrip("/").split("/"))
