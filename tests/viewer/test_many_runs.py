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
from zmqrl.viewer.answers import Answers, as_json

RUNS, ROWS, LARGE_RUNS, LARGE_ROWS = 200, 100_000, 2, 2_000_000
WARM_S, UPDATE_S = 2.0, 0.2
"""CPU time of this process, whatever else the machine does."""
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


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_warm_page_and_its_update_are_fast(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQRL_CACHE", str(folder.parent / "cache"))
    query = {"run": [str(folder / f"run-{number}") for number in range(RUNS)]}
    cold_s, before = cpu_s(lambda: Answers(folder).curves(query))
    answers = Answers(folder)
    warm_s, _ = cpu_s(lambda: [as_json(answers.runs({})), as_json(answers.curves(query))])
    assert answers.curves(query) == before
    for number in (0, RUNS - 1):
        with (folder / f"run-{number}" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"wall_s": 9e6, "env_steps": 2e9, "attempt": 2, "train_return_mean_100": 1}) + "\n")
    update_s, _ = cpu_s(lambda: as_json(answers.curves(query)))
    print(f"cold {cold_s:.1f} s, warm {warm_s:.2f} s, update {update_s:.3f} s")
    assert warm_s <= WARM_S and update_s <= UPDATE_S
    assert answers.curves(query) != before
