"""Hosts that are many, far away, or behind a thin wire: what they cost, measured on real connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.marks import long
from tests.support.runs.ssh_runs import FarRun
from zmqrl.testing.expect import assert_within

pytestmark = pytest.mark.timed
DELAY_MS, LOSS = 50.0, 0.01
"""Each way."""
SLOWER = re.compile(r"\w+: worker \d+ is .* times slower than the others\n  .*\n")
"""What a run reports of a host that waits for a core: no fault."""
IDLE = {"kind": "zmqrl.bench.noop:NoUpdate"}
"""A learner without torch, for runs whose weights nobody looks at."""


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with lab_or_skip(request.param, isolated=True) as lab:
        yield lab


def finish(lab: Lab, hosts: dict[str, Any], run: dict[str, Any], **more: Any) -> tuple[FarRun, str, dict[str, Any]]:
    """A whole run: it, what was said on stderr, and its summary."""
    config: dict[str, Any] = {
        "run": {"preset": "cartpole-ppo", "stop_at_return": None, **run},
        "evaluator": {"episodes": 0},
        "hosts": {"local": {"workers": 0}, **hosts},
        **more,
    }
    held = FarRun(lab, "far", config)
    try:
        code, out, err = held.end()
        assert code == 0, (out, err)
        return held, err, held.summary()
    finally:
        held.close()


@pytest.mark.parametrize("lab", [1], indirect=True)
@pytest.mark.parametrize("agents", [long(14), long(40)])
def test_many_agents_come_in_through_one_sshd(lab: Lab, agents: int) -> None:
    """sshd as it comes (MaxStartups 10:30:100) drops callers at random from the eleventh on."""
    hosts = {f"n{index:02}": lab.hosts[0].hosts_yaml(workers=1) for index in range(agents)}
    hosts = lab.by_own_names(hosts)
    more = {"env": {"vector_envs": agents}, "algorithm": IDLE, "min_workers": agents}
    run, err, summary = finish(lab, hosts, {"total_env_steps": 10_000}, **more)
    assert not SLOWER.sub("", err), "nobody failed, and nobody was warned of the other agents of the same run"
    rows = {row["host"]: row["ms"] for row in run.status()["hosts"]}
    assert sum(ms is not None for ms in rows.values()) == agents
    assert summary["ledger"]["balanced"] and summary["workers"] == agents


@pytest.mark.long
@pytest.mark.parametrize("lab", [3], indirect=True)
def test_ten_megabytes_of_weights_reach_three_hosts_in_less_than_a_second(lab: Lab) -> None:
    """A sync round holds all of it, for six workers: train, save, notice, fetch, load, step, send; so it is a bound."""
    more = {
        "network": {"hidden": [1130, 1130]},
        "algorithm": {"kind": "tests.stand_ins.tally:Tally"},
        "env": {"vector_envs": 6},
    }
    run, _, summary = finish(lab, lab.hosts_yaml(workers=2), {"total_env_steps": 2_000}, **more)
    nbytes = max(path.stat().st_size for path in (run.run_dir / "checkpoints").glob("v*"))
    assert nbytes > 10_000_000
    assert not any(row["store"] for row in run.status()["hosts"] if row["host"] != "local"), "all came by the broker"
    round_s = 6 * 2 * 32 / summary["env_steps_per_s"]
    assert_within(round_s, 1.0)


@pytest.mark.parametrize("lab", [3], indirect=True)
@pytest.mark.parametrize("mode", ["sync", long("async")])
def test_a_run_works_over_a_slow_wire_that_loses_frames(lab: Lab, mode: str) -> None:
    for index in (1, 2):
        lab.delay(index, DELAY_MS, LOSS)
    steps = {"sync": 3_000, "async": 30_000}[mode]
    hosts = lab.hosts_yaml(1, 2, workers=1)
    run, err, summary = finish(lab, hosts, {"mode": mode, "total_env_steps": steps}, algorithm=IDLE)
    assert not SLOWER.sub("", err)
    assert summary["env_steps"] >= steps and summary["ledger"]["balanced"]
    assert summary["env_steps_per_s"] > 0 and summary["policy_lag"]["max"] >= (0 if mode == "sync" else 1)
    rows = {row["host"]: row for row in run.status()["hosts"]}
    assert rows["h1"]["ms"] > 4 * DELAY_MS, "the way there and back is measured, twice for its greeting"
    stepped = {row["host"]: row["env_steps"] for row in run.status()["workers"]}
    assert stepped["h1"] > 0 and stepped["h2"] > 0
