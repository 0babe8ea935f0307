"""Whole runs: real launchers, agents and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.runs.references import References
from tests.support.runs.system_runs import PlanRun
from zmqrl.config.plan import RunPlan

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is a whole run; marked before `tests/conftest.py` sorts by it."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("whole")


@pytest.fixture
def begin() -> Iterator[Callable[[RunPlan], PlanRun]]:
    """Start a run; whatever is left of it at the end of the test is killed."""
    runs: list[PlanRun] = []

    def start(plan: RunPlan) -> PlanRun:
        runs.append(PlanRun(plan))
        return runs[-1]

    yield start
    for run in runs:
        run.cut_short()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> References:
    """Summaries of undisturbed runs. Test processes that run side by side have one folder for them."""
    own = tmp_path_factory.getbasetemp()
    return References((own if worker_id == "master" else own.parent) / "references")
