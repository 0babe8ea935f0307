"""The processes of `python -m benchmarks.wire`: a worker that pretends to step, and a wire with a delay and a rate."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

from zmqrl.bench.bus_processes import prepared
from zmqrl.bus_ends.remote_sink import RemoteSink
from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.entry import die_with_parent, read_line
from zmqrl.types import Array, SegmentId, Version

WAIT_S = 0.2
LARGEST_READ = 1 << 18
MOST_UNDER_WAY = 64 << 20
"""Bytes in one direction; beyond it the relay does not read."""


class SteppingWriter:
    """The loop of a rollout worker: one segment between two polls, `step_s` of CPU time for each."""

    def __init__(self, boot: Boot, step_s: float, segments: list[dict[str, Array]]) -> None:
        """`segments`: contents, one after the other."""
        self._sink = LocalSink(boot) if "arena" in boot.fds else RemoteSink(boot)
        self._step_s, self._segments, self._stopping, self._index = step_s, segments, False, 0
        self._rows = int(np.prod(boot.plan.columns[1].shape))
        self._sealed_at: dict[int, float] = {}
        self.stages = dict.fromkeys(("step", "seal", "push and poll", "wait for a lease"), 0.0)
        self.accepted_after: list[float] = []
        """Seconds from the seal of each segment until the worker knows that it was accepted."""

    def stop(self) -> None:
        """End between two segments; safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Until `stop`."""
        wrote = True
        while not self._stopping:
            begun = time.perf_counter()
            streams = self._sink.poll(0.0 if wrote else WAIT_S).streams
            self._add("push and poll" if wrote else "wait for a lease", begun)
            self._observe()
            wrote = sum(self._write(stream.incarnation) for stream in streams) > 0
        self._sink.close()

    def figures(self) -> dict[str, object]:
        """Seconds of each stage, segments, and the median of `accepted_after`."""
        median = float(np.median(self.accepted_after)) if self.accepted_after else 0.0
        return {"segments": self._index, "stages": self.stages, "accepted_after_s": median}

    def _observe(self) -> None:
        unaccepted = {id.index for id in self._sink._sealed.values()}
        for index in [index for index in self._sealed_at if index not in unaccepted]:
            self.accepted_after.append(time.perf_counter() - self._sealed_at.pop(index))

    def _add(self, stage: str, begun: float) -> None:
        self.stages[stage] += time.perf_counter() - begun

    def _write(self, incarnation: int) -> bool:
        begun, cpu = time.perf_counter(), time.thread_time()
        segment = self._sink.open(0)
        if segment is None:
            return False
        for name, values in self._segments[self._index % len(self._segments)].items():
            segment.columns[name][...] = values
        while time.thread_time() < cpu + self._step_s:
            pass
        self._sink.progress(0, self._rows)
        self._add("step", begun)
        begun = time.perf_counter()
        self._sink.seal(segment, SegmentId(0, incarnation, self._index), Version(0, 0), self._rows)
        self._sealed_at[self._index] = begun
        self._index += 1
        self._add("seal", begun)
        return True


def write(step_ms: float, contents: str) -> None:
    """A worker process: its boot on stdin, SIGTERM ends it; prints its figures as JSON."""
    die_with_parent()
    boot = from_json(Boot, json.loads(read_line(0)))
    segments = [prepared(boot.plan.columns)]
    if contents:
        segments = [dict(segments[0], obs=obs) for obs in np.load(Path(contents))]
    writer = SteppingWriter(boot, step_ms / 1e3, segments)
    signal.signal(signal.SIGTERM, lambda *_: writer.stop())
    writer.run()
    print(json.dumps(writer.figures()), flush=True)


class Direction:
    """Bytes under way from one socket to another."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float, bytes_per_s: float) -> None:
        self.source, self._sink, self._delay_s, self._bytes_per_s = source, sink, delay_s, bytes_per_s
        self._under_way: deque[tuple[float, memoryview]] = deque()
        self._nbytes, self._free_at, self.ended = 0, 0.0, False

    @property
    def takes(self) -> bool:
        """Whether more may be read."""
        return not self.ended and self._nbytes < MOST_UNDER_WAY

    def take(self) -> None:
        """Read what has come."""
        content = self.source.recv(LARGEST_READ)
        self.ended = not content
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + len(content) / self._bytes_per_s
        self._under_way.append((self._free_at + self._delay_s, memoryview(content)))
        self._nbytes += len(content)

    def give(self) -> float | None:
        """Write what has arrived; returns when the next bytes arrive."""
        while self._under_way:
            at, content = self._under_way[0]
            if at > time.monotonic():
                return at
            try:
                sent = self._sink.send(content)
            except BlockingIOError:
                return time.monotonic() + 1e-4
            self._nbytes -= sent
            if sent == len(content):
                self._under_way.popleft()
            else:
                self._under_way[0] = (at, content[sent:])
        return None


def relay(ports: list[int], delay_s: float, bytes_per_s: float) -> None:
    """Forward connections to `ports` of loopback; prints the ports to connect to. Ends with its parent."""
    die_with_parent()
    selector, directions = selectors.DefaultSelector(), list[Direction]()
    listeners = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
    for listener, port in listeners.items():
        selector.register(listener, selectors.EVENT_READ, port)
    print(json.dumps([listener.getsockname()[1] for listener in listeners]), flush=True)
    next_at: float | None = None
    while True:
        for key, _ in selector.select(None if next_at is None else max(0.0, next_at - time.monotonic())):
            if isinstance(key.data, Direction):
                key.data.take()
            else:
                near, far = next(s for s in listeners if s is key.fileobj).accept()[0], socket.socket()
                far.connect(("127.0.0.1", key.data))
                pair = [Direction(a, b, delay_s, bytes_per_s) for a, b in ((near, far), (far, near))]
                for direction in pair:
                    direction.source.setblocking(False)
                    direction.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                directions += pair
        times = [at for direction in directions if (at := direction.give()) is not None]
        next_at = min(times, default=None)
        for direction in directions:
            is_read = direction.source in {key.fileobj for key in selector.get_map().values()}
            if direction.takes and not is_read:
                selector.register(direction.source, selectors.EVENT_READ, direction)
            elif is_read and not direction.takes:
                selector.unregister(direction.source)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(float(sys.argv[2]), sys.argv[3])
    else:
        relay([int(port) for port in sys.argv[4:]], float(sys.argv[2]), float(sys.argv[3]))
