"""The end of a learner is a success only if it reported the end of the training."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.marks import long
from tests.support.runs.system_plans import system_plan
from tests.support.runs.system_runs import PlanRun
from zmqrl.agent.child_process import UNREPORTED_END
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import RestartSection
from zmqrl.types import ModeName

FRAME = r" \(\S*quitting_tally\.py:\d+, in _quit\): user code may not end a process of a run"


@pytest.mark.parametrize(("mode", "how", "cause"), [
    ("single", "sys.exit", f"SystemExit{FRAME}"),
    long("async", "sys.exit", f"SystemExit{FRAME}"),
    ("sync", "os._exit", re.escape(UNREPORTED_END)),
])  # fmt: skip
def test_a_learner_that_user_code_ends_fails_the_run(
    tmp_path: Path, begin: Callable[[RunPlan], PlanRun], mode: ModeName, how: str, cause: str
) -> None:
    algorithm = {"kind": "tests.stand_ins.quitting_tally:Quitting", "how": how}
    restart = RestartSection(max=1 if how == "os._exit" else 5, backoff_s=0.1)
    run = begin(system_plan(tmp_path / "run", mode, 1, algorithm, steps=20_000, restart=restart))
    code, _, err = run.end()
    summary = run.summary()
    assert (code, summary["status"], summary["restarts"]) == (1, "failed", 1), err
    assert re.search(cause, summary["error"]), summary["error"]
    assert len(re.findall(f"local/learner-0: {cause}", err)) == 2, err
    assert (summary["env_steps"] or 0) < 20_000
