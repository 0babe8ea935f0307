from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zmqrl.metrics.jsonl import read_metrics
from zmqrl.metrics.recorder import Recorder


def test_both_hold_the_same_names_and_values(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, started_at=1000.0, attempt=3)
    recorder.record(1.5, 64, {"env_steps": 64, "loss": 0.25, "note": "no number", "none": None})
    recorder.record(2.5, 128, {"loss": 0.125})
    recorder.record(2.6, 128, {"none": None})
    recorder.close()
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert rows == [
        {"wall_s": 1.5, "env_steps": 64, "attempt": 3, "loss": 0.25},
        {"wall_s": 2.5, "env_steps": 128, "attempt": 3, "loss": 0.125},
    ]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.wall_time, e.step, e.value) for e in events.Scalars("loss")] == [
        (1001.5, 64, 0.25),
        (1002.5, 128, 0.125),
    ]


def test_a_resumed_run_continues_the_same_file_without_the_cut_line(tmp_path: Path) -> None:
    for wall in (1.0, 2.0):
        recorder = Recorder(tmp_path, 0.0, 1)
        recorder.record(wall, 1, {"a": math.pi})
        recorder.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"wall_s": 3.')
    assert [row["wall_s"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0]
    recorder = Recorder(tmp_path, 0.0, 1)
    recorder.record(4.0, 1, {"a": math.pi})
    recorder.close()
    assert [row["wall_s"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0, 4.0]


def test_a_disk_that_is_full_for_a_while_tears_no_row(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    recorder = Recorder(tmp_path, 0.0, 1)
    with pytest.raises(OSError):
        recorder.record(1.0, 1, {"a": 1.0})
    (tmp_path / "tensorboard").unlink()
    recorder.record(2.0, 2, {"a": 2.0})
    recorder.close()
    assert [row["a"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.0]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("a")] == [1.0, 2.0]


def test_a_worker_has_a_row_a_minute_and_one_at_the_end(tmp_path: Path) -> None:
    """They report every 2 s: a row of each report would be megabytes per worker and day."""
    recorder = Recorder(tmp_path, 0.0, 1)
    for second in range(2, 132, 2):
        for index in (0, 1) if second < 100 else (0,):
            recorder.record_worker(float(second), second, index, {"env_steps_per_s": second + index / 2})
    recorder.record_workers(131.0, 131)
    recorder.record_workers(132.0, 132)
    recorder.close()
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [list(row.values()) for row in rows if "worker_0_env_steps_per_s" in row] == [
        [60.0, 60, 1, 60.0],
        [120.0, 120, 1, 120.0],
        [131.0, 131, 1, 130.0],
    ]
    assert [list(row.values()) for row in rows if "worker_1_env_steps_per_s" in row] == [
        [60.0, 60, 1, 58.5],
        [120.0, 120, 1, 98.5],
    ]


def test_workers_whose_rows_wait_for_a_disk_are_recorded_later(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    recorder = Recorder(tmp_path, 0.0, 1)
    for index in (0, 1):
        recorder.record_worker(1.0, 1, index, {"wait_fraction": 0.5})
    with pytest.raises(OSError):
        recorder.record_workers(2.0, 2)
    (tmp_path / "tensorboard").unlink()
    recorder.record_workers(3.0, 3)
    recorder.close()
    names = [name for row in read_metrics(tmp_path / "metrics.jsonl") for name in row if name.startswith("worker_")]
    assert names == ["worker_0_wait_fraction", "worker_1_wait_fraction"]
