"""Law (b) for a whole run: where the algorithm needs no torch, no process has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import IDLE, PPO, system_plan
from tests.support.runs.system_runs import PlanRun
from zmqrl.config.plan import RunPlan
from zmqrl.types import ModeName


@pytest.mark.parametrize("mode", [long("single"), "sync", long("async")])
def test_only_an_algorithm_that_needs_torch_brings_it(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], mode: ModeName
) -> None:
    with_torch = {}
    for name, algorithm in (("idle", IDLE), ("ppo", PPO)):
        run = begin(system_plan(tmp_path / name, mode, 1, algorithm, steps=10_000_000))
        run.wait_for_updates(3)
        maps = {place: Path(f"/proc/{p.pid}/maps").read_text() for place, p in run.processes().items()}
        with_torch[name] = [place for place, text in maps.items() if "libtorch" in text]
        run.cut_short()
    assert with_torch == {"idle": [], "ppo": ["learner-0"]}
