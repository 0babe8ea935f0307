"""An async run whose workers act with ONNX Runtime: a module of the user's, without torch in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs.system_plans import system_plan
from tests.support.runs.system_runs import PlanRun
from zmqrl import load_policy
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, EvaluatorSection, NetworkSection
from zmqrl.envs.make import make_single

pytestmark = [
    pytest.mark.whole,
]
ENV = EnvSection(id="tests.envs.space_envs:Unmasked", num_envs=4, segment_steps=32, max_episode_steps=30)
WORKER_MB = 80.0
"""Half of a worker that acts with torch."""


@pytest.mark.long
def test_an_async_run_trains_and_its_workers_have_no_torch(tmp_path: Path, begin: Callable[[RunPlan], PlanRun]) -> None:
    network = NetworkSection("tests.networks.nets:ImageAndVector", kwargs={"channels": 3}, runtime="onnx")
    folder = tmp_path / "run"
    run = begin(
        system_plan(folder, "async", 2, env=ENV, network=network, steps=8_000, evaluator=EvaluatorSection(episodes=2))
    )
    run.wait_for_updates(10)
    maps = {place: Path(f"/proc/{process.pid}/maps").read_text() for place, process in run.processes().items()}
    assert {place for place, text in maps.items() if "libtorch" in text} == {"learner-0"}
    assert {place for place, text in maps.items() if "onnxruntime" in text} == {"worker-0", "worker-1", "evaluator-0"}
    assert not [place for place, text in maps.items() if "-packages/onnx/" in text]
    summary = run.done()
    assert summary["env_steps"] >= 8_000 and summary["updates"] > 100 and summary["restarts"] == 0
    assert summary["eval_episodes"] == 2
    assert max(summary["peak_pss_mb"][role] for role in ("worker", "evaluator")) <= WORKER_MB, summary["peak_pss_mb"]
    assert load_policy(folder)(make_single(ENV).reset(seed=1)[0]) in range(4)
