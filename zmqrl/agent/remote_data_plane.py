"""The data plane of a host without the learner: no arena; weights from the shared store, or from the broker."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zmqrl.agent.data_plane import DataPlane
from zmqrl.agent.weights_relay import WeightsRelay
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Endpoints, Keys, RunPlan
from zmqrl.data_stores.make import make_store
from zmqrl.errors import StoreError
from zmqrl.messages.bus import Hanging, HostReport
from zmqrl.messages.command import Join
from zmqrl.types import Notice, Version
from zmqrl.wire.agent_link import AgentLink
from zmqrl.wire.probe import FirstAddress, Unanswered, first_answering

AGAIN_S, AGAIN_MAX_S = 2.0, 30.0
LOG = logging.getLogger(__name__)
PROBE_S = 8.0
STORE_S = 1.0
"""How long a version may take to be seen in the store; then it is requested from the broker."""


class Fetching:
    """One request at a time: each reply is a whole policy, and behind a thin wire they would pile up.

    A request without an answer is repeated with backoff, since the answer may be in transit; at once
    when another broker is there, which knows nothing of it.
    """

    def __init__(self) -> None:
        self._required: list[Version] = []
        self._requested: Version | None = None
        self._requested_at = 0.0
        self._again_s = AGAIN_S
        self._broker: int | None = None

    def require(self, *versions: Version) -> None:
        """These versions, one after the other; of each that is not there any more a newer one."""
        if not self._required or self._required[-1] < versions[-1]:
            self._required = list(versions)

    def received(self, version: Version) -> None:
        """This version is here."""
        if self._requested is not None and self._requested <= version:
            self._requested, self._again_s = None, AGAIN_S
        self._required = [required for required in self._required if required > version]

    def due(self, broker: int | None, now: float) -> Version | None:
        """The version to request now, which then counts as requested.

        `broker`: incarnation of the one that reported last; None: unknown.
        """
        is_new = self._broker is not None and broker != self._broker
        self._broker = broker
        if not self._required:
            return None
        if self._requested is not None:
            is_late = now - self._requested_at >= self._again_s
            if not is_late and not is_new:
                return None
            self._again_s = AGAIN_S if is_new else min(AGAIN_MAX_S, 2 * self._again_s)
        self._requested, self._requested_at = self._required[0], now
        return self._requested


class RemoteDataPlane(DataPlane):
    """Knows nothing of the broker until `join`."""

    def __init__(self, plan: RunPlan, host: str, keys: Keys | None) -> None:
        """`keys`: this host's pair."""
        self._plan, self._host, self._keys = plan, host, keys
        self._link: AgentLink | None = None
        self._relay = WeightsRelay(None)
        self.sees_store = False
        self._fetching = Fetching()

    @property
    def sockets(self) -> Sequence[Any]:
        return () if self._link is None else self._link.sockets

    @property
    def shutdown_cause(self) -> str | None:
        return None if self._link is None else self._link.shutdown_cause

    @property
    def hanging(self) -> Sequence[Hanging]:
        return () if self._link is None else self._link.hanging

    @property
    def received(self) -> int | None:
        return None if self._link is None else self._link.received

    @property
    def refused(self) -> Counter[str]:
        return Counter() if self._link is None else self._link.refused

    def join(self, join: Join) -> FirstAddress | None:
        self._keys = replace(self._keys, server=join.server) if self._keys and join.server else None
        reached = self._reached(join)
        self.endpoints = Endpoints.tcp(reached.address, join.ports)
        self._link = AgentLink(self.endpoints, self._keys)
        store = make_store(self._plan)
        self.sees_store = join.token is not None and store.sees_token(self._plan.run_id, join.token)
        if self.sees_store:
            self._relay.close()
            self._relay = WeightsRelay(store, STORE_S)
        return reached

    def _reached(self, join: Join) -> FirstAddress:
        """While many hosts start on few cores, a broker may need longer for a handshake than peers wait for it."""
        patience_until = time.monotonic() + self._plan.config.limits.host_lease_s / 2
        while True:
            try:
                return first_answering(join, self._host, self._keys, PROBE_S)
            except Unanswered as error:
                if not error.accepts or time.monotonic() >= patience_until:
                    raise

    def take_notice(self) -> Notice | None:
        assert self._link is not None, "sockets are read after they are opened"
        newest = self._relay.newest(self._link.notices())
        taken = self._take_fetched(self._link)
        if newest is not None and self._relay.newest([newest]) is not None:
            taken = self._take(newest) or taken
        self._request_when_due(self._link)
        if taken is not None:
            self.current = taken
        return taken

    def _take_fetched(self, link: AgentLink) -> Notice | None:
        taken = None
        for fetched in link.fetched:
            try:
                taken = self._relay.put(fetched.notice, fetched.content) or taken
            except StoreError as error:
                LOG.warning("fetched weights are requested again: %s", error)
            else:
                self._fetching.received(fetched.notice.version)
        link.fetched.clear()
        return taken

    def _take(self, notice: Notice) -> Notice | None:
        """Take a version from the store where it is seen; else it is requested, and comes later."""
        if self.sees_store:
            try:
                return self._relay.take([notice])
            except StoreError as error:
                LOG.warning("version %s is fetched from the broker: %s", notice.version, error)
        self._fetching.require(*(missing.version for missing in self._relay.missing(notice)))
        return None

    def _request_when_due(self, link: AgentLink) -> None:
        version = self._fetching.due(link.broker, time.monotonic())
        if version is not None:
            link.fetch(version)

    def boot_of(self, role: str, boot: Boot) -> Boot:
        return replace(super().boot_of(role, boot), keys=self._keys if role == "worker" else None)

    def fds_of(self, role: str) -> Mapping[str, int]:
        return {"weights": self._relay.fd} if role == "worker" else {}

    def report(self, report: HostReport) -> None:
        if self._link is None:
            return
        self._link.report(report)
        self._request_when_due(self._link)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._relay.close()
