"""Hostile bytes: a real run goes on under them, and an agent's link takes nothing but sound messages."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import MOST_GROWTH_MB, Fuzzer, child_of, folder_of, refusals, rss_mb
from tests.support.runs.system_plans import PPO, system_plan
from tests.support.runs.system_runs import PlanRun
from tests.support.waiting import WAIT_S
from zmqrl.config.plan import Endpoints
from zmqrl.messages import bus
from zmqrl.messages.bus import HostReport
from zmqrl.messages.frames import pack
from zmqrl.types import Notice, Version
from zmqrl.wire.agent_link import AgentLink
from zmqrl.wire.sockets import bind

pytestmark = pytest.mark.whole
EXPECTED = (
    "descriptors", "fields", "frames", "kind", "process", "no handshake", "not msgpack", "protocol", "segment", "value",
    "worker",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PlanRun]:
    started = PlanRun(system_plan(tmp_path / "run", "sync", 2, PPO, steps=1_000_000_000))
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


def test_a_run_continues_under_hostile_bytes(run: PlanRun) -> None:
    run.wait_for_updates(4)
    broker = child_of(run.process.pid, "broker")
    assert broker is not None
    fuzzer = Fuzzer(folder_of(run.plan.run_id), seed=3)
    try:
        fuzzer.run(4000)
        before_mb, version = rss_mb(broker), _newest(run)
        fuzzer.run(12_000)
        fuzzer.connects(600)
        fuzzer.ask()
    finally:
        fuzzer.close()
    run.wait_for_updates(version + 4)
    assert rss_mb(broker) - before_mb < MOST_GROWTH_MB
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    summary = run.summary()
    assert summary["ledger"]["balanced"], summary["ledger"]
    assert summary["ledger"]["stored"] == summary["env_steps"]
    assert summary["restarts"] == 0
    refused = refusals(run.run_dir / "logs")
    assert not set(EXPECTED) - set(refused), refused
    assert refused["not msgpack"] > 1000, json.dumps(refused)


def _newest(run: PlanRun) -> int:
    return max(int(p.stem.rpartition("-")[2]) for p in Path(run.plan.store_path).glob("v*.safetensors"))


class Broker:
    """Sends anything to the agent that sent a report."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        ends = Endpoints(notices=f"ipc://{folder}/n", control=f"ipc://{folder}/c")
        self.notices = bind(self._context, zmq.PUB, ends.notices)
        self.control = bind(self._context, zmq.ROUTER, ends.control)
        self.link = AgentLink(ends)
        self.link.report(HostReport("local", {}, [], [], [], ""))
        assert self.control.poll(WAIT_S * 1000)
        self.peer = self.control.recv_multipart()[0]
        self._said = 0
        self.send([])

    def send(self, lies: list[list[bytes]]) -> list[Notice]:
        """What the agent makes of `lies` on both sockets; a sound notice is sent last."""
        for lie in lies:
            self.notices.send_multipart(lie)
            self.control.send_multipart([self.peer, *lie])
        self._said += 1
        last, found = Version(1, self._said), []
        self.control.send_multipart([self.peer, pack(bus.CurrentNotice(Notice(last, "k", 1, "s", 0)))])
        until = time.monotonic() + WAIT_S
        while not any(notice.version == last for notice in found):
            assert time.monotonic() < until, "the last notice was not received"
            self.link.sockets[1].poll(100)
            found += self.link.notices()
        return found

    def close(self) -> None:
        self.link.close()
        self._context.destroy(linger=0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("b"))
    yield made
    made.close()


SOUND = pack(bus.CurrentNotice(Notice(Version(0, 7), "key", 3, "sha", 5)))
FRAMES = st.one_of(
    st.binary(max_size=60),
    st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)).map(lambda at: _changed(*at)),
    st.integers(0, len(SOUND)).map(lambda length: SOUND[:length]),
)


def _changed(at: int, byte: int) -> bytes:
    return SOUND[:at] + bytes([byte]) + SOUND[at + 1 :]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lies=st.lists(st.lists(FRAMES, min_size=1, max_size=4), max_size=8))
def test_an_agent_takes_only_sound_notices(broker: Broker, lies: list[list[bytes]]) -> None:
    for notice in broker.send(lies):
        assert all(type(number) is int and number >= 0 for number in (*notice.version, notice.nbytes, notice.updates))
        assert isinstance(notice.key, str) and isinstance(notice.sha256, str)
