"""What a network does to a run over several hosts: cables are out, hosts do not hear each other, all is far away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.running import RUN_S
from tests.support.runs.ssh_runs import FarRun, here, processes
from tests.support.runs.system_runs import assert_same
from tests.support.waiting import until
from zmqrl.testing.expect import assert_within

pytestmark = pytest.mark.timed

LEASE_S, LOST_S = 5.0, 1.5
PATIENT_S = 5.0
"""`limits.lost_after_s` where no worker is to be lost: a lost SYN alone is repeated after 1 s."""
END_S = 5.0
"""What a host may need beyond its lease."""
RECOVERY_S = 3.0
POLL_EVERY_S = 0.01
DELAY_MS, LOSS = 25.0, 0.01
"""Each way."""
STEPS = 12_000
"""Of `slow_envs` no less than 6 s, however fast the machine is: the run goes on when a lease is over."""
Begin = Callable[..., FarRun]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(4, isolated=True) as lab:
        yield lab


@pytest.fixture
def begin(lab: Lab) -> Iterator[Begin]:
    """Start a sync run with workers on h1 and the hosts after it; keys set more of hosts.yaml."""
    runs: list[FarRun] = []

    def start(name: str, *far: int, **more: Any) -> FarRun:
        hosts = lab.hosts_yaml(*far, workers=1)
        runs.append(FarRun(lab, name, {**small(), "hosts": hosts, **more}))
        return runs[-1]

    yield start
    lab.heal()
    for index in (1, 2, 3):
        lab.link(index, True)
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> dict[str, Any]:
    """The same run in one process."""
    config = {**small(step_s=0.0), "hosts": {"local": {"workers": 1}}}
    run = FarRun(lab, "undisturbed", config, "--mode", "single")
    try:
        return run.done()
    finally:
        run.close()


def small(step_s: float = 0.001) -> dict[str, Any]:
    """`step_s` decides how long it takes, and about no bit."""
    return {
        "run": {"preset": "cartpole-ppo", "total_env_steps": STEPS, "stop_at_return": None},
        "env": {
            "id": "tests.stand_ins.slow_envs:Slow",
            "num_envs": 2,
            "vector_envs": 4,
            "segment_steps": 32,
            "max_episode_steps": 50,
            "kwargs": {"step_s": step_s},
        },
        "algorithm": {"kind": "tests.stand_ins.tally:Tally"},
        "evaluator": {"episodes": 0},
        "limits": {"heartbeat_s": 0.2, "host_lease_s": LEASE_S, "lost_after_s": LOST_S},
        "restart": {"backoff_s": 0.1},
    }


def version(run: FarRun) -> int:
    """The newest that is in the store of this machine."""
    names = [path.stem for path in (run.run_dir / "checkpoints").glob("v*.safetensors")]
    return max((int(name.rpartition("-")[2]) for name in names), default=-1)


def timed(what: Callable[[], object], text: str) -> float:
    """Wait for it; the seconds that took."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() < begun + RUN_S, text
        time.sleep(POLL_EVERY_S)
    return time.monotonic() - begun


def next_round_s(run: FarRun) -> float:
    """Until a whole round has come and gone: the one under way may have had all that it needs."""
    at = version(run)
    return timed(lambda: version(run) > at + 1, "another version")


def done_same(run: FarRun, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """It ends well, with the same bits, and nothing is lost or doubled."""
    summary = run.done()
    assert_same(summary, undisturbed)
    return summary


def test_cables_that_are_out_for_a_moment_and_for_longer_than_the_lease(
    begin: Begin, lab: Lab, undisturbed: dict[str, Any]
) -> None:
    run = begin("cables", 1, 2, rejoin="manual")
    until(lambda: version(run) >= 5, "version 5", RUN_S)
    lab.link(1, False)
    time.sleep(LOST_S + 1.0)  # the fault's length: by then its worker is lost
    lab.link(1, True)
    took_s = next_round_s(run)
    print(f"goes on {took_s:.2f} s after the cable was back")
    assert_within(took_s, RECOVERY_S)
    assert run.host("h1")["state"] == "ready" and processes(lab.hosts[1], run.run_id)

    lab.link(2, False)
    dead_s = timed(lambda: not processes(lab.hosts[2], run.run_id), "the host to end its processes")
    lab.link(2, True)
    print(f"dead {dead_s:.2f} s after the cable was out")
    assert dead_s > LEASE_S - 2.0, "its last lease may have been given some time before"
    assert_within(dead_s - LEASE_S, END_S)
    done_same(run, undisturbed)
    assert {row["host"]: row["state"] for row in run.status()["hosts"]}["h2"] == "lost"
    assert f"limits.host_lease_s ({LEASE_S:g} s)" in run.host("h2")["cause"]


@pytest.mark.long
def test_a_worker_host_unreachable_from_the_learners_host(begin: Begin, lab: Lab, undisturbed: dict[str, Any]) -> None:
    """The launcher hears both."""
    run = begin("partition", 1, 2, 3, learner={"host": "h1"}, rejoin="manual")
    run.wait_for_steps(1_000)
    lab.partition(1, 2)
    dead_s = timed(lambda: not processes(lab.hosts[2], run.run_id), "the host to end its processes")
    lab.heal()
    assert_within(dead_s - LEASE_S, END_S)
    done_same(run, undisturbed)
    rows = {row["host"]: row for row in run.status()["hosts"]}
    assert rows["h2"]["state"] == "lost" and rows["h3"]["state"] != "lost"
    assert f"for limits.host_lease_s ({LEASE_S:g} s)" in rows["h2"]["cause"]


@pytest.mark.long
def test_a_broker_killed_with_remote_workers(begin: Begin, lab: Lab, undisturbed: dict[str, Any]) -> None:
    for index in (1, 2):
        lab.delay(index, DELAY_MS, LOSS)
    try:
        run = begin("broker", 1, 2, limits={**small()["limits"], "lost_after_s": PATIENT_S})
        until(lambda: version(run) >= 5, "version 5", RUN_S)
        os.kill(here(run.run_id, "zmqrl.broker")[0], signal.SIGKILL)
        took_s = next_round_s(run)
        print(f"goes on {took_s:.2f} s after the broker's death")
    finally:
        for index in (1, 2):
            lab.delay(index, 0.0)
    summary = done_same(run, undisturbed)
    assert summary["restarts"] == 1 and not any(summary["ledger"]["dropped"].values())
    assert_within(took_s, RECOVERY_S)
