"""A whole run in processes of its own, watched from outside."""

from __future__ import annotations

import json
import resource
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.running import Run
from zmqrl.config.codec import replace, to_json
from zmqrl.config.plan import RunPlan
from zmqrl.supervision.process_table import ProcessId

SAME = ("weights_sha256", "env_steps", "updates", "episodes", "train_return_mean_100")
"""Of a summary: what no death and no other spread over hosts may change."""


def assert_same(summary: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Both learned the same, and the books of the first balance."""
    assert summary["ledger"]["balanced"] and summary["ledger"]["in_flight"] == 0, summary["ledger"]
    assert {n: summary[n] for n in SAME} == {n: other[n] for n in SAME}


class PlanRun(Run):
    """A launcher of a plan."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        run_dir = Path(plan.run_dir)
        path = run_dir.with_name(f"{run_dir.name}-plan.json")
        path.write_text(json.dumps(to_json(plan)))
        super().__init__(self.start("-m", "tests.support.runs.launch_plan", path), run_dir)

    def wait_for_updates(self, version: int = 1) -> None:
        """Until version `version` or a later one is in the store."""
        self.wait_for(lambda: newest_n(Path(self.plan.store_path)) >= version)


def resumed(plan: RunPlan, total_env_steps: int) -> RunPlan:
    """A resume of `plan` up to this total; its run id is new, as each run on a machine needs its own."""
    config = replace(plan.config, run=replace(plan.config.run, total_env_steps=total_env_steps))
    run_id = f"resumed-{secrets.token_hex(3)}"
    return replace(plan, run_id=run_id, resume=True, started_at=time.time(), config=config)


def newest_n(folder: Path, kind: str = "") -> int:
    """The highest version in a store, of those whose names begin with `kind`; -1: there is none."""
    numbers = [path.stem.rpartition("-")[2] for path in folder.glob(f"{kind}*.safetensors")]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def limit_files(process: ProcessId, nbytes: int | None) -> None:
    """What a full disk is to one process: no file may grow beyond `nbytes`."""
    hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard if nbytes is None else nbytes, hard))
