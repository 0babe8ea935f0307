"""`zmqrl bench bus`: how fast segments go from workers through the broker to the learner, all processes real.

Small: CartPole columns, T = 32, N = 8, 2 writers. Each loops: open, fill every column from a prepared segment, seal;
the broker accepts and forwards; the learner (this process) takes, checks each segment's meta, releases. Leases, acks,
the stream table and all checks are on.
Large: 3 MB segments of uint8 images, 1 writer, alongside one process that copies the same segments into such an arena.

Yardsticks of the same run, in turn: `multiprocessing.Queue` with the same segments pickled in batches by as many
processes, and the bare copy of the same columns into an arena's slots by one.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from zmqrl.bench.bus_processes import plan_of, prepared, running, segment_columns
from zmqrl.bench.report import BenchResult, Figure
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.errors import DeadlineExceeded, TrainingFailed
from zmqrl.shared_memory.arena import Arena
from zmqrl.types import ColumnSpec

SMALL = segment_columns(32, 8, "float32", (4,))
LARGE = segment_columns(13, 8, "uint8", (4, 84, 84))
WORKERS, LEASES = 2, 16
LARGE_WORKERS, LARGE_LEASES = 1, 16
QUEUE_BATCH = 16
START_S = 20.0
TAKE_S = 0.2


def run(repeats: int = 3, seconds: float = 2.0) -> BenchResult:
    """Transitions/s of small segments and the share of memcpy of large ones, each alongside its yardstick in turn."""
    small, queue, copied, large, large_copied = [], [], [], [], []
    for _ in range(repeats):
        small.append(_rows(SMALL) * path_segments_per_s(SMALL, WORKERS, LEASES, seconds))
        queue.append(_rows(SMALL) * _queue_segments_per_s(seconds))
        copied.append(_rows(SMALL) * _copied_segments_per_s(SMALL, WORKERS, LEASES, seconds / 2))
        large.append(_gigabytes(LARGE) * path_segments_per_s(LARGE, LARGE_WORKERS, LARGE_LEASES, seconds))
        bare = _copied_segments_per_s(LARGE, LARGE_WORKERS, LARGE_LEASES, seconds / 2)
        large_copied.append(_gigabytes(LARGE) * bare)
    return BenchResult(
        "bus",
        [
            Figure("bus", "transitions/s", tuple(small)),
            Figure("yardstick: multiprocessing.Queue", "transitions/s", tuple(queue)),
            Figure("yardstick: memcpy", "transitions/s", tuple(copied)),
            Figure("bus, large segments", "GB/s", tuple(large)),
            Figure("yardstick: memcpy, large segments", "GB/s", tuple(large_copied)),
        ],
        {
            "segment_steps": 32,
            "num_envs": 8,
            "workers": WORKERS,
            "leases_per_worker": LEASES,
            "queue_batch": QUEUE_BATCH,
            "large_segment_mb": round(1e3 * _gigabytes(LARGE), 2),
            "large_workers": LARGE_WORKERS,
            "large_leases_per_worker": LARGE_LEASES,
            "seconds": seconds,
            "target_transitions_per_s": 5_000_000,
            "target_large_share_of_memcpy": 0.7,
        },
        [
            Figure("bus / Queue", "", tuple(a / b for a, b in zip(small, queue, strict=True))),
            Figure("bus / memcpy", "", tuple(a / b for a, b in zip(small, copied, strict=True))),
            Figure("large / memcpy", "", tuple(a / b for a, b in zip(large, large_copied, strict=True))),
        ],
    )


def _rows(columns: tuple[ColumnSpec, ...]) -> int:
    return columns[1].shape[0] * columns[1].shape[1]


def _gigabytes(columns: tuple[ColumnSpec, ...]) -> float:
    return sum(column.nbytes for column in columns) / 1e9


class _Checked:
    """What every taken segment must be: whole, and the next of its stream."""

    def __init__(self, rows: int, streams: int) -> None:
        self._rows = rows
        self._next = [0] * streams
        self.segments = 0

    def take(self, taken: list[TakenSegment]) -> None:
        for _, meta in taken:
            expected = self._next[meta.id.vector_env]
            if meta.id.index != expected or meta.rows != self._rows:
                raise TrainingFailed(f"segment {meta.id} of {meta.rows} rows came where index {expected} was due")
            self._next[meta.id.vector_env] = expected + 1
        self.segments += len(taken)

    @property
    def all_write(self) -> bool:
        return all(self._next)


def path_segments_per_s(columns: tuple[ColumnSpec, ...], workers: int, leases: int, seconds: float) -> float:
    """The whole path, from when every writer has reported."""
    with running(columns, workers, leases) as source:
        checked = _Checked(_rows(columns), workers)

        def turn() -> float:
            taken = source.take(TAKE_S)
            checked.take(taken)
            source.release([segment.ref for segment in taken])
            return time.perf_counter()

        deadline = time.perf_counter() + START_S
        while not checked.all_write:
            if turn() > deadline:
                raise DeadlineExceeded(f"only some of {workers} writers reported within {START_S} s")
        before, begun = checked.segments, time.perf_counter()
        now = begun
        while now < begun + seconds or checked.segments == before:
            now = turn()
            if now > begun + seconds + START_S:
                raise DeadlineExceeded(f"no segment came within {seconds + START_S:g} s")
        return (checked.segments - before) / (now - begun)


def _copied_segments_per_s(columns: tuple[ColumnSpec, ...], workers: int, leases: int, seconds: float) -> float:
    """One process copies the same columns into every slot of an arena like the path's, one after the other."""
    segment = prepared(columns)
    arena = Arena.create(plan_of(columns, workers, leases, ""))
    slots = [{name: column[slot] for name, column in arena.columns.items()} for slot in range(arena.layout.slots)]
    copies, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        for slot in slots:
            for name, array in segment.items():
                slot[name][...] = array
        copies += len(slots)
    elapsed_s = time.perf_counter() - begun
    arena.close()
    return copies / elapsed_s


def _queue_segments_per_s(seconds: float) -> float:
    """Two processes put batches of segments on a Queue, this one gets them."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[Any] = context.Queue(4)
    stopping = context.Event()
    writers = [context.Process(target=_put, args=(queue, stopping), daemon=True) for _ in range(WORKERS)]
    for writer in writers:
        writer.start()
    seen: set[int] = set()
    while len(seen) < WORKERS:
        seen.add(queue.get(timeout=START_S)[0])
    segments, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        segments += len(queue.get(timeout=START_S)[1])
    elapsed_s = time.perf_counter() - begun
    stopping.set()
    left = len(writers)
    while left:
        left -= queue.get(timeout=START_S) is None
    for writer in writers:
        writer.join(START_S)
    queue.close()
    return segments / elapsed_s


def _put(queue: multiprocessing.Queue[Any], stopping: Any) -> None:
    batch = [prepared(SMALL)] * QUEUE_BATCH
    me = multiprocessing.current_process().pid
    while not stopping.is_set():
        # copies, for a pickle writes one object once, however often a list holds it
        queue.put((me, [{name: array.copy() for name, array in segment.items()} for segment in batch]))
    queue.put(None)


if __name__ == "__main__":
    run().print()
