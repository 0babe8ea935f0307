"""A worker process that seals one segment, steps some rows of the next, says so, and waits to be killed."""

from __future__ import annotations

import json
import sys

from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.types import SegmentId, Version


def main() -> None:
    sink = LocalSink(from_json(Boot, json.loads(sys.stdin.readline())))
    while True:
        assignments = sink.poll(0.05)
        if assignments.streams and (segment := sink.open(0)) is not None:
            break
    first = next(o for o in assignments.streams if o.vector_env == 0)
    segment.columns["obs"][...] = 7
    sink.seal(segment, SegmentId(0, first.incarnation, first.next_index), Version(0, 0), 8)
    while sink._sealed:
        sink.poll(0.05)
    half = sink.open(0)
    assert half is not None
    half.columns["obs"][:2] = 9
    sink.progress(0, 5)
    print("stepping", flush=True)
    sys.stdin.read()


main()
