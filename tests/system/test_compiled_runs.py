"""Whole runs with compiled updates on the CPU: the same bits in single, in sync and after a resume."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from zmqrl import Summary, resume, train
from zmqrl.learning.package_cache import cache_folder
from zmqrl.types import ModeName

COMPILER = os.environ.get("CXX", "g++")
pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C++ compiler: {COMPILER} is missing"),
]
SMALL = {
    "network__hidden": (8,),
    "replay__learning_starts": 200,
    "algorithm__target_update_every": 1,
    "algorithm__target_tau": 0.01,
}
"""One graph: the target network follows in each update."""


class Runs:
    """Runs of one preset and seed with compiled updates; the horizon of the schedules is `total` env steps."""

    def __init__(self, folder: Path, preset: str, total: int, **values: Any) -> None:
        given = {"run__total_env_steps": total, "run__schedule_env_steps": total, "learner__executor": "compiled"}
        self._folder, self._preset, self._total = folder, preset, total
        self._values = {**given, "evaluator__episodes": 0, "restart__max": 0, **values}

    def trained(self, mode: ModeName, name: str = "", **values: Any) -> Summary:
        workers = None if mode == "single" else 1
        directory, settings = self._folder / (name or mode), {**self._values, **values}
        return train(self._preset, run_dir=directory, mode=mode, workers=workers, **settings)

    def resumed_at_half(self) -> Summary:
        self.trained("sync", "half", run__total_env_steps=self._total // 2)
        return resume(self._folder / "half", run__total_env_steps=self._total)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test keep their packages, which this process would use too."""
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path / "cache"))
    return cache_folder()


def check_all_are_the_same(summaries: list[Summary], cache: Path) -> None:
    assert len({(summary.weights_sha256, summary.updates) for summary in summaries}) == 1
    assert summaries[0].updates > 100
    assert len(list(cache.glob("*.pt2"))) == 1, "the first run compiled, and the others loaded what it kept"


def test_sync_has_the_bits_of_single(tmp_path: Path, cache: Path) -> None:
    runs = Runs(tmp_path, "cartpole-dqn", 2_000, **SMALL)
    check_all_are_the_same([runs.trained("single"), runs.trained("sync")], cache)


@pytest.mark.long
def test_sac_has_the_same_bits_in_single_in_sync_and_after_a_resume(tmp_path: Path, cache: Path) -> None:
    runs = Runs(tmp_path, "pendulum-sac", 1_200, network__hidden=(32, 32), algorithm__batch_size=64)
    check_all_are_the_same([runs.trained("single"), runs.trained("sync"), runs.resumed_at_half()], cache)
