"""Where two attempts overlap, all readers have the rows of the last one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import zmqrl
from zmqrl.metrics.attempts import current_metrics
from zmqrl.metrics.curves import EVALUATED, RETURN, series_of
from zmqrl.metrics.groups import RunGroup
from zmqrl.metrics.recorder import Recorder


def recorded(folder: Path, rows: Iterable[tuple[int, float, int, str]], counted: str = "env_steps") -> Path:
    """A run with `rows` of attempt, wall_s, env steps or updates, and name; the value is the attempt."""
    for attempt, wall_s, x, name in rows:
        recorder = Recorder(folder, 0.0, attempt)
        recorder.record(wall_s, x if counted == "env_steps" else 0, {name: attempt, counted: x})
        recorder.close()
    return folder


def test_the_last_attempt_counts_where_two_overlap(tmp_path: Path) -> None:
    run = recorded(
        tmp_path,
        [
            *((1, 1.0, 10, RETURN), (1, 2.0, 20, RETURN), (1, 2.5, 10, EVALUATED), (1, 3.0, 30, RETURN)),
            *((1, 3.5, 20, EVALUATED), (1, 3.6, 30, EVALUATED)),
            *((2, 4.0, 20, EVALUATED), (2, 5.0, 25, RETURN), (2, 6.0, 35, RETURN), (2, 6.5, 35, EVALUATED)),
            *((3, 1.0, 36, RETURN), (3, 2.0, 45, RETURN)),
        ],
    )
    trained, scored = [(10, 1), (20, 1), (25, 2), (35, 2), (36, 3), (45, 3)], [(10, 1), (20, 2), (35, 2)]
    rows = current_metrics(run / "metrics.jsonl")
    assert [(row["env_steps"], row["attempt"]) for row in rows if RETURN in row] == trained
    assert [(row["env_steps"], row[EVALUATED]) for row in rows if EVALUATED in row] == scored
    assert zmqrl.read_metrics(run, frame=False) == rows
    for name, points in ((RETURN, trained), (EVALUATED, scored)):
        (series,) = series_of(RunGroup("g", (run,)), name, 1).series
        assert list(zip(series.env_steps, series.values, strict=True)) == points
    (series,) = series_of(RunGroup("g", (run,)), RETURN, 1).series
    first, second = 3.6, 6.5  # of the attempts' seconds, also those that were repeated
    assert series.wall_s.tolist() == [1.0, 2.0, first + 5.0, first + 6.0, first + second + 1.0, first + second + 2.0]


def test_attempts_of_a_run_without_env_steps_overlap_by_updates(tmp_path: Path) -> None:
    run = recorded(tmp_path, [(1, 1.0, 100, "loss"), (1, 2.0, 200, "loss"), (2, 1.0, 150, "loss")], "updates")
    rows = current_metrics(run / "metrics.jsonl")
    assert [(row["updates"], row["loss"]) for row in rows] == [(100, 1), (150, 2)]


def test_rows_that_were_written_before_rows_had_an_attempt_precede_all_others(tmp_path: Path) -> None:
    former = [{"wall_s": 2.0, "env_steps": 10, RETURN: 0.0}, {"wall_s": 1.0, "env_steps": 20, RETURN: 0.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in former))
    run = recorded(tmp_path, [(3, 1.0, 15, RETURN)])
    (series,) = series_of(RunGroup("g", (run,)), RETURN, 1).series
    assert (series.env_steps.tolist(), series.wall_s.tolist()) == ([10.0, 15.0], [2.0, 4.0])
