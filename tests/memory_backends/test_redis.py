"""The memory backend `redis`: whatever Redis loses, each row is stored once; secrets stay out of files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bus_ends.far_bus import FarBus, ready, take, write
from tests.memory_backends.redis_server import PASSWORD, RedisServer, redis_server
from tests.shared_memory.bus_plans import ROWS, bus_plan
from tests.support.raising import fields, raises
from tests.support.running import ROOT, RUN_S, environment
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace, to_json
from zmqrl.config.sections import MemoryBackendSection
from zmqrl.drill.drill import outside_check
from zmqrl.drill.run_under_test import RunUnderTest
from zmqrl.drill.runs import WITNESS, DrillRequest, learning_run, record_folder, witness_config
from zmqrl.drill.scenarios import SCENARIOS
from zmqrl.errors import ConfigError, TransportError
from zmqrl.memory_backends.redis import PASSWORD_VARIABLE, RedisBackend, RedisConfig
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run

FLUSH, KILL = ("flushall",), ("client", "kill", "type", "normal")
FAULTS = (FLUSH, KILL, FLUSH, FLUSH, KILL, FLUSH)
"""Everything in Redis is lost, or every connection."""
MORE_FAULTS = (*FAULTS, KILL, FLUSH, KILL, FLUSH, KILL, FLUSH)
SENT_S = 3.0
LOCAL = "redis://127.0.0.1:6379/0"


def states(pid: int) -> list[str]:
    """Of the threads of a process, as `/proc` names them."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The broker receives nothing meanwhile. The first message answers its last request, the next ones lie in Redis."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: all(state == "T" for state in states(pid)), "every thread to stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


URL, TLS = "memory_backend.url", "which needs TLS in Redis"
NO_PASSWORD = fields(URL, "", fix=f"set {PASSWORD_VARIABLE} in the environment of each host")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.mark.parametrize(("url", "fault"), [
    ("redis://10.0.0.5:6379/1", fields(URL, "'redis://10.0.0.5:6379/1'", fix=f"write rediss://10.0.0.5:6379/1, {TLS}")),
    ("redis://redis.lab", fields(URL, "'redis://redis.lab'", fix=f"write rediss://redis.lab:6379, {TLS}")),
    ("rediss://:hunter2@redis.lab:6379", NO_PASSWORD),
    ("rediss://redis.lab:6379?password=hunter2", NO_PASSWORD),
    ("rediss://:hunter2@redis.lab:port", NO_PASSWORD),
    ("rediss://:hunter2/1@redis.lab", NO_PASSWORD),
    ("rediss://[:hunter2@redis.lab", fields(URL, "", what="not a URL")),
    ("http://redis.lab", fields(URL, "'http://redis.lab'", fix="write rediss://HOST:PORT/DB")),
    ("rediss://redis.lab:port", fields(URL, "'rediss://redis.lab:port'", fix="write rediss://HOST:PORT/DB")),
])  # fmt: skip
def test_a_url_that_would_expose_something_is_refused(url: str, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault) as refusal:
        RedisBackend(RedisConfig(url), bus_plan())
    assert "hunter2" not in str(refusal.value)


@pytest.mark.whole
def test_a_refusal_names_file_and_line_and_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("run: {preset: cartpole-ppo}\nmemory_backend:\n  kind: redis\n  url: redis://10.0.0.5\n")
    command = [sys.executable, "-m", "zmqrl", "launch", str(file), "--run-dir", str(tmp_path / "run"), "--dry-run"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert f"{file}:4: memory_backend.url: 'redis://10.0.0.5': " in line, line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", [LOCAL, "redis://localhost", "redis://[::1]:7000", "rediss://redis.lab:6379/2"])
def test_a_url_of_this_machine_or_with_tls_is_accepted(url: str) -> None:
    RedisBackend(RedisConfig(url), bus_plan())


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with raises(
        ConfigError, key=("memory_backend", "kind"), fix="run in the checkout of zmqrl: pip install '.[redis]'"
    ):
        RedisBackend(RedisConfig(LOCAL), bus_plan())


def test_a_server_that_is_away_and_a_wrong_password(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    away = RedisBackend(RedisConfig("redis://127.0.0.1:9"), bus_plan())
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
        away.send([b"frame"])
    away.close()
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    backend = RedisBackend(server.config, bus_plan())
    with raises(ConfigError, value=server.config.url, fix=f"set {PASSWORD_VARIABLE} on this host"):
        backend.receive(0.1)
    backend.close()


@pytest.mark.whole
def test_segments_in_redis_are_lost_and_each_is_stored_once(server: RedisServer, tmp_path: Path) -> None:
    bus = FarBus(tmp_path, backend=MemoryBackendSection("redis", to_json(server.config)))
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        segments = 4 * len(FAULTS)
        for index in range(0, segments, 2):
            until(lambda: sink.poll(0.05) and len(sink._free) == 2, "leases")
            with stopped(bus.broker.pid):
                for more in (0, 1):
                    write(sink, index + more)
                    sink.poll(0.0)  # sends it
                if index % 4 == 0:
                    server.command(*FAULTS[index // 4])
            assert take(source, 2, sink) == [index, index + 1]
        until(lambda: sink.poll(0.05) and not sink._sealed, "acknowledgements")
        ledger = bus.arena.ledger()
        assert (ledger.produced, ledger.stored, ledger.balanced) == (segments * ROWS, segments * ROWS, True)
        assert calls(server, "xadd") >= segments + FAULTS.count(FLUSH), "what was lost was sent again"
    finally:
        bus.close()


def problems(bus: FarBus) -> list[str]:
    """What the broker has reported since the last call: what was done about it."""
    return [event["done"] for event in bus.events.read(0.0) if event["event"] == "problem"]


@pytest.mark.whole
def test_an_outage_is_waited_for_and_reported_once(server: RedisServer, tmp_path: Path) -> None:
    bus = FarBus(tmp_path, backend=MemoryBackendSection("redis", to_json(server.config)))
    try:
        source, sink = bus.source(), bus.far_sink()
        ready(sink)
        write(sink, 0)
        assert take(source, 1, sink) == [0]
        server.stop()
        write(sink, 1)
        reported: list[str] = []
        until(lambda: (sink.poll(0.05) and reported.extend(problems(bus))) or reported, "the report")
        assert source.take(0.2) == [] and len(sink._sealed) == 1
        assert server.start()
        assert take(source, 1, sink) == [1]
        until(lambda: reported.extend(problems(bus)) or len(reported) > 1, "the end of the outage")
        assert reported == ["no segments arrive over it; retrying", "segments arrive"]
        assert bus.arena.ledger().balanced
    finally:
        bus.close()


@dataclass
class Launched(RunUnderTest):
    """A run whose workers are on a host that joins by a file: here too, over tcp of this machine."""

    worker: subprocess.Popen[str] | None = None

    def start(self, resume: bool = False) -> None:
        """`zmqrl launch`, then `zmqrl worker --connect` with the file that it names."""
        assert not resume
        arguments = ["launch", *self.arguments, "--run-dir", self.run_dir, "--plain"]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "zmqrl", *map(str, arguments)],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        file = until(self._connection_file, lambda: self.log_tail(), RUN_S)
        self.worker = subprocess.Popen(
            [sys.executable, "-m", "zmqrl", "worker", "--connect", file],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _connection_file(self) -> str | None:
        assert self.exit_code is None, self.log_tail()
        found = re.search(r"(/\S+\.connect)", self.log_tail())
        return found and found[1]

    def kill(self) -> None:
        """The worker's command too."""
        super().kill()
        if self.worker is not None:
            if self.worker.poll() is None:
                self.worker.kill()
            self.worker.communicate()


def launched(folder: Path, server: RedisServer) -> Launched:
    request = DrillRequest(SCENARIOS["ppo-sync"], 1, 60.0, folder, len(FAULTS))
    config: dict[str, Any] = {
        **witness_config(request, learning_run(request)[0].plan),
        "hosts": {"local": {"workers": 0}, "far": {"manual": True, "workers": 2}},
        "min_workers": 2,
        "memory_backend": {"kind": "redis", **to_json(server.config)},
    }
    file = folder / "hosts.yaml"
    file.write_text(json.dumps(config))
    plan = plan_run(load(None, file).config, folder / WITNESS, time.time())
    return Launched(WITNESS, plan, [str(file)], witness=True)


def calls(server: RedisServer, command: str) -> int:
    """How often Redis has executed it."""
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", server.command("info", "commandstats"))
    return int(found[1]) if found else 0


def struck(server: RedisServer, run: Launched, fault: Sequence[str]) -> bool:
    """Do it while segments lie in Redis, which the broker has not read; False when no worker had a lease for them."""
    sent, end = calls(server, "xadd"), time.monotonic() + SENT_S
    with stopped(run.snapshot().processes["broker-0"].pid):
        while calls(server, "xadd") <= sent + 1:
            if time.monotonic() > end:
                return False
        server.command(*fault)
    return True


@pytest.mark.whole
@pytest.mark.parametrize("faults", [FAULTS, pytest.param(MORE_FAULTS, marks=pytest.mark.long)], ids=len)
def test_a_run_over_redis_loses_and_doubles_no_row(
    server: RedisServer, tmp_path: Path, faults: Sequence[Sequence[str]]
) -> None:
    run = launched(tmp_path, server)
    try:
        run.start()
        until(lambda: (version := run.snapshot().version) and version.n > 2, lambda: run.log_tail(), RUN_S)
        for fault in faults:
            until(lambda: struck(server, run, fault), lambda: run.log_tail(), RUN_S)  # noqa: B023
            before = run.snapshot().version
            until(lambda: run.snapshot().version != before, lambda: run.log_tail(), RUN_S)  # noqa: B023
        code = run.stop()
        assert code == 0, run.log_tail()
        assert run.worker is not None
        said = run.worker.communicate(timeout=RUN_S)[0]
        assert run.worker.returncode == 0, said
    finally:
        run.kill()
    assert run.left == []
    outside = outside_check(run, record_folder(tmp_path))
    assert (outside.lost, outside.doubled, outside.foreign) == (0, 0, 0), outside.findings
    summary = run.summary()
    assert summary is not None and summary["ledger"]["balanced"], summary
    segments = outside.rows // (run.plan.config.env.num_envs * run.plan.config.env.segment_steps)
    assert segments > len(faults)
    assert calls(server, "xadd") >= segments + faults.count(FLUSH), "every segment travelled through Redis"
    assert (calls(server, "flushall"), calls(server, r"client\|kill")) == (faults.count(FLUSH), faults.count(KILL))
    assert server.command("keys", "*") == "", "the run left something in Redis"
    written = [path for path in (*run.run_dir.rglob("*"), run.output) if path.is_file()]
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()], "a secret was written"


def test_its_keys_are_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(f"run: {{preset: cartpole-ppo}}\nmemory_backend:\n  kind: redis\n  urll: {LOCAL}\n")
    with raises(ConfigError, key=("memory_backend", "urll"), fix="did you mean 'url'?"):
        load(None, file)
    file.write_text(f"run: {{preset: cartpole-ppo}}\nmemory_backend: {{kind: redis, url: {LOCAL}}}\n")
    config = load(None, file).config.memory_backend
    assert replace(config, options={}) == MemoryBackendSection("redis")
    assert config.options == {"url": LOCAL, "ca": None}
