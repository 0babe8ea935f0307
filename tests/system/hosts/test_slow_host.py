"""A host that is slower than the others of a sync run is named, and has fewer vector envs where the bits allow it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun
from tests.support.runs.system_plans import TALLY
from tests.support.waiting import until

pytestmark = pytest.mark.whole

QUICK_S = 0.002
WINDOWS, WINDOW_S = 4, 1.5
ROUND = 4 * 2 * 16


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


def config(total_env_steps: int, hosts: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {"mode": "sync", "total_env_steps": total_env_steps, "name": "slow"},
        "env": {
            "id": "tests.stand_ins.slow_envs:HostSlow",
            "vector_envs": 4,
            "num_envs": 2,
            "segment_steps": 16,
            "max_episode_steps": 50,
        },
        "algorithm": dict(TALLY),
        "evaluator": {"episodes": 0},
        "hosts": hosts,
    }


def far_hosts(lab: Lab, late: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"local": {"workers": 0}}
    for name, host, env in (("quick", lab.hosts[0], {}), ("late", lab.hosts[1], late)):
        section = host.hosts_yaml(workers=1)
        found[name] = {**section, "env": {**section["env"], "STEP_S": str(QUICK_S), **env}}
    return found


def env_steps_per_s(run: FarRun) -> float:
    """From one writing of status.json to another, which is once a second; the most of some: other load lowers it."""

    def written() -> tuple[int, float]:
        before = run.status()["env_steps"]
        steps: int = until(lambda: (now := run.status()["env_steps"]) > before and now, "more env steps", every_s=0.01)
        return steps, time.monotonic()

    found, (began, since) = [], written()
    for _ in range(WINDOWS):
        time.sleep(WINDOW_S)
        steps, ended = written()
        found.append((steps - began) / (ended - since))
        began, since = steps, ended
    return max(found)


@pytest.mark.long
def test_the_slow_host_of_a_sync_run_is_named(lab: Lab) -> None:
    """Its steps take ten times longer, and its BLAS computes other bits: the assignment stays even."""
    slow = {"STEP_S": str(10 * QUICK_S), "OPENBLAS_CORETYPE": "Prescott"}
    run = FarRun(lab, "slow", config(1200, far_hosts(lab, slow)))
    try:
        code, out, err = run.end()
        assert code == 0, (out, err)
        found = re.fullmatch(r"late \(worker \d\), ([\d.]+)x slower", str(run.summary()["slowest"]))
        assert found is not None and 3 < float(found[1]) < 15, run.summary()
        assert "bottleneck workers: late (worker" in out, out
        assert re.search("hosts: (late|quick): acting computes other bits there than on (quick|late), by", err), err
        assert not run.summary()["relieved"]
    finally:
        run.close()


@pytest.mark.long
@pytest.mark.timed
def test_a_host_that_becomes_slow_has_no_vector_envs_and_the_bits_are_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/broker/test_placement_by_speed.py has what the broker decides."""
    slowed = lab.shared / "slowed"
    run = FarRun(lab, "slowed", config(1_000_000, far_hosts(lab, {"SLOWED": str(slowed)})))
    try:
        run.wait_for_steps(1000)
        slowed.touch()
        until(lambda: run.status().get("relieved"), "the slow host to be relieved")
        run.wait_for_steps(run.status()["env_steps"] + 3 * ROUND)  # the move repeats the open episodes
        relieved = env_steps_per_s(run)
        slower = run.status()["relieved"]
        assert run.command("drain", str(run.run_dir), "late")[0] == 0
        without = env_steps_per_s(run)
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, _, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert code == 0 and summary["ledger"]["balanced"], err
    assert re.search(r"late: worker \d is [\d.]+ times slower than the others\n +2 of its 2 vector envs move", err), err
    assert len(slower) == 1 and re.fullmatch(r"late \(worker \d\), [\d.]+x slower, has no vector envs", slower[0])
    assert not summary["relieved"], "the worker was drained"
    assert relieved >= without / 1.3, "as without that host"
    monkeypatch.setenv("STEP_S", "0")  # decides about no bit
    straight = FarRun(lab, "straight", config(summary["env_steps"], {"local": {"workers": 1}}), "--mode", "single")
    try:
        code, _, err = straight.end()
        assert code == 0, err
        assert straight.summary()["weights_sha256"] == summary["weights_sha256"]
    finally:
        straight.close()
