"""What a caller's functions are given, and what follows from what they return or raise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agent.plans import stand_in_plan
from tests.launch.test_run_state import tell
from zmqrl.api.callbacks import Callbacks, Checkpoint, RunObserver, Score
from zmqrl.config.plan import RunPlan
from zmqrl.launch.run.events import take
from zmqrl.launch.run.state import RunState
from zmqrl.messages.process import Metrics, VersionScore
from zmqrl.orchestrators.base import HostEvent
from zmqrl.types import Version

METRICS = HostEvent("local", Metrics({"env_steps": 64, "train_return_mean_100": 21.0}), "learner", 0)
SCORE = VersionScore(Version(0, 3), 64, 20.0, 1.5, 20, 1.0, True, False)


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return stand_in_plan(tmp_path / "run")


def observed(plan: RunPlan, event: HostEvent, **functions: Any) -> tuple[RunObserver, bool]:
    state = RunState(plan)
    take(state, event)
    observer = RunObserver(plan.config, Path(plan.store_path), Callbacks(**functions))
    return observer, observer.on_event(event, state)


def test_metrics_and_scores_are_passed_on(plan: RunPlan) -> None:
    seen: list[Any] = []
    observer, continues = observed(plan, METRICS, on_metrics=seen.append)
    assert continues and seen == [observer.metrics]
    assert seen[0]["train_return_mean_100"] == 21.0 and list(seen[0])[:2] == ["wall_s", "env_steps"]
    event = HostEvent("local", SCORE, "evaluator", 0)
    assert observed(plan, event, on_score=seen.append)[1]
    assert seen[1] == Score("0-3", 64, 20.0, 1.5, 20, is_best=True, is_final=False)


@pytest.mark.parametrize(
    ("returned", "continues"), [(False, False), (np.False_, False), (None, True), (0, True), (True, True)]
)
def test_only_false_requests_a_stop(plan: RunPlan, returned: object, continues: bool) -> None:
    assert observed(plan, METRICS, on_metrics=lambda _: returned)[1] == continues


def test_an_exception_is_reported_once_and_does_not_stop_training(
    plan: RunPlan, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def fails(metrics: object) -> None:
        calls.append(metrics)
        raise KeyError("a figure that is not there")

    observer, continues = observed(plan, METRICS, on_metrics=fails)
    assert continues and observer.on_event(METRICS, RunState(plan))
    (record,) = caplog.records
    assert (record.name, record.levelno, len(calls)) == ("zmqrl", logging.ERROR, 2)
    assert record.exc_info is not None and "on_metrics" in record.getMessage()


def test_new_checkpoints_are_reported_once(plan: RunPlan) -> None:
    place, seen = Path(plan.store_path), list[Checkpoint]()
    place.mkdir(parents=True)
    (place / "full-0-1.safetensors").touch()
    callbacks = Callbacks(on_checkpoint=lambda checkpoint: seen.append(checkpoint) or len(seen) < 2)
    observer = RunObserver(plan.config, place, callbacks)
    assert observer.report_checkpoints() and not seen, "it was there before the run"
    for name in ("full-0-2.safetensors", "best-0-2.safetensors", "v0-3.safetensors", ".full-0-3.safetensors.1"):
        (place / name).touch()
    assert not observer.report_checkpoints(), "the second returned False"
    assert [(c.kind, c.version, c.path.name) for c in seen] == [
        ("full", "0-2", "full-0-2.safetensors"), ("best", "0-2", "best-0-2.safetensors"),
    ]  # fmt: skip
    assert observer.report_checkpoints() and len(seen) == 2


def test_progress_is_that_of_the_status(plan: RunPlan) -> None:
    state, observer = RunState(plan), RunObserver(plan.config, Path(plan.store_path), Callbacks())
    assert (observer.progress.phase, observer.progress.env_steps) == ("starting", 0)
    tell(state, "metrics", role="learner", index=0, values={"env_steps": 32, "train_return_mean_100": 9.0})
    assert observer.on_status(state)
    assert (observer.progress.env_steps, observer.progress.fraction, observer.progress.return_mean) == (32, 0.25, 9.0)
