"""The page of 200 runs with 100,000 rows, two of them with two million: with a cache of an earlier viewer."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.viewer.stored import store
from zmqrl.metrics.jsonl import BLOCK_BYTES
from zmqrl.viewer.answers import Answers, as_json

RUNS, ROWS, LARGE_RUNS, LARGE_ROWS = 200, 100_000, 2, 2_000_000
FIRST, WARM, UPDATE, UPDATES = 45.0, 0.25, 0.03, 0.2
"""CPU time, as a share of that of reading the bytes of all files: first look, new start, new rows of two runs, of all.

Measured: 23, 0.12, 0.009 and 0.096.
"""
NAMES = ("train_length_mean_100", "updates_per_s", "wait_fraction", "policy_lag_mean", "loss/policy", "loss/value")


def lines(count: int) -> Iterator[str]:
    """Rows of the learner as a run writes them, of two attempts."""
    draw = random.Random(count)
    for k in range(count):
        row = {"wall_s": float(k), "env_steps": 512 * k, "attempt": 1 + (k > count // 2), "updates": 40 * k}
        values = {"train_return_mean_100": 500 * k / count + draw.random(), **{name: draw.random() for name in NAMES}}
        yield json.dumps({**row, **values}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The runs; all but the last of a size are links to one file."""
    for size, count in (("small", ROWS), ("large", LARGE_ROWS)):
        with (tmp_path / size).open("w") as file:
            file.writelines(lines(count))
    for number in range(RUNS):
        path = store(tmp_path / "runs" / f"run-{number}", []) / "metrics.jsonl"
        path.unlink()
        os.link(tmp_path / ("large" if number < LARGE_RUNS else "small"), path)
    for number in (0, RUNS - 1):
        path = tmp_path / "runs" / f"run-{number}" / "metrics.jsonl"
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    return tmp_path / "runs"


def cpu_s(call: Callable[[], Any]) -> tuple[float, Any]:
    before = time.process_time()
    result = call()
    return time.process_time() - before, result


def read_all(folder: Path) -> None:
    """The yardstick: every byte of every run."""
    for path in folder.glob("*/metrics.jsonl"):
        with path.open("rb") as file:
            while file.read(BLOCK_BYTES):
                pass


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"wall_s": 9e6, "env_steps": 2e9, "attempt": 2, "train_return_mean_100": 1}) + "\n")


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_page_of_many_runs_takes_a_share_of_the_time_of_reading_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZMQRL_CACHE", str(folder.parent / "cache"))
    query = {"run": [str(folder / f"run-{number}") for number in range(RUNS)]}
    read_s, _ = cpu_s(lambda: read_all(folder))
    first_s, before = cpu_s(lambda: Answers(folder).curves(query))
    answers = Answers(folder)
    warm_s, _ = cpu_s(lambda: [as_json(answers.runs({})), as_json(answers.curves(query))])
    assert answers.curves(query) == before
    for number in (0, RUNS - 1):
        append(folder / f"run-{number}" / "metrics.jsonl")
    update_s, _ = cpu_s(lambda: as_json(answers.curves(query)))
    append(folder.parent / "small")
    updates_s, content = cpu_s(lambda: as_json(answers.curves(query)))
    taken = {"first": first_s, "warm": warm_s, "update": update_s, "updates": updates_s}
    print(f"read {read_s:.2f} s", {name: (round(s, 3), round(s / read_s, 4)) for name, s in taken.items()})
    pairs = zip(json.loads(content)["lines"], before["lines"], strict=True)
    changed = [line != former for line, former in pairs]
    assert sum(changed) == RUNS - 1, "one of the large runs has no new row"
    assert first_s <= FIRST * read_s and warm_s <= WARM * read_s
    assert update_s <= UPDATE * read_s and updates_s <= UPDATES * read_s
