"""`episodes.csv` at the death of a learner, and at a resume."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zmqrl.learner.counters import Counters
from zmqrl.learner.episodes import EndedEpisode
from zmqrl.learner.episodes_file import EpisodesFile
from zmqrl.types import SegmentId


def opened(folder: Path, counters: Counters, spawn: int = 0, is_deterministic: bool = True) -> EpisodesFile:
    mode = SimpleNamespace(deterministic=is_deterministic)
    plan: Any = SimpleNamespace(
        run_dir=str(folder), lineage=SimpleNamespace(attempt=2), began=0.0, config=SimpleNamespace(mode=mode)
    )
    writer: Any = SimpleNamespace(retry_until=lambda what, write, meanwhile: write())
    return EpisodesFile(plan, spawn, counters, writer)


def episode(index: int, return_: float, vector_env: int = 0) -> EndedEpisode:
    return EndedEpisode(SegmentId(vector_env, 1, index), 3, return_, 7)


def returns(folder: Path) -> list[float]:
    with (folder / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all((row["attempt"], row["env"], row["length"]) == ("2", "3", "7") for row in rows)
    return [float(row["return"]) for row in rows]


@pytest.mark.parametrize(("spawn", "is_deterministic"), [(0, True), (1, True), (0, False)])
def test_what_is_repeated_is_truncated(tmp_path: Path, spawn: int, is_deterministic: bool) -> None:
    counters = Counters()
    file = opened(tmp_path, counters)
    file.record([episode(0, 0.5), episode(0, 1.5)])
    full = Counters(episodes_nbytes=counters.episodes_nbytes)
    file.record([episode(1, 2.5)])
    again = opened(tmp_path, full, spawn, is_deterministic)
    assert returns(tmp_path) == [0.5, 1.5]
    again.record([episode(1, 2.5), episode(2, 3.5)])
    assert returns(tmp_path) == [0.5, 1.5, 2.5, 3.5]


def test_a_successor_in_async_keeps_all_and_doubles_none(tmp_path: Path) -> None:
    counters = Counters()
    file = opened(tmp_path, counters, 0, False)
    file.record([episode(0, 0.5), episode(4, 1.5, vector_env=1)])
    full = Counters()
    with (tmp_path / "episodes.csv").open("a") as end:
        end.write("2,1.0,64,0,3,9")  # the line that was under way
    again = opened(tmp_path, full, 1, False)
    again.record([episode(4, 1.5, vector_env=1), episode(1, 2.5)])
    assert returns(tmp_path) == [0.5, 1.5, 2.5]


def test_a_file_that_was_removed_begins_again(tmp_path: Path) -> None:
    counters = Counters(episodes_nbytes=10_000)
    opened(tmp_path, counters).record([episode(0, 0.5)])
    assert returns(tmp_path) == [0.5]
