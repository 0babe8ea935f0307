"""A host that joins by a connection file: admitted once, and everyone else is refused with the reason, and counted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.support.running import environment
from tests.support.runs.system_plans import WAITING_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, newest_n
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection, LearnerSection, LimitsSection, OrchestratorSection
from zmqrl.launch.connection_file import read_connection_file
from zmqrl.launch.requests import send_request
from zmqrl.messages import bus
from zmqrl.messages.frames import PROTOCOL, pack
from zmqrl.planning.plan_run import plan_run
from zmqrl.wire.runtime_folder import private_folder
from zmqrl.wire.sockets import connect, make_keys

pytestmark = pytest.mark.whole
ENDLESS = 10_000_000
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=5.0)


class InvitedRun(PlanRun):
    """The host `far` joins it by a file."""

    def __init__(self, folder: Path) -> None:
        alone = system_plan(folder / "run", "sync", 2, WAITING_TALLY, steps=ENDLESS, limits=LIMITS)
        config = replace(
            alone.config,
            hosts={"local": HostSection(workers=1), "far": HostSection(workers=1, manual=True)},
            learner=replace(LearnerSection(), address="127.0.0.1"),
            orchestrator=OrchestratorSection(kind="local"),
        )
        super().__init__(plan_run(config, folder / "run", 0.0))
        self.file = private_folder(self.plan.run_id) / "far.connect"
        self._folder = folder
        self._workers: list[subprocess.Popen[str]] = []

    def worker(self, file: Path) -> subprocess.Popen[str]:
        """`zmqrl worker --connect FILE` in a folder of its own."""
        folder = self._folder / f"host{len(self._workers)}"
        folder.mkdir()
        command = [sys.executable, "-m", "zmqrl", "worker", "--connect", str(file)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment())
        self._workers.append(process)
        return process

    def refused(self, reason: str) -> int:
        return int(self.status().get("refused", {}).get(reason, 0))

    def state(self, host: str) -> str:
        return {row["host"]: row["state"] for row in self.status().get("hosts", ())}.get(host, "")

    def wait_for_more(self) -> None:
        """Until the run has gone on by some updates."""
        self.wait_for_updates(newest_n(Path(self.plan.store_path)) + 3)

    def close(self) -> None:
        for process in self._workers:
            process.terminate()
            process.communicate(timeout=WAIT_S)
        self.cut_short()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[InvitedRun]:
    held = InvitedRun(tmp_path)
    yield held
    held.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out + err


def test_a_connection_file_admits_one_host_and_a_stolen_one_none(run: InvitedRun, tmp_path: Path) -> None:
    run.wait_for(run.file.is_file)
    ours, stolen = (tmp_path / name for name in ("ours.connect", "stolen.connect"))
    for copy in (ours, stolen):
        shutil.copy2(run.file, copy)
    boot, join = read_connection_file(ours)
    assert boot.keys is None and join.server is not None and join.enrolment is not None
    host = run.worker(ours)
    run.wait_for(lambda: run.state("far") == "ready")
    run.wait_for(lambda: not run.file.exists())
    run.wait_for_more()
    code, said = ended(run.worker(stolen))
    assert code == 2 and "the token was used before: a connection file admits one host, once" in said
    run.wait_for(lambda: run.refused("token") > 0)
    before = run.processes()["broker-0"]
    run.kill("broker-0")
    run.wait_for_successor("broker-0", before)
    run.wait_for_more()
    code, said = ended(run.worker(stolen))
    assert code == 2 and "the token was used before" in said, "a new broker knows it too"
    assert host.poll() is None and run.state("far") == "ready", "and our host"
    assert run.refused("unknown key") == 0

    host.send_signal(signal.SIGINT)
    assert ended(host)[0] in (0, 1, 130)
    run.wait_for(lambda: run.state("far") == "drained")
    assert "once it joins with its new connection file" in send_request(run.run_dir, {"scale": {"far": 1}}, WAIT_S)
    again = run.worker(run.file)
    run.wait_for(lambda: run.state("far") == "ready")
    run.wait_for_more()
    assert "far: removed from the run" in send_request(run.run_dir, {"scale": {"far": 0}}, WAIT_S)
    ended(again)
    run.wait_for(lambda: run.state("far") == "drained")
    run.wait_for_more()
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
    assert run.summary()["ledger"]["balanced"]


def test_unknown_peers_are_counted_by_reason_and_the_run_continues(run: InvitedRun) -> None:
    run.wait_for(run.file.is_file)
    join = read_connection_file(run.file)[1]
    stranger = replace(make_keys(), server=str(join.server))
    context: zmq.Context[Any] = zmq.Context()
    try:
        segments, _, control = (f"tcp://127.0.0.1:{port}" for port in join.ports)
        dealer = connect(context, zmq.DEALER, control, stranger)
        dealer.send(pack(bus.Enrol("x" * 43)))
        dealer.send(pack(bus.HostReport("far", {1: 0}, [], [], [1], "")))
        dealer.send(pack(bus.AllowedKeys(bus.AllowList(99, {stranger.public: ("far", 1)}))))  # type: ignore[dict-item]
        dealer.send(msgpack.packb([PROTOCOL, {"kind": "enrol", "token": 7}]))
        dealer.send(msgpack.packb([PROTOCOL, {"kind": "enrol"}]))
        dealer.send(b"\xc1")
        held = (dealer, connect(context, zmq.PUSH, segments, stranger))
        for reason, least in {"token": 1, "unknown key": 3, "value": 1, "fields": 1, "not msgpack": 1}.items():
            run.wait_for(lambda reason=reason, least=least: run.refused(reason) >= least)  # type: ignore[misc]
        assert held[0].poll(int(WAIT_S * 1000)), "it learns why"
    finally:
        context.destroy(linger=0)
    run.wait_for_more()
    assert run.state("far") == "connecting"
    run.worker(run.file)
    run.wait_for(lambda: run.state("far") == "ready")
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130
