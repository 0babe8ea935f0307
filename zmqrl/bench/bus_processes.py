"""The processes of `zmqrl bench bus`: a real broker, and writers that seal one prepared segment over and over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from zmqrl.bus_ends.learner_end import SegmentSource
from zmqrl.bus_ends.zmq_learner import learner_ends
from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Boot, Endpoints, RunPlan
from zmqrl.config.sections import Config, EnvSection, LimitsSection, RunSection
from zmqrl.entry import PARENT_VARIABLE, die_with_parent, read_line
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import Array, ColumnSpec, EnvSpec, SegmentId, SpaceSpec, Version

GRACE_S = 5.0
WAIT_S = 0.2


def segment_columns(steps: int, envs: int, obs_dtype: str, obs_shape: tuple[int, ...]) -> tuple[ColumnSpec, ...]:
    """What PPO on one Discrete action writes."""
    names = ("terminated", "truncated", "valid")
    return (
        ColumnSpec("obs", obs_dtype, (steps + 1, envs, *obs_shape)),
        ColumnSpec("action", "int64", (steps, envs)),
        ColumnSpec("reward", "float32", (steps, envs)),
        *(ColumnSpec(name, "bool", (steps, envs)) for name in names),
        ColumnSpec("log_prob", "float32", (steps, envs)),
    )


def plan_of(columns: tuple[ColumnSpec, ...], workers: int, leases: int, run_dir: str) -> RunPlan:
    """An async on-policy run of this machine: no limiter, leases are the only flow control."""
    steps, envs = columns[1].shape
    space = SpaceSpec("discrete", (), "int64", 2)
    config = Config(
        run=RunSection(mode="async"),
        env=EnvSection(num_envs=envs, segment_steps=steps),
        limits=LimitsSection(leases_per_worker=leases),
    )
    return RunPlan(
        run_id="bench-bus",
        run_dir=run_dir,
        started_at=time.time(),
        config=config,
        env=EnvSpec("none", space, space),
        acting={},
        columns=columns,
        on_policy=True,
        slots=2 * workers * leases,
        streams=workers,
        workers={"local": workers},
        batch_segments=1,
        store_path=run_dir,
    )


def prepared(columns: tuple[ColumnSpec, ...]) -> dict[str, Array]:
    """One segment of noise, the same in every process."""
    random = np.random.Generator(np.random.Philox(1))
    return {c.name: random.integers(0, 2, c.shape).astype(c.dtype) for c in columns}


@contextmanager
def running(columns: tuple[ColumnSpec, ...], workers: int, leases: int) -> Iterator[SegmentSource]:
    """The learner's end of a broker and its writers, which all end with the block."""
    with tempfile.TemporaryDirectory(prefix="zmqrl-bench-") as folder:
        plan = plan_of(columns, workers, leases, folder)
        arena = Arena.create(plan)
        assert arena.fd is not None
        names = ("segments", "descriptors", "notices", "control")
        endpoints = Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})

        def boot(role: str, index: int, fd: int) -> Boot:
            return Boot(role, index, 0, "local", plan, endpoints, {"arena": fd})

        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes.append(_start(["zmqrl.entry", "zmqrl.broker", plan.run_id, "0"], boot("broker", 0, arena.fd)))
            for index in range(workers):
                worker = boot("worker", index, arena.fd)
                processes.append(_start(["zmqrl.bench.bus_processes"], worker))
            ends = learner_ends(boot("learner", 0, os.dup(arena.fd)))
            try:
                yield ends.source
            finally:
                ends.close()
        finally:
            for process in reversed(processes):
                _end(process)
            arena.close()


def _start(module: list[str], boot: Boot) -> subprocess.Popen[bytes]:
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    command, fds = [sys.executable, "-m", *module], tuple(boot.fds.values())
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds, env=environment)
    assert process.stdin is not None
    process.stdin.write(json.dumps(to_json(boot)).encode() + b"\n")
    process.stdin.flush()
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


class Writer:
    """A worker's loop with nothing but the bus in it."""

    def __init__(self, boot: Boot) -> None:
        self._vector_env = boot.index
        self._rows = int(np.prod(boot.plan.columns[1].shape))
        self._segment = prepared(boot.plan.columns)
        self._sink = LocalSink(boot)
        self._stopping = False
        self._index = 0

    def stop(self) -> None:
        """End between two segments; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Until `stop`."""
        timeout_s = 0.0
        while not self._stopping:
            orders = self._sink.poll(timeout_s)
            wrote = sum(self._write(order.incarnation) for order in orders.streams)
            timeout_s = 0.0 if wrote else WAIT_S
        self._sink.close()

    def _write(self, incarnation: int) -> int:
        """Every lease there is."""
        wrote = 0
        while not self._stopping and (segment := self._sink.open(self._vector_env)) is not None:
            for name, column in segment.columns.items():
                column[...] = self._segment[name]
            self._sink.progress(self._vector_env, self._rows)
            self._sink.seal(segment, SegmentId(self._vector_env, incarnation, self._index), Version(0, 0), self._rows)
            self._index += 1
            wrote += 1
        return wrote


def main() -> int:
    """A writer process: its boot on stdin, SIGTERM ends it."""
    die_with_parent()
    writer = Writer(from_json(Boot, json.loads(read_line(0))))
    signal.signal(signal.SIGTERM, lambda *_: writer.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writer.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
