"""What one worker of another host sends: `python -m benchmarks.wire [WAY ...] [--repeats N] [--step-ms MS]`.

Segments of 3 MB, a real broker, a worker that polls after each segment like a rollout worker and computes for MS of CPU
time to fill one, and a learner (this process) that takes and releases. The ways, in turn in each repeat:

ipc    the worker is on the learner's host, and writes into the arena
plain  it is on another host: tcp on loopback, without encryption
curve  the same, encrypted
delay  the same, encrypted, through a relay that delays each direction by --delay-ms, and passes --mbit at most

Of each way: MB/s, and where the time of a segment goes: the seconds of the worker's loop by stage, and the CPU time of
each thread of worker and broker. `--segments FILE.npy` sends these observations in turn, not noise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.bench.bus_processes import plan_of, segment_columns
from zmqrl.bench.report import BenchResult, Figure
from zmqrl.bus_ends.learner_end import SegmentSource
from zmqrl.bus_ends.zmq_learner import learner_ends
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import Boot, Endpoints, RunPlan, TcpListen
from zmqrl.entry import PARENT_VARIABLE
from zmqrl.errors import DeadlineExceeded, TrainingFailed
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import AllowList, HostKey
from zmqrl.wire.sockets import make_keys

WAYS = ("ipc", "plain", "curve", "delay")
COLUMNS = segment_columns(13, 8, "uint8", (4, 84, 84))
ROWS = 13 * 8
MEGABYTES = sum(column.nbytes for column in COLUMNS) / 1e6
LEASES, BATCH = 2, 4
START_S = 60.0
END_S = 15.0
WARM_SEGMENTS = 20
IO_THREAD = "ZMQbg/IO/0"


@dataclass
class Processes:
    """What runs beside the learner of one way."""

    source: SegmentSource
    broker: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes]


def plan_for(way: str, folder: str) -> RunPlan:
    """On-policy async, with the slots that a run has."""
    plan = plan_of(COLUMNS, 1, LEASES, folder)
    workers = {"local": 1} if way == "ipc" else {"far": 1}
    return replace(plan, batch_segments=BATCH, slots=LEASES + 2 * BATCH, workers=workers)


@contextmanager
def running(way: str, options: argparse.Namespace) -> Iterator[Processes]:
    """A broker, a worker and a learner's end, which all end with the block."""
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], boot: Boot | None) -> subprocess.Popen[bytes]:
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        fds = () if boot is None else tuple(boot.fds.values())
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", *command]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=fds, env=environment)
        started.append(process)
        if boot is not None:
            assert process.stdin is not None
            process.stdin.write(json.dumps(to_json(boot)).encode() + b"\n")
            process.stdin.flush()
        return process

    with tempfile.TemporaryDirectory(prefix="zmqrl-wire-") as folder:
        plan = plan_for(way, folder)
        arena = Arena.create(plan)
        assert arena.fd is not None
        names = ("segments", "descriptors", "notices", "control")
        near = Endpoints(**{name: f"ipc://{folder}/{name}" for name in names})
        learner = Boot("learner", 0, 0, "local", plan, near, {"arena": os.dup(arena.fd)})
        broker, worker = (replace(learner, role=role, fds={"arena": arena.fd}) for role in ("broker", "worker"))
        write = ["benchmarks.wire_processes", "write", str(options.step_ms), options.segments]
        try:
            if way == "ipc":
                routing = start(["zmqrl.entry", "zmqrl.broker", plan.run_id, "0"], broker)
            else:
                routing, worker = _tcp_broker(way, options, start, broker, worker)
            ends = learner_ends(learner)
            try:
                yield Processes(ends.source, routing, start(write, worker))
            finally:
                ends.close()
        finally:
            for process in reversed(started):
                process.kill()
                process.communicate()
            arena.close()


def _tcp_broker(
    way: str, options: argparse.Namespace, start: Any, broker: Boot, worker: Boot
) -> tuple[subprocess.Popen[bytes], Boot]:
    """The broker, which listens on loopback, and the boot of a worker of another host."""
    read_fd, write_fd = os.pipe()
    fds = {**broker.fds, "events": write_fd}
    boot = replace(broker, listen=TcpListen("127.0.0.1"), fds=fds)
    if way != "plain":
        keys = make_keys()
        far = replace(make_keys(), server=keys.public)
        boot = replace(boot, keys=keys, allowed=AllowList(1, {far.public: HostKey("far", 1)}))
        worker = replace(worker, keys=far)
    process = start(["zmqrl.entry", "zmqrl.broker", broker.plan.run_id, "0"], boot)
    os.close(write_fd)
    ports = json.loads(os.read(read_fd, 65_536).splitlines()[0])["ports"]
    if way == "delay":
        words = ["relay", str(options.delay_ms / 1e3), str(options.mbit * 1e6 / 8), *map(str, ports)]
        wire = start(["benchmarks.wire_processes", *words], None)
        ports = json.loads(wire.stdout.readline())
    return process, replace(worker, host="far", endpoints=Endpoints.tcp("127.0.0.1", ports), fds={})


def cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of a process: of its main thread, of the I/O thread of its bus, of all others."""
    found = {"main": 0.0, "I/O": 0.0, "others": 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        is_io = (task / "comm").read_text().strip() == IO_THREAD
        name = "main" if task.name == str(pid) else "I/O" if is_io else "others"
        found[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measured(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """MB/s and milliseconds of a segment by stage."""
    with running(way, options) as processes:
        taken, source = 0, processes.source

        def turn(until: float) -> None:
            nonlocal taken
            for segment in source.take(0.2):
                if segment.meta.id.index != taken or segment.meta.rows != ROWS:
                    raise TrainingFailed(f"{segment.meta} came where index {taken} was due")
                taken += 1
                source.release([segment.ref])
            if time.perf_counter() > until:
                raise DeadlineExceeded(f"{taken} segments came over {way}")

        begun = time.perf_counter()
        while taken < WARM_SEGMENTS:
            turn(begun + START_S)
        pids = {"worker": processes.worker.pid, "broker": processes.broker.pid}
        before = {role: cpu_s(pid) for role, pid in pids.items()}
        first, learner, begun = taken, time.thread_time(), time.perf_counter()
        while time.perf_counter() < begun + options.seconds:
            turn(begun + options.seconds + START_S)
        elapsed_s, count = time.perf_counter() - begun, taken - first
        stages = {"learner main": (time.thread_time() - learner) / count * 1e3}
        for role, pid in pids.items():
            for name, total_s in cpu_s(pid).items():
                stages[f"{role} {name}"] = (total_s - before[role][name]) / count * 1e3
        processes.worker.send_signal(signal.SIGTERM)
        while processes.worker.poll() is None:
            source.release([segment.ref for segment in source.take(0.05)])
        assert processes.worker.stdout is not None
        figures = json.loads(processes.worker.stdout.read())
    loop = {f"loop: {name}": s / figures["segments"] * 1e3 for name, s in figures["stages"].items()}
    accepted_ms = figures["accepted_after_s"] * 1e3
    return {"MB/s": MEGABYTES * count / elapsed_s, **loop, "seal to acceptance known": accepted_ms, **stages}


def run(ways: Sequence[str], options: argparse.Namespace) -> BenchResult:
    """All ways in turn, and each in relation to ipc."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, rows in found.items():
            rows.append(measured(way, options))
    figures, ratios = [], []
    for way, rows in found.items():
        for name in rows[0]:
            unit = name if name == "MB/s" else "ms a segment"
            figures.append(Figure(f"{way}, {name}", unit, tuple(round(row[name], 3) for row in rows)))
        if "ipc" in found and way != "ipc":
            pairs = zip(rows, found["ipc"], strict=True)
            ratios.append(Figure(f"{way} / ipc", "", tuple(a["MB/s"] / b["MB/s"] for a, b in pairs)))
    return BenchResult("wire", figures, {**vars(options), "segment_mb": round(MEGABYTES, 2)}, ratios)


def table(result: BenchResult, ways: Sequence[str]) -> str:
    """The medians as a Markdown table: a row for each figure, a column for each way."""
    medians = {figure.name: statistics.median(figure.values) for figure in result.figures}
    names = [name.partition(", ")[2] for name in medians if name.startswith(f"{ways[0]}, ")]
    lines = [f"| ms a segment | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for name in names:
        cells = (f"{medians[f'{way}, {name}']:.2f}" for way in ways)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"{ratio.name}: {ratio.median:.2f}" for ratio in result.ratios)])


def main(words: Sequence[str] | None = None) -> int:
    """As the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)}; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--step-ms", type=float, default=4.0)
    parser.add_argument("--delay-ms", type=float, default=1.0)
    parser.add_argument("--mbit", type=float, default=10_000.0)
    parser.add_argument("--segments", default="", metavar="FILE.npy")
    options = parser.parse_args(words)
    ways = options.ways or WAYS
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(WAYS)}")
    result = run(ways, options)
    result.print()
    print(table(result, ways), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
