"""A worker of another host that hangs, while its agent and the connection of its host are in order."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.marks import long
from tests.support.running import RUN_S
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end, processes, role, sha256_of_the_same_run
from tests.support.waiting import until

pytestmark = pytest.mark.timed
STEPS = 10_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2, isolated=True) as lab:
        yield lab


def config(lab: Lab, mode: str) -> dict[str, Any]:
    """A worker here and one on h1; no less than 4 s, however fast the machine is."""
    return {
        "run": {"preset": "cartpole-ppo", "mode": mode, "total_env_steps": STEPS, "stop_at_return": None},
        "env": {
            "id": "tests.stand_ins.slow_envs:Slow",
            "num_envs": 2,
            "vector_envs": 4,
            "segment_steps": 32,
            "max_episode_steps": 50,
        },
        "algorithm": {"kind": "tests.stand_ins.tally:Tally"},
        "evaluator": {"episodes": 0},
        "limits": {"heartbeat_s": 0.2, "lost_after_s": 2.0},
        "restart": {"backoff_s": 0.1},
        "hosts": {"local": {"workers": 1}, **lab.hosts_yaml(1, workers=1)},
    }


@pytest.mark.long
@pytest.mark.parametrize("mode", ["sync", long("async")])
def test_it_is_killed_and_replaced(lab: Lab, mode: str) -> None:
    settings = config(lab, mode)
    with closed_at_the_end() as runs:
        run = FarRun(lab, mode, settings)
        runs.append(run)
        run.wait_for_steps(1_000)
        stopped = role(lab.hosts[1], run.run_id, "worker").pid
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: stopped not in (pids := _workers(lab, run.run_id)) and pids, "its successor", RUN_S)
        code, out, err = run.end()
        summary = run.summary()
    assert code == 0, f"{out}\n{err}"
    assert "h1/worker-1: hangs: no heartbeat for limits.lost_after_s (2 s), killed" in out + err
    assert summary["restarts"] == 1
    assert summary["ledger"]["balanced"] and summary["env_steps"] >= STEPS, summary["ledger"]
    if mode == "sync":
        at_once = {**settings, "env": {**settings["env"], "kwargs": {"step_s": 0.0}}}  # decides about no bit
        assert summary["weights_sha256"] == sha256_of_the_same_run(lab.shared / "alone", at_once, STEPS)


def _workers(lab: Lab, run_id: str) -> set[int]:
    return {process.pid for process in processes(lab.hosts[1], run_id) if "zmqrl.worker" in process.argv}
