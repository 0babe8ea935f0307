"""`run.max_wall_s` ends also a run that makes no progress, in every mode.

The limit counts from the start of the command. What is promised is when the learner, or else the launcher, ends the
run; how long the processes then take to end depends on the machine, and is compared with how long they took to start.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import long
from tests.support.running import RUN_S
from tests.support.runs.system_plans import CARTPOLE, IDLE, IDLE_DQN, SLOW_TALLY, system_plan
from tests.support.runs.system_runs import PlanRun, newest_n
from tests.support.waiting import until
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, LimitsSection
from zmqrl.data_stores import tensors
from zmqrl.testing.expect import assert_within
from zmqrl.types import ModeName

pytestmark = pytest.mark.timed

Begin = Callable[[RunPlan], PlanRun]
LIMITS_S = (4.0, 6.0, 9.0, 14.0, 20.0, 40.0, 80.0)
"""`run.max_wall_s`: the next one where the run was not under way in time for the one before."""
EARLY_S = 0.5
"""The fault is made so long before the limit."""
ACT_S = 1.0
STATUS_EVERY_S = 1.0
GRACE_S = 2.0
LIMITS = LimitsSection(heartbeat_s=0.2, grace_s=GRACE_S)
LONG = 10_000_000
KINDS: Mapping[str, tuple[ModeName, Mapping[str, Any]]] = {
    "single-on-policy": ("single", IDLE),
    "single-off-policy": ("single", IDLE_DQN),
    "sync": ("sync", IDLE),
    "async-on-policy": ("async", {**IDLE, "batch_segments": 4}),
    "async-off-policy": ("async", IDLE_DQN),
}


class LimitedRun:
    """A run whose fault was made before its limit. Where the machine is too slow for that, a later limit is tried."""

    def __init__(
        self, begin: Begin, folder: Path, kind: str, fault: Callable[[PlanRun], object], env: EnvSection = CARTPOLE
    ) -> None:
        mode, algorithm = KINDS[kind]
        for self.limit_s in LIMITS_S:
            plan = system_plan(
                folder / f"run-{self.limit_s:g}", mode, 1, algorithm, env, steps=LONG, limits=LIMITS,
                max_wall_s=self.limit_s, checkpoint_every_s=1000.0,
            )  # fmt: skip
            self.run = begin(plan)
            if fault(self.run) and self.age_s < self.limit_s - EARLY_S:
                self._start_s = self.age_s
                return
            self.run.cut_short()
        pytest.fail(f"the run was not under way {self.limit_s - EARLY_S:g} s after its start")

    @property
    def age_s(self) -> float:
        """What `run.max_wall_s` is compared with."""
        return time.time() - self.run.plan.started_at

    def ends(self, ended_s: float, grace_s: float, code: int = 0, error: str | None = None) -> None:
        """Its end was decided when it was `ended_s` old; a process that does not end by itself has `grace_s`."""
        assert self.run.end()[0] == code
        summary = self.run.summary()
        status = "done" if code == 0 else "failed"
        assert (summary["status"], summary["exit_code"], summary["error"]) == (status, code, error)
        assert summary["ledger"] is None or summary["ledger"]["balanced"], summary["ledger"]
        assert self.limit_s <= ended_s
        assert_within(summary["wall_s"] - ended_s - grace_s, self._start_s)

    def ends_by_its_learner(self, grace_s: float, round_s: float = 0.0) -> None:
        """Its last act is to write a full checkpoint."""
        assert self.run.process.wait(RUN_S) == 0
        fulls = [path.read_bytes() for path in Path(self.run.plan.store_path).glob("full*")]
        ended_at = max(json.loads(tensors.parse(full)[1]["full"])["written_at"] for full in fulls)
        ended_s = ended_at - self.run.plan.started_at
        assert_within(ended_s - self.limit_s - round_s, ACT_S)
        assert self.run.summary()["weights_sha256"] is not None
        self.ends(ended_s, grace_s)


def _stop(run: PlanRun, process: str) -> bool:
    """Of a run in its second round or a later one."""
    until(lambda: newest_n(Path(run.plan.store_path)) >= 2 or run.process.poll() is not None, "version 2", RUN_S)
    found = run.processes().get(process)
    if found is not None:
        os.kill(found.pid, signal.SIGSTOP)
    return found is not None


def test_a_clock_that_steps_years_ahead_ends_no_run(tmp_path: Path, begin: Begin) -> None:
    """As NTP does soon after the boot of a machine without a battery-backed clock; a later learner counts on too."""
    plan = system_plan(tmp_path / "run", "sync", 1, SLOW_TALLY, steps=LONG, max_wall_s=600.0)
    run = begin(replace(plan, started_at=plan.started_at - 1e9))
    run.wait_for_updates(2)
    before = run.processes()["learner-0"]
    os.kill(before.pid, signal.SIGKILL)
    run.wait_for_successor("learner-0", before)
    newest = newest_n(Path(plan.store_path))
    run.wait_for_updates(newest + 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 130


@pytest.mark.parametrize("kind", [kind if kind in ("single-on-policy", "sync") else long(kind) for kind in KINDS])
def test_a_segment_that_takes_longer_than_the_limit(tmp_path: Path, begin: Begin, kind: str) -> None:
    """Of 13 s; the learner waits for it, or collects it itself."""
    begun = tmp_path / "begun"
    env = EnvSection(
        id="tests.stand_ins.slow_envs:Slow",
        max_episode_steps=500,
        num_envs=2,
        vector_envs=4,
        segment_steps=32,
        kwargs={"step_s": 0.2, "begun": str(begun)},
    )

    def has_begun(run: PlanRun) -> bool:
        begun.unlink(missing_ok=True)  # of the run before
        until(lambda: begun.exists() or run.process.poll() is not None, "an env step", RUN_S)
        return begun.exists()

    LimitedRun(begin, tmp_path, kind, has_begun, env).ends_by_its_learner(grace_s=0.0)


@pytest.mark.parametrize("kind", [kind if kind == "sync" else long(kind) for kind in KINDS if "single" not in kind])
def test_a_worker_that_was_stopped(tmp_path: Path, begin: Begin, kind: str) -> None:
    limited = LimitedRun(begin, tmp_path, kind, lambda run: _stop(run, "worker-0"))
    versions = sorted(path.stat().st_mtime for path in Path(limited.run.plan.store_path).glob("v*"))
    limited.ends_by_its_learner(GRACE_S, round_s=versions[-1] - versions[-2])


@pytest.mark.parametrize("kind", [long("single-on-policy"), "sync", long("async-off-policy")])
def test_a_learner_that_was_stopped(tmp_path: Path, begin: Begin, kind: str) -> None:
    """The launcher ends the run, `limits.grace_s` later, for which its agent waits. The learner reports no end."""
    limited = LimitedRun(begin, tmp_path, kind, lambda run: _stop(run, "learner-0"))
    limited.run.wait_for(lambda: any("run.max_wall_s" in text for text in limited.run.status().get("problems", [])))
    ended_s = limited.age_s
    assert ended_s >= limited.limit_s + GRACE_S
    assert_within(ended_s - limited.limit_s - GRACE_S, ACT_S + STATUS_EVERY_S)
    limited.ends(ended_s, GRACE_S, code=1, error="the learner has not reported the end of the training")
