"""The recording of a run: each segment once, whatever ends the learner, and one message for a folder that is not its.

The segments here are numbered: vector env, incarnation and index make the reward of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import create_autospec

import h5py
import numpy as np
import pytest

from tests.shared_memory.bus_plans import COLUMNS, ROWS, bus_plan
from tests.support.raising import raises
from zmqrl.bus_ends.learner_end import TakenSegment
from zmqrl.config.codec import replace
from zmqrl.config.plan import Lineage, RunPlan
from zmqrl.data_sets.episodes import frame_dtype
from zmqrl.errors import ConfigError
from zmqrl.learner.counters import Counters
from zmqrl.learner.recording import SEGMENTS, Recording
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.logs.events import EventPipe
from zmqrl.types import ModeName, SegmentId, SegmentMeta, SlotRef, Version

Name = tuple[int, int, int]
KEY = ("run", "record")


def _plan(tmp_path: Path, mode: ModeName = "sync", lineage: str = "a") -> RunPlan:
    plan = bus_plan(mode, run_dir=tmp_path)
    config = replace(plan.config, run=replace(plan.config.run, record="data"), algorithm={"kind": "ppo"})
    return replace(plan, config=config, lineage=Lineage(lineage))


def _recorder(plan: RunPlan, counters: Counters, spawn: int = 0) -> Recording:
    return Recording(plan, spawn, counters, RetryingWriter(create_autospec(EventPipe, instance=True), 1.0))


def _record(recorder: Recording, names: Sequence[Name]) -> None:
    columns = {c.name: np.zeros((len(names), *c.shape), c.dtype) for c in COLUMNS}
    columns["valid"][:] = True
    for slot, name in enumerate(names):
        columns["reward"][slot] = 100 * name[0] + 10 * name[1] + name[2]
    metas = [SegmentMeta(SegmentId(*name), Version(0, 0), ROWS) for name in names]
    recorder.record([TakenSegment(SlotRef(k, 1), meta) for k, meta in enumerate(metas)], columns)


def _names(tmp_path: Path) -> list[Name]:
    frames = np.fromfile(tmp_path / "data" / SEGMENTS, frame_dtype(COLUMNS))
    assert all((frame["reward"] == 100 * v + 10 * i + n).all() for frame in frames for v, i, n in [frame["id"]])
    return [tuple(name) for name in frames["id"].tolist()]


def test_sync_goes_back_to_its_full_checkpoint(tmp_path: Path) -> None:
    plan, counters = _plan(tmp_path), Counters()
    recorder = _recorder(plan, counters)
    _record(recorder, [(1, 0, 0), (0, 0, 0)])
    full = counters.stored()
    _record(recorder, [(0, 0, 1), (1, 0, 1)])
    for spawn, resume in ((1, False), (0, True)):
        again = Counters(**full)
        successor = _recorder(replace(plan, resume=resume), again, spawn)
        assert _names(tmp_path) == [(0, 0, 0), (1, 0, 0)]
        _record(successor, [(0, 65536, 1), (1, 65536, 1)])
        assert _names(tmp_path)[2:] == [(0, 65536, 1), (1, 65536, 1)]
        assert again.recorded == (tmp_path / "data" / SEGMENTS).stat().st_size


def test_async_keeps_all_and_doubles_nothing(tmp_path: Path) -> None:
    plan, counters = _plan(tmp_path, "async"), Counters()
    recorder = _recorder(plan, counters)
    full = counters.stored()
    _record(recorder, [(0, 0, 0), (1, 0, 0), (0, 0, 1)])
    with (tmp_path / "data" / SEGMENTS).open("ab") as file:  # the learner died while it wrote the next frame
        file.write(b"torn")
    successor = _recorder(plan, Counters(**full), spawn=1)
    _record(successor, [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 1)])
    assert _names(tmp_path) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 0, 2), (1, 0, 1)]
    _recorder(replace(plan, resume=True), Counters(**full))  # a resume counts env steps from the full checkpoint too
    assert not _names(tmp_path)


@pytest.mark.parametrize(("mode", "continues"), [("sync", 1), ("async", 0)])
def test_episodes_continue_in_another_incarnation_in_sync(tmp_path: Path, mode: ModeName, continues: int) -> None:
    recorder = _recorder(_plan(tmp_path, mode), Counters())
    _record(recorder, [(0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 1, 4)])
    recorder.finish()
    frames = np.fromfile(tmp_path / "data" / SEGMENTS, frame_dtype(COLUMNS))
    assert frames["continues"].tolist() == [False, True, bool(continues), False]


def test_the_data_set_has_every_row(tmp_path: Path) -> None:
    recorder = _recorder(_plan(tmp_path), Counters())
    _record(recorder, [(0, 0, 0), (1, 0, 0)])
    recorder.finish()
    _record(recorder, [(0, 0, 1), (1, 0, 1)])
    recorder.finish()
    with h5py.File(tmp_path / "data" / "data" / "main_data.hdf5") as file:
        assert [group.attrs["total_steps"] for group in file.values()] == [2 * ROWS // 2] * 4
        assert all(group.attrs["unfinished"] for group in file.values())


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    counters = Counters()
    _record(_recorder(_plan(tmp_path), counters), [(0, 0, 0)])
    before = (tmp_path / "data" / SEGMENTS).read_bytes()
    value = repr(str(tmp_path / "data"))
    with raises(ConfigError, key=KEY, value=value, fix="set another folder"):
        _recorder(_plan(tmp_path, lineage="b"), Counters())
    with raises(ConfigError, key=KEY, value=value, fix="move it, or set another folder"):
        _recorder(_plan(tmp_path), Counters())
    assert (tmp_path / "data" / SEGMENTS).read_bytes() == before
    (tmp_path / "data" / SEGMENTS).unlink()
    fix = "restore it, or set run.record: null to continue without a recording"
    with raises(ConfigError, key=KEY, value=value, fix=fix):
        _recorder(replace(_plan(tmp_path), resume=True), counters)


def test_without_h5py_one_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with raises(ConfigError, fix="run in the checkout of zmqrl: pip install '.[minari]'"):
        _recorder(_plan(tmp_path), Counters())
