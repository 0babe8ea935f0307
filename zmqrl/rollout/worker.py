"""The rollout worker process: steps its vector envs and hands their segments to the bus.

sync: the segment with index n is acted with version n and no other; pipelined: with version n - 1, the first with
version 0. async: with the newest version there is, taken between segments. No torch here and no algorithm.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.broker.events import RESUMED_SHIFT, Assignments, StreamAssignment
from zmqrl.bus_ends.base import OpenSegment, SegmentSink
from zmqrl.bus_ends.remote_sink import RemoteSink
from zmqrl.bus_ends.zmq_sink import LocalSink
from zmqrl.config.codec import from_json
from zmqrl.config.plan import Boot
from zmqrl.data_stores import tensors
from zmqrl.envs.base import Numbers
from zmqrl.envs.vector import make_vector_env
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import FirstStep, Left, Ready, WorkerRates
from zmqrl.rollout.collector import Collector, StopFlag
from zmqrl.shared_memory.weights import WeightsReader, WeightsSource
from zmqrl.types import SegmentId, Version

POLL_S = 0.2
REPORT_S = 2.0


def main(boot: Boot) -> int:
    """Step until a stop is requested. Exit code 0; what the env or anything else raises goes up to `entry`."""
    sink = LocalSink(boot) if "arena" in boot.fds else RemoteSink(boot)
    worker = RolloutWorker(boot, sink, WeightsReader(boot.fds["weights"]), EventPipe(boot.fds.get("events")))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    try:
        worker.run()
    finally:
        worker.close()
        sink.close()
    return 0


class _Stream:
    """A vector env that this worker steps, and the index of its next segment."""

    def __init__(self, assignment: StreamAssignment, collector: Collector) -> None:
        self.incarnation = assignment.incarnation
        self.next_index = assignment.next_index
        self.collector = collector


class RolloutWorker:
    """The worker's loop around a sink and a source of weights. One thread."""

    def __init__(self, boot: Boot, sink: SegmentSink, weights: WeightsSource, events: EventPipe) -> None:
        self._plan = boot.plan
        mode = boot.plan.config.mode
        self._sync, self._ahead = mode.deterministic, mode.rounds_ahead
        self._spec = from_json(ActingSpec, boot.plan.acting)
        self._policy: Policy = make_policy(self._spec, boot.device)
        self._sink, self._weights, self._events = sink, weights, events
        self._streams: dict[int, _Stream] = {}
        self._version: Version | None = None
        self._numbers: Numbers | None = None
        """Numbers of the version; None: the envs receive none."""
        self._stop = StopFlag()
        self._stepped = False
        self._reports = _Reports(events)

    def stop(self) -> None:
        """End between two steps; safe in a signal handler."""
        self._stop.requested = True

    def run(self) -> None:
        """Until `stop`, or until the assignments say `stop`."""
        self._events.send(Ready())
        timeout_s = 0.0
        while not self._stop.requested:
            assignments = self._poll(timeout_s)
            if assignments.stop:
                self._events.send(Left())  # else its host would start it again
                return
            timeout_s = 0.0 if self._turn(assignments) else POLL_S

    def collect(self, interrupted: Callable[[], bool]) -> None:
        """Collect what can be collected now; for single mode, where the loop of the learner calls it.

        Once `interrupted`, called between two env steps, is true the worker ends as after `stop`.
        """
        self._stop.condition = interrupted
        while self._turn(self._sink.poll(0.0)):
            pass

    def _turn(self, assignments: Assignments) -> bool:
        """At most one segment of each vector env; whether there was any."""
        self._apply_assignments(assignments)
        # Those that are behind first: each version is loaded once.
        worked = [self._advance(stream) for stream in sorted(self._streams.values(), key=lambda s: s.next_index)]
        self._reports.send_when_due()
        return any(worked)

    def close(self) -> None:
        """Report what was collected since the last report, and close all envs."""
        self._reports.send_last()
        for stream in self._streams.values():
            stream.collector.close()
        self._streams = {}

    def _poll(self, timeout_s: float) -> Assignments:
        if timeout_s == 0.0:
            return self._sink.poll(0.0)
        begun = time.monotonic()
        assignments = self._sink.poll(timeout_s)
        self._reports.waited_s += time.monotonic() - begun
        return assignments

    def _apply_assignments(self, assignments: Assignments) -> None:
        """Make the vector envs those of `assignments`: absolute, so what is not listed is abandoned."""
        listed = {assignment.vector_env for assignment in assignments.streams}
        for vector_env in [v for v in self._streams if v not in listed]:
            self._streams.pop(vector_env).collector.close()
        for assignment in assignments.streams:
            known = self._streams.get(assignment.vector_env)
            if known is None or known.incarnation != assignment.incarnation:
                if known is not None:
                    self._streams.pop(assignment.vector_env).collector.close()
                if self._can_start(assignment):
                    self._streams[assignment.vector_env] = self._start_stream(assignment)

    def _can_start(self, assignment: StreamAssignment) -> bool:
        """Whether the numbers that precede the first reset are there: repeated ones, or those of the version."""
        if not self._plan.env.receives_numbers or any(state.numbers for state in assignment.states or ()):
            return True
        return self._loaded_for(assignment.incarnation, assignment.next_index) is not None

    def _start_stream(self, assignment: StreamAssignment) -> _Stream:
        config = self._plan.config
        mode, seed = config.run.mode, config.run.seed
        env = make_vector_env(config.env, self._plan.env, mode, seed, assignment.vector_env, assignment.incarnation)
        env.on_replay = self._sink.busy
        keyed = 0 if self._sync else assignment.incarnation
        planned = config.env.vector_envs if self._sync else self._plan.total_workers
        collector = Collector(env, self._policy, self._spec, seed, assignment.vector_env, keyed, planned)
        if not any(state.numbers for state in assignment.states or ()):  # else the env repeats them
            self._pass_numbers(collector, assignment.next_index)
        collector.start(assignment.states)
        return _Stream(assignment, collector)

    def _loaded_for(self, incarnation: int, index: int) -> Version | None:
        """The version with which the segment is acted, loaded; None while it is not there.

        A version from before a rollback is not for a segment after it: a host that still has two of them would act a
        round that the learner does not expect yet.
        """
        needed = max(0, index - self._ahead) if self._sync else None
        self._take_weights(needed)
        version = self._version
        if version is None or needed is None:
            return version
        is_after_rollback = version.incarnation >= incarnation >> RESUMED_SHIFT
        return version if version.n == needed and is_after_rollback else None

    def _take_weights(self, n: int | None) -> None:
        """Load the newest version, or the one of number `n`, if it is there and not loaded."""
        if self._weights.version(n) == self._version:
            return
        found = self._weights.read(n)
        if found is None:
            return
        notice, content = found
        self._policy.load(tensors.parse(content)[0], notice.schedule)
        self._version = notice.version
        if self._plan.env.receives_numbers:
            self._numbers = notice.schedule

    def _pass_numbers(self, collector: Collector, index: int) -> None:
        """Once a segment in sync and pipelined, as a successor repeats them; in async once a version."""
        if self._version is not None and self._numbers is not None:
            collector.receive((index,) if self._sync else self._version, self._numbers)

    def _advance(self, stream: _Stream) -> bool:
        """Collect the stream's next segment if its version and a lease are there."""
        version = self._loaded_for(stream.incarnation, stream.next_index)
        if version is None or self._stop.requested:
            return False
        segment = self._sink.open(stream.collector.vector_env)
        if segment is None:
            return False
        self._pass_numbers(stream.collector, stream.next_index)
        rows = self._collect(stream, segment)
        if rows is None:
            return False
        id = SegmentId(stream.collector.vector_env, stream.incarnation, stream.next_index)
        self._sink.seal(segment, id, version, rows)
        stream.next_index += 1
        self._reports.observe(rows, segment)
        return True

    def _collect(self, stream: _Stream, segment: OpenSegment) -> int | None:
        vector_env = stream.collector.vector_env
        progress = partial(self._sink.progress if self._stepped else self._first_step, vector_env)
        rows = stream.collector.collect(segment.columns, stream.next_index, progress, self._stop.check)
        if rows is None:
            self._sink.abandon(segment)
        return rows

    def _first_step(self, vector_env: int, rows: int) -> None:
        if not self._stepped:
            self._stepped = True
            self._events.send(FirstStep())
        self._sink.progress(vector_env, rows)


class _Reports:
    """The `worker` event, every `REPORT_S`."""

    def __init__(self, events: EventPipe) -> None:
        self._events = events
        self._env_steps = self._episodes = self._rows = 0
        self._since = time.monotonic()
        self.waited_s = 0.0

    def observe(self, rows: int, segment: OpenSegment) -> None:
        self._env_steps += rows
        self._rows += rows
        columns = segment.columns
        done: Any = (columns["terminated"] | columns["truncated"]) & columns["valid"]
        self._episodes += int(done.sum())

    def send_when_due(self) -> None:
        """Rates since the last event."""
        elapsed_s = time.monotonic() - self._since
        if elapsed_s >= REPORT_S:
            self._send(elapsed_s)

    def send_last(self) -> None:
        """Counts up to the end; nothing where the last event had them."""
        if self._rows:
            self._send(time.monotonic() - self._since)

    def _send(self, elapsed_s: float) -> None:
        rates = WorkerRates(
            env_steps=self._env_steps,
            env_steps_per_s=self._rows / elapsed_s,
            wait_fraction=min(1.0, self.waited_s / elapsed_s),
            episodes=self._episodes,
        )
        self._events.send(rates)
        self._since, self._rows, self.waited_s = time.monotonic(), 0, 0.0
