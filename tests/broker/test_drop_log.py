"""Each dropped segment is an action with its reason, and a line in the broker's log; a flood is summed up."""

from __future__ import annotations

import io
import time
from collections import Counter

from tests.shared_memory.bus_plans import ROWS, bus_plan
from zmqrl.broker import events as ev
from zmqrl.broker.events import Dropped
from zmqrl.broker.ledger import StreamLedger
from zmqrl.broker.outbound import MOST_LINES, WINDOW_S, DropLog
from zmqrl.broker.state import BrokerState
from zmqrl.shared_memory.arena import Arena
from zmqrl.shared_memory.stream_table import ProducerRecord
from zmqrl.types import SegmentId, SegmentMeta, Version


def test_each_way_to_be_dropped_is_an_action_that_names_segment_rows_and_reason() -> None:
    arena = Arena.private(bus_plan())
    streams = StreamLedger(arena, ROWS)
    streams.hand_over(0, 0, 0)
    arena.streams.write_open(0, 0, 3)
    arena.streams.write_producer(0, ProducerRecord(0, -1, 2))
    streams.close_stream(0)
    late = SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), 4)
    streams.hand_over(0, 1, 0)
    streams.refuse_late(late)
    streams.refuse_late(late)
    streams.records[0].stored = streams.stored = 9
    assert streams.roll_back(0, 2, 5, 1) and streams.stored == 1
    actions = streams.pop_dropped()
    assert actions == [
        Dropped(SegmentId(0, 0, 0), 3, "unsealed"),
        Dropped(SegmentId(0, 0, 0), 2, "unknown"),
        Dropped(SegmentId(0, 0, 0), 4, "superseded"),
        Dropped(SegmentId(0, 1, 5), 8, "rolled_back"),
    ]
    rows = Counter({action.reason: action.rows for action in actions if isinstance(action, Dropped)})
    rows["unsealed"] -= 3  # what came late after all is superseded
    assert arena.ledger().dropped == rows


def test_a_broker_reports_unsealed_steps_of_a_dead_worker() -> None:
    plan = bus_plan("async", workers=1, vector_envs=1)
    arena = Arena.private(plan)
    state = BrokerState(plan, arena)
    host = ev.HostReported({0: 0}, (), "local", (0,))
    state.handle_all([host, ev.WorkerReported(0, 0, (), {0: 0}), host])
    arena.streams.write_open(0, 0, 5)
    actions = state.handle(ev.HostReported({}, (), "local", (0,)))
    dropped = [action for action in actions if isinstance(action, Dropped)]
    assert dropped == [Dropped(SegmentId(0, 0, 0), 5, "unsealed")]


class Log(io.StringIO):
    """Holds what was flushed."""

    flushed = ""

    def flush(self) -> None:
        super().flush()
        self.flushed = self.getvalue()


def test_a_line_names_rows_reason_and_segment() -> None:
    out = Log()
    DropLog(out, lambda: 0.0).add(Dropped(SegmentId(3, 1, 17), 256, "superseded"))
    (line,) = out.flushed.splitlines()
    assert line.endswith("dropped 256 rows, superseded: segment vector env 3, incarnation 1, index 17")


def test_a_flood_is_summed_up_by_reason() -> None:
    out, now = io.StringIO(), [100.0]
    log = DropLog(out, lambda: now[0])
    for index in range(MOST_LINES + 5):
        log.add(Dropped(SegmentId(0, 0, index), 8, "superseded" if index % 2 else "unsealed"))
    assert len(out.getvalue().splitlines()) == MOST_LINES
    now[0] += WINDOW_S
    log.add(Dropped(SegmentId(0, 0, 99), 1, "unknown"))
    *_, first, second, last = out.getvalue().splitlines()
    assert "dropped 24 rows, unsealed: of unidentified segments" in first
    assert "dropped 16 rows, superseded: of unidentified segments" in second
    assert "index 99" in last
    log.close()
    assert len(out.getvalue().splitlines()) == MOST_LINES + 3, "nothing was left out since"


def test_what_is_left_out_is_summed_up_at_the_end() -> None:
    out = io.StringIO()
    log = DropLog(out, lambda: 1.0)
    for index in range(MOST_LINES + 1):
        log.add(Dropped(SegmentId(0, 0, index), 8, "unsealed"))
    log.close()
    assert "dropped 8 rows, unsealed: of unidentified segments" in out.getvalue().splitlines()[-1]


def test_a_line_has_the_time_of_day_and_the_window_a_clock_that_is_never_set_back() -> None:
    out = io.StringIO()
    begun = time.mktime(time.localtime())  # the clock of the line, which may be a tick behind `time.time`
    DropLog(out, lambda: 0.0).add(Dropped(SegmentId(3, 1, 17), 256, "superseded"))
    at = time.mktime(time.strptime(out.getvalue()[:19], "%Y-%m-%d %H:%M:%S"))
    assert begun <= at <= time.time()
