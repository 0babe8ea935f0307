"""A bus whose worker is on another host: no arena, tcp and CURVE, or another carrier for its segments."""

from __future__ import annotations

from pathlib import Path

from tests.bus_ends.event_pipe import EventPipe
from tests.bus_ends.real_bus import RealBus
from tests.shared_memory.bus_plans import COLUMNS, ROWS, bus_plan
from tests.support.waiting import WAIT_S, until
from zmqrl.bus_ends.learner_end import SegmentSource
from zmqrl.bus_ends.remote_sink import RemoteSink
from zmqrl.config.codec import replace
from zmqrl.config.plan import Boot, Endpoints, TcpListen
from zmqrl.config.sections import MemoryBackendSection
from zmqrl.types import AllowList, ColumnSpec, HostKey, SegmentId, Version
from zmqrl.wire.agent_link import AgentLink
from zmqrl.wire.sockets import make_keys

TURN_S = 0.05
BUS = MemoryBackendSection()


class FarBus(RealBus):
    """The broker listens on loopback too; host b may come in."""

    def __init__(
        self,
        folder: Path,
        lost_after_s: float = 20.0,
        backend: MemoryBackendSection = BUS,
        columns: tuple[ColumnSpec, ...] = COLUMNS,
    ) -> None:
        self.server_keys = make_keys()
        self.far_keys = replace(make_keys(), server=self.server_keys.public)
        self.allowed = AllowList(1, {self.far_keys.public: HostKey("b", 1)})
        self.listen = TcpListen("127.0.0.1")
        self.events = EventPipe()
        plan = bus_plan("sync", workers=1, vector_envs=1, leases=2, slots=6)
        limits = replace(plan.config.limits, lost_after_s=lost_after_s)
        config = replace(plan.config, limits=limits, memory_backend=backend)
        super().__init__(replace(plan, config=config, workers={"b": 1}, columns=columns), folder)
        self.listen = TcpListen("127.0.0.1", self._ports())
        self.far = Endpoints.tcp("127.0.0.1", self.listen.ports)
        self.far_agent = AgentLink(self.far, self.far_keys)
        self._ends.append(self.far_agent)

    def boot(self, role: str, index: int = 0, spawn: int = 0, inherit: bool = False) -> Boot:
        near = super().boot(role, index, spawn, inherit)
        if role != "broker":
            return near
        fds = {**near.fds, "events": self.events.write_fd}
        return replace(near, keys=self.server_keys, allowed=self.allowed, listen=self.listen, fds=fds)

    def far_sink(self, spawn: int = 0) -> RemoteSink:
        self._ends.append(RemoteSink(Boot("worker", 0, spawn, "b", self.plan, self.far, keys=self.far_keys)))
        return self._ends[-1]  # type: ignore[no-any-return]

    def _ports(self) -> tuple[int, int, int]:
        said = self.events.read(WAIT_S)[0]
        assert said["event"] == "listening"
        segments, notices, control = said["ports"]
        return segments, notices, control

    def reported_lost(self) -> bool:
        events = self.events.read(TURN_S)
        return any(event.get("state") == "lost" and event["role"] == "worker" for event in events)

    def close(self) -> None:
        super().close()
        self.events.close()


def write(sink: RemoteSink, index: int, incarnation: int = 0) -> None:
    segment = until(lambda: sink.open(0) or (sink.poll(TURN_S) and None), "a lease")
    for name, column in segment.columns.items():
        column[...] = index if name in ("obs", "action", "reward") else 1
    sink.progress(0, ROWS)
    sink.seal(segment, SegmentId(0, incarnation, index), Version(0, index), ROWS)


def take(source: SegmentSource, count: int, sink: RemoteSink) -> list[int]:
    """Indexes of the next segments; each came whole."""
    found: list[int] = []

    def turn() -> bool:
        sink.poll(0.0)
        for taken in source.take(TURN_S):
            for name in ("obs", "action", "reward"):
                assert (source.columns[name][taken.ref.slot] == taken.meta.id.index).all()
            assert source.columns["valid"][taken.ref.slot].all()
            found.append(taken.meta.id.index)
            source.release([taken.ref])
        return len(found) >= count

    until(turn, f"{count} segments")
    return found


def ready(sink: RemoteSink) -> None:
    until(lambda: sink.poll(TURN_S).streams, "assignments")
