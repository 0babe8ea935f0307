"""A host that is slower than the others of a sync run is named, with the factor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.system.ssh_runs import FarRun
from tests.system.system_plans import TALLY

pytestmark = pytest.mark.whole


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


def test_the_slow_host_of_a_sync_run_is_named(lab: Lab) -> None:
    """Its steps take ten times longer; before, the bottleneck was called the bus."""
    hosts: dict[str, Any] = {}
    for name, host, step_s in (("quick", lab.hosts[0], "0.002"), ("late", lab.hosts[1], "0.02")):
        section = host.hosts_yaml(workers=1)
        hosts[name] = {**section, "env": {**section["env"], "STEP_S": step_s}}
    config = {
        "run": {"mode": "sync", "total_env_steps": 2000, "name": "slow"},
        "env": {
            "id": "tests.system.slow_envs:HostSlow",
            "vector_envs": 4,
            "num_envs": 2,
            "segment_steps": 16,
            "max_episode_steps": 50,
        },
        "algorithm": dict(TALLY),
        "evaluator": {"episodes": 0},
        "hosts": {"local": {"workers": 0}, **hosts},
    }
    run = FarRun(lab, "slow", config)
    try:
        code, out, err = run.end()
        assert code == 0, (out, err)
        found = re.fullmatch(r"late \(worker \d\), ([\d.]+)x slower", str(run.summary()["slowest"]))
        assert found is not None and 3 < float(found[1]) < 15, run.summary()
        assert "bottleneck workers: late (worker" in out, out
    finally:
        run.close()
