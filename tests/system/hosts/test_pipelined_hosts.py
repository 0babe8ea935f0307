"""pipelined over several hosts: the bits of one machine for any number of workers, also after deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun, here, role

STEPS = 30_000


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3) as lab:
        yield lab


def config(hosts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Observations are normalised: a segment is trained with the statistics of the version before."""
    return {
        "run": {"preset": "cartpole-ppo", "mode": "pipelined", "total_env_steps": STEPS, "stop_at_return": None},
        "env": {"vector_envs": 4, "num_envs": 2, "segment_steps": 16},
        "algorithm": {"normalise_obs": True, "minibatch_size": 64},
        "evaluator": {"episodes": 0},
        "hosts": dict(hosts),
    }


def ended(run: FarRun) -> Mapping[str, Any]:
    code, _, err = run.end()
    summary = run.summary()
    assert code == 0 and summary["ledger"]["balanced"], err
    assert summary["policy_lag"]["max"] == 1
    return summary


@pytest.mark.long
@pytest.mark.whole
def test_hosts_that_lose_learner_and_worker_have_the_bits_of_one_machine(lab: Lab) -> None:
    far = FarRun(lab, "far", config({"local": {"workers": 0}, **lab.hosts_yaml(1, 2, workers=2)}))
    try:
        for env_steps in (3_000, 10_000, 17_000):
            far.wait_for_steps(env_steps)
            os.kill(here(far.run_id, "zmqrl.learner")[0], signal.SIGKILL)
            os.kill(role(lab.hosts[1], far.run_id, "worker").pid, signal.SIGKILL)
        found = {"far": ended(far)}
        assert found["far"]["restarts"] == 6
    finally:
        far.close()
    for workers in (1, 2, 4):
        alone = FarRun(lab, f"alone-{workers}", config({"local": {"workers": workers}}))
        try:
            found[str(workers)] = ended(alone)
        finally:
            alone.close()
    assert len({(summary["weights_sha256"], summary["updates"]) for summary in found.values()}) == 1
