"""Words, scans and attaching of the arena."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import numpy as np
import pytest

from tests.shared_memory.bus_plans import COLUMNS, bus_plan, with_slots
from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.sections import StoreSection
from zmqrl.errors import ArenaError, ArenaTooLarge
from zmqrl.shared_memory import memory
from zmqrl.shared_memory.arena import ACCEPT, LEASE, RELEASE, SEAL, Arena, check_fits, layout_of
from zmqrl.types import ColumnSpec, ModeName, SegmentId, SegmentMeta, SlotRef, Version

PLAN = bus_plan()


@pytest.fixture
def arena() -> Iterator[Arena]:
    held = Arena.create(PLAN)
    yield held
    held.close()


def sealed(arena: Arena, slot: int, id: SegmentId, rows: int = 8) -> SlotRef:
    ref = arena.lease(slot)
    arena.write_meta(slot, SegmentMeta(id, Version(2, 5), rows))
    arena.seal(ref)
    return ref


def words(arena: Arena, slot: int) -> list[int]:
    return [arena.word(slot, which) for which in (LEASE, SEAL, ACCEPT, RELEASE)]


def test_the_life_of_a_slot(arena: Arena) -> None:
    ref = arena.lease(3)
    assert ref == SlotRef(3, 1)
    assert words(arena, 3) == [1, 0, 0, 0]
    assert (arena.open_slots(), arena.sealed(), arena.held()) == (1, [], [])
    arena.write_meta(3, SegmentMeta(SegmentId(1, 0, 4), Version(2, 5), 7))
    assert arena.sealed() == [], "the header alone is no seal"
    arena.seal(ref)
    assert (arena.open_slots(), arena.sealed(), arena.is_held(ref)) == (0, [ref], False)
    assert arena.meta(3) == SegmentMeta(SegmentId(1, 0, 4), Version(2, 5), 7)
    arena.accept(ref)
    assert (arena.sealed(), arena.held(), arena.is_held(ref)) == ([], [ref], True)
    arena.release(ref)
    assert (arena.held(), words(arena, 3)) == ([], [1, 1, 1, 1])
    assert arena.lease(3) == SlotRef(3, 2)
    assert not arena.is_held(ref)


def test_a_lease_taken_back_is_not_sealed_by_its_old_holder(arena: Arena) -> None:
    old = arena.lease(0)
    arena.lease(0)
    arena.seal(old)
    assert arena.sealed() == []
    assert not arena.is_held(old)


def test_scans_are_in_stream_order(arena: Arena) -> None:
    ids = [SegmentId(1, 0, 3), SegmentId(0, 1, 0), SegmentId(0, 0, 9), SegmentId(1, 0, 2)]
    refs = {id: sealed(arena, slot, id) for slot, id in enumerate(ids)}
    assert arena.sealed() == [refs[id] for id in sorted(ids)]
    for ref in refs.values():
        arena.accept(ref)
    assert arena.held() == [refs[id] for id in sorted(ids)]


def test_what_one_process_writes_another_reads(arena: Arena) -> None:
    assert arena.fd is not None
    other = Arena.attach(PLAN, os.dup(arena.fd))
    arena.columns["obs"][5][...] = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    assert other.columns["obs"][5, 4, 1, 2] == 29
    assert other.columns["obs"].shape == (PLAN.slots, 5, 2, 3)
    sealed(other, 5, SegmentId(0, 0, 0))
    assert [ref.slot for ref in arena.sealed()] == [5]
    other.close()


def test_columns_do_not_overlap_and_start_on_cache_lines(arena: Arena) -> None:
    for number, column in enumerate(arena.columns.values()):
        assert column.__array_interface__["data"][0] % 64 == 0
        column[...] = number % 2
    for number, column in enumerate(arena.columns.values()):
        assert (column == number % 2).all()
    assert words(arena, 0) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "plan",
    [
        with_slots(PLAN, 9),
        replace(PLAN, columns=(ColumnSpec("obs", "int32", COLUMNS[0].shape), *COLUMNS[1:])),
        replace(PLAN, columns=(COLUMNS[0], COLUMNS[2], COLUMNS[1], *COLUMNS[3:])),
    ],
    ids=["slots", "dtype", "order"],
)
def test_another_plans_arena_is_refused(arena: Arena, plan: object) -> None:
    assert arena.fd is not None
    with pytest.raises(ArenaError, match=r"this plan's has|another layout"):
        Arena.attach(plan, arena.fd)  # type: ignore[arg-type]


def test_too_little_memory_reports_need_available_and_key_to_lower() -> None:
    huge = with_slots(PLAN, 1 << 40)
    with raises(ArenaTooLarge, fix="lower replay.capacity, env.num_envs or env.segment_steps") as caught:
        check_fits(huge)
    assert re.fullmatch(r"the arena needs \d+ MB of memory, and \d+ MB are available", caught.value.what)
    assert caught.value.exit_code == 2
    with pytest.raises(ArenaTooLarge):
        Arena.create(huge)


@pytest.mark.parametrize(
    ("mode", "async_replay", "copies"), [("sync", False, 1), ("async", True, 1), ("async", False, 0)]
)
def test_the_copy_of_replay_for_full_is_counted(
    monkeypatch: pytest.MonkeyPatch, mode: ModeName, async_replay: bool, copies: int
) -> None:
    plan = bus_plan(mode)
    config = replace(plan.config, store=StoreSection(async_replay=async_replay))
    plan = replace(plan, config=config, slots=60, held_segments=50)
    layout = layout_of(plan)
    need = layout.nbytes + copies * 50 * layout.stride
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.KEEP_FREE + need)
    check_fits(plan)
    monkeypatch.setattr(memory, "available_bytes", lambda: memory.KEEP_FREE + need - 1)
    with pytest.raises(ArenaTooLarge) as caught:
        check_fits(plan)
    assert ("copy of replay" in caught.value.what) == bool(copies)


def test_the_ledger_adds_up_the_messages(arena: Arena) -> None:
    sealed(arena, 0, SegmentId(0, 0, 0), rows=6)
    ledger = arena.ledger()
    assert (ledger.in_flight, ledger.produced, ledger.balanced) == (6, 0, False)


def test_an_arena_closes_twice() -> None:
    arena = Arena.create(PLAN)
    arena.close()
    arena.close()
