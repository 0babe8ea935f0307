"""FULL with replay beside training: what was let go meanwhile is left out, the rest comes back with its priorities."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from tests.support.raising import raises
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.data_stores.base import Full, prefixed
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.errors import StoreError
from zmqrl.learner.checkpointing import BackgroundWrite
from zmqrl.learner.full_content import held_segments, refill
from zmqrl.replay.segment_replay import SegmentReplay
from zmqrl.replay.spec import Prioritised, ReplaySpec
from zmqrl.types import SegmentId, SegmentMeta, SlotRef, Version

STEPS, ENVS, SLOTS = 4, 2, 8


def _columns(slots: int) -> dict[str, np.ndarray]:
    shape = (slots, STEPS, ENVS)
    flags = {name: np.zeros(shape, bool) for name in ("terminated", "truncated")}
    obs = np.arange(slots * (STEPS + 1) * ENVS, dtype=np.float32).reshape(slots, STEPS + 1, ENVS, 1)
    plain = {"action": np.zeros(shape, np.int64), "reward": np.ones(shape, np.float32), "valid": np.ones(shape, bool)}
    return {"obs": obs, **plain, **flags}


def _replay(columns: dict[str, np.ndarray]) -> SegmentReplay:
    return SegmentReplay(columns, SLOTS, 1, ReplaySpec(prioritised=Prioritised()))


def test_what_is_still_held_comes_back_with_its_priorities(tmp_path: Path) -> None:
    columns = _columns(SLOTS)
    replay = _replay(columns)
    for slot in range(5):
        replay.add(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, slot), STEPS * ENVS))
    for update in range(5):
        sample = replay.sample(16, 1, 0.9, update)
        replay.set_priorities(sample, np.abs(np.sin(sample.rows.astype(np.float64))))
    state = {name: array.copy() for name, array in replay.state().items()}
    released = {1, 2}
    store = DirectoryStore(str(tmp_path), 3)
    beside = BackgroundWrite(
        store,
        Full(Version(0, 9), prefixed("sampler", state), {"counters": {"n": 9}}),
        [TakenSegment(ref, meta) for ref, meta in replay.held()],
        columns,
        lambda ref: ref.slot not in released,
    )
    beside.wait()
    assert beside.is_written and beside.result() > 0

    full = store.newest_full()
    assert full is not None
    metas, held = held_segments(full.arrays)
    assert [meta.id.index for meta in metas] == [0, 3, 4]
    again = _replay({name: np.concatenate([column, column]) for name, column in held.items()})
    refill(again, full.arrays, [TakenSegment(SlotRef(place, 1), meta) for place, meta in enumerate(metas)])
    assert np.array_equal(held["obs"], columns["obs"][[0, 3, 4]])
    assert np.array_equal(again.state()["replay.mass"], state["replay.mass"][[0, 3, 4]])
    assert again.state()["replay.largest"] == state["replay.largest"]


def test_a_store_that_fails_is_reported_at_the_end(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("no folder")
    store = DirectoryStore(str(tmp_path / "file"), 3)
    beside = BackgroundWrite(store, Full(Version(0, 1), {}, {}), [], _columns(1), lambda ref: True)
    beside.wait()
    with raises(StoreError, name="full-0-1.safetensors", what="cannot be written"):
        beside.result()


def test_it_needs_one_copy_of_replay(tmp_path: Path) -> None:
    columns = {"obs": np.ones((64, STEPS + 1, ENVS, 8192), np.float32), "valid": np.ones((64, STEPS, ENVS), bool)}
    held = [
        TakenSegment(SlotRef(slot, 1), SegmentMeta(SegmentId(0, 0, slot), Version(0, slot), STEPS * ENVS))
        for slot in range(64)
    ]
    copy = sum(column.nbytes for column in columns.values())
    tracemalloc.start()
    beside = BackgroundWrite(
        DirectoryStore(str(tmp_path), 3), Full(Version(0, 1), {}, {}), held, columns, lambda ref: True
    )
    beside.wait()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert beside.result() > copy > 16 << 20
    assert peak < copy + (8 << 20)


def test_any_error_of_its_thread_is_reported_as_a_store_error(tmp_path: Path) -> None:
    """Else it would count as written, and the clock of durable FULLs would be reset by it."""

    def is_held(ref: SlotRef) -> bool:
        raise MemoryError(f"no room for slot {ref.slot}")

    held = [TakenSegment(SlotRef(0, 1), SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), STEPS * ENVS))]
    beside = BackgroundWrite(DirectoryStore(str(tmp_path), 3), Full(Version(0, 1), {}, {}), held, _columns(1), is_held)
    beside.wait()
    with raises(StoreError, name="the full checkpoint", cause="MemoryError: no room for slot 0"):
        beside.result()
