"""What an undisturbed run comes to: made once for all tests of a session, also for those of another test process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.runs.system_runs import PlanRun
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EvaluatorSection, HostSection, LimitsSection, RestartSection, StoreSection
from zmqrl.planning.plan_run import plan_run


class References:
    """Called with the plan of a disturbed run in single or sync: the summary of its undisturbed run in single.

    `test_kind_runs` holds that both modes give the same bits for any number of workers.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def __call__(self, plan: RunPlan) -> Mapping[str, Any]:
        assert plan.config.run.mode != "async", "its bits depend on time"
        alone = self._alone(plan)
        path = Path(alone.run_dir, "summary.json")
        with path.parent.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                run = PlanRun(alone)
                try:
                    run.done()
                finally:
                    run.cut_short()
        summary: Mapping[str, Any] = json.loads(path.read_text())
        return summary

    def _alone(self, plan: RunPlan) -> RunPlan:
        """Of the sections that decide about bits; the others are as they come."""
        run = replace(plan.config.run, mode="single", max_wall_s=None, checkpoint_every_s=1000.0)
        config = replace(
            plan.config,
            run=run,
            hosts={"local": HostSection(workers=1)},
            store=StoreSection(),
            evaluator=EvaluatorSection(episodes=0),
            limits=LimitsSection(),
            restart=RestartSection(),
        )
        name = hashlib.sha256(json.dumps(to_json(config), sort_keys=True).encode()).hexdigest()[:16]
        return plan_run(config, self._folder / name, time.time())
