"""Blocks of lines are decoded at once where they have numbers with known names alone, with the rows of any reader."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from zmqrl.metrics import jsonl, metric_rows
from zmqrl.metrics.jsonl import read_metrics
from zmqrl.metrics.metric_rows import ROW, MetricRows, rows_of
from zmqrl.types import Array

TRAINED = {"wall_s": 1.5, "env_steps": 10, "attempt": 2, "episodes": 3, "loss": 0.25}
LINES = [
    *(json.dumps({**TRAINED, "env_steps": k}).encode() for k in range(20)),
    b'{"wall_s": 1, "env_steps": 7, "eval_return_mean": 4.0}',
    b'{"wall_s": 1, "env_steps": 7, "updates": 30, "lo\\u0073s": 1e-5, "loss": 2}',
    b'{"wall_s": 1, "env_steps": 7, "loss": NaN}',
    b'{"wall_s": 1, "env_steps": 7, "entropy": true, "loss": -Infinity}',
    b"",
    *(json.dumps({**TRAINED, f"worker_{k}_cpu": k}).encode() for k in range(20)),
]
WRONG = [
    *(b'{"wall_s": 1, "env_steps": 7, "loss": "x"}', b'{"wall_s": 1, "env_steps": 7, "note": "x", "loss": 1}'),
    *(b'{"wall_s": 1, "loss": 1}', b"[1]", b"null", b'{"wall_s": 1, "env_st', b"\xff", b"[" * 100_000),
    *(b'{"wall_s": 1, "env_steps": 7, "loss": %d}' % 10**400, b'{"wall_s": 1, "env_steps": 7, "n": %d}' % (1 << 62)),
    *(b'{"wall_s": 1, "env_steps": 7, "loss": null}', b'{"wall_s": 1, "env_steps": 7, "loss": {"a": 1}}'),
]


def read(rows: MetricRows) -> Array:
    return np.concatenate([*rows, np.empty(0, ROW)])


@pytest.mark.parametrize("metric", ["loss", "episodes", "eval_return_mean", "worker_7_cpu", "nothing"])
@pytest.mark.parametrize(("block_bytes", "most_fields"), [(1, 256), (300, 256), (300, 8), (262_144, 256)])
def test_rows_are_those_of_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str, block_bytes: int, most_fields: int
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(metric_rows, "MOST_FIELDS", most_fields)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join([*LINES, *(line for wrong in WRONG for line in (wrong, LINES[0]))]) + b"\n")
    rows, expected = MetricRows(path, metric), list(read_metrics(path))
    found = read(rows)
    assert len(expected) == 44 + len(WRONG) and rows.lines.end == path.stat().st_size
    for name in ROW.names or ():
        np.testing.assert_array_equal(found[name], rows_of(expected, metric)[name])
    assert found["is_score"].sum() == 1 and found["episodes"][0] == 3.0 and np.isnan(found["episodes"][20])
    assert found["is_measured"].sum() == sum(metric in row for row in expected)
    assert set(rows.names) == {name for row in expected for name in row} and rows.unreadable == len(WRONG)


@pytest.mark.parametrize("name", ['"quoted"', "a\nb", "\ud800", "\\", ""])
def test_a_name_is_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text(3 * (json.dumps({**TRAINED, name: 4.0}) + "\n"))
    assert read(MetricRows(path, name))["value"].tolist() == [4.0] * 3


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINES[0] + b"\n")
    os.truncate(path, 8 * jsonl.MOST_LINE_BYTES)
    rows = MetricRows(path, "loss")
    tracemalloc.start()
    try:
        assert (len(read(rows)), rows.lines.end) == (1, len(LINES[0]) + 1)
        assert tracemalloc.get_traced_memory()[1] < 4 * jsonl.MOST_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    path, text = tmp_path / "metrics.jsonl", LINES[0] + b"\n"
    path.write_bytes(2 * text + LINES[0])
    rows = MetricRows(path, "loss")
    assert (len(read(rows)), rows.lines.end, rows.unreadable) == (2, 2 * len(text), 0)
    assert len(read(MetricRows(path, "loss", cut_too=True))) == 3
    path.write_bytes(3 * text)
    assert len(read(MetricRows(path, "loss", rows.lines.end, rows.names))) == 1
