"""Hosts that have IPv6 addresses alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.runs.ssh_runs import FarRun
from tests.support.runs.system_plans import TALLY

pytestmark = pytest.mark.whole
ADDRESSES = ("fd77::10", "fd77::11")


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Its second host has no IPv4 address; the first one, where launcher and learner are, has both."""
    with lab_or_skip(2, isolated=True) as lab:
        for host, address in zip(lab.hosts, ADDRESSES, strict=True):
            assert host.network is not None
            host.network.ip(f"address add {address}/64 dev eth0 nodad")
        far = lab.hosts[1]
        far.kill_sshd()
        far.start_sshd({"ListenAddress": f"::\nListenAddress {far.address}"})
        far.network.ip(f"address del {far.address}/24 dev eth0")  # type: ignore[union-attr]
        with lab.known_hosts.open("a") as known:
            known.write(f"{ADDRESSES[1]} {far.host_key}\n")
        yield lab


@pytest.mark.long
def test_a_worker_host_without_ipv4_participates_and_is_examined(lab: Lab) -> None:
    section = lab.hosts[1].hosts_yaml(workers=1)
    config = {
        "run": {"mode": "sync", "total_env_steps": 4000, "name": "six"},
        "env": {"vector_envs": 2, "num_envs": 2, "segment_steps": 32},
        "algorithm": dict(TALLY),
        "evaluator": {"episodes": 0},
        "hosts": {"local": {"workers": 0}, "six": {**section, "ssh": ADDRESSES[1]}},
    }
    run = FarRun(lab, "six", config)
    try:
        code, out, err = run.end()
        assert code == 0, (out, err)
        summary = run.summary()
        assert summary["env_steps"] >= 4000 and summary["ledger"]["balanced"]
        examined, shown, problems = run.command("doctor", str(lab.folder / "six.yaml"))
        assert examined == 0 and ADDRESSES[0] in shown, (shown, problems)
    finally:
        run.close()
