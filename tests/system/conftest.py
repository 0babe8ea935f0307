"""Whole runs: real launchers, agents and processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from system_runs import Run

from zmqrl.config.plan import RunPlan


@pytest.fixture
def begin() -> Iterator[Callable[[RunPlan], Run]]:
    """Start a run; whatever is left of it at the end of the test is killed."""
    runs: list[Run] = []

    def start(plan: RunPlan) -> Run:
        runs.append(Run(plan))
        return runs[-1]

    yield start
    for run in runs:
        run.cut_short()
