"""Runs over several hosts with real sshds: the same bits as on one, whatever dies, and nothing left anywhere."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.running import END_S
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end, here, processes, role, sha256_of_one_process
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until
from tests.support.yardstick import within
from tests.system.hosts.secret_search import assert_each_stays_on_its_host

pytestmark = pytest.mark.timed
ROOT = Path(__file__).parents[3]
LEASE_S = 4.0
STEPS = 24_000
TALLY = "tests.stand_ins.tally:Tally"
ALGORITHM = {"kind": TALLY, "round_s": 0.05}
"""Rounds that are long enough for a fault to come before the end of the run."""
ENDLESS: dict[str, Any] = {"run": {"total_env_steps": 10_000_000}, "algorithm": dict(WAITING_TALLY)}
PORT = 47_400
Begin = Callable[..., FarRun]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


@pytest.fixture
def begin(lab: Lab) -> Iterator[Begin]:
    """Start a run over the first `count` hosts of a lab; `more` are further keys of sections of hosts.yaml."""
    hosts = lab

    def start(name: str, *options: str, lab: Lab = hosts, count: int = 3, **more: Any) -> FarRun:
        config: dict[str, Any] = {
            "run": {"preset": "cartpole-ppo", "total_env_steps": STEPS, "stop_at_return": None},
            "env": {"vector_envs": 6},
            "min_workers": count,  # a run that begins without a host may be over before there is anything to kill
            "algorithm": ALGORITHM,
            "evaluator": {"episodes": 0},
            "limits": {"host_lease_s": LEASE_S, "lost_after_s": 2.0},
            "hosts": {"local": {"workers": 0}, **lab.hosts_yaml(*range(count), workers=1)},
        }
        for key, value in more.items():
            config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
        runs.append(FarRun(lab, name, config, *options))
        return runs[-1]

    with closed_at_the_end() as runs:
        yield start


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of the same run in one process."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    settings = (
        "run.stop_at_return=null",
        "env.vector_envs=6",
        "evaluator.episodes=0",
        f"algorithm.kind={TALLY}",
    )
    return sha256_of_one_process(run_dir, (*settings, f"run.total_env_steps={STEPS}"))


def is_gone(lab: Lab, run_id: str) -> bool:
    return not any(processes(host, run_id) for host in lab.hosts)


def test_three_hosts_give_the_bits_of_one_while_unknown_peers_are_refused_and_counted(
    begin: Begin, lab: Lab, alone: str
) -> None:
    """A plain ZeroMQ client, a key that nobody knows, the wrong server key, and no ZeroMQ at all; from another host."""
    run = begin("three", min_workers=6, learner={"port": PORT}, hosts=lab.hosts_yaml(workers=2))
    run.wait_for_steps(2_000)
    network = lab.hosts[1].network
    assert network is not None
    address = f"tcp://{lab.hosts[0].address}:{PORT + 2}"
    strange = network.run(sys.executable, str(Path(__file__).with_name("strangers.py")), address)
    assert strange.split() == ["0"], "answers that strangers got"
    refused = until(lambda: run.status().get("refused"), "refusals in the status")
    assert {"unknown key", "wrong handshake"} & set(refused), refused
    code, out, _ = run.command("status", str(run.run_dir))
    assert code == 0
    assert all(word in out for word in ("h0", "h1", "h2", "lag", "env steps/s")), out
    code, _, err = run.end()
    summary = run.summary()
    assert (code, summary["weights_sha256"]) == (0, alone), err
    assert "broker-0: rejected " in err
    assert summary["ledger"]["balanced"] and summary["ledger"]["stored"] == summary["env_steps"]
    assert summary["workers"] == 6 and summary["policy_lag"]["max"] == 0
    assert is_gone(lab, summary["run_id"])
    assert [path for host in lab.hosts for path in (host.tmp / "zmqrl" / "runs").glob("*")] == []


@pytest.mark.long
def test_a_killed_agent_and_a_killed_sshd_cost_their_hosts_and_no_bit(begin: Begin, alone: str) -> None:
    with lab_or_skip(3, isolated=True) as lab:
        run = begin("killed", lab=lab)
        run.wait_for_steps(3_000)
        run_id = run.run_id
        with within(END_S):
            os.kill(role(lab.hosts[1], run_id, "agent").pid, signal.SIGKILL)
            until(lambda: not processes(lab.hosts[1], run_id), "the workers of a killed agent to die")
        assert processes(lab.hosts[2], run_id), "no other host ended"
        lab.hosts[2].kill_sshd()
        lab.hosts[2].start_sshd()  # at the end of the run, which may be soon, the launcher looks for what is left
        with within(LEASE_S + END_S):
            until(lambda: not processes(lab.hosts[2], run_id), "the host to end without its connection")
        code, _, err = run.end()
        assert (code, run.summary()["weights_sha256"]) == (0, alone), err
        assert "h1: " in err and "h2: " in err and "the run continues without this host" in err
        assert run.summary()["ledger"]["balanced"]


def test_down_brings_one_run_down_and_leaves_another_on_the_same_hosts(begin: Begin, lab: Lab) -> None:
    one, other = begin("one", count=2, **ENDLESS), begin("other", count=1, **ENDLESS)
    for run in (one, other):
        run.wait_for_steps(1_000)
    one.process.send_signal(signal.SIGSTOP)  # it cannot help
    code, out, err = one.command("down", str(one.run_dir))
    assert code == 0, (out, err)
    assert "h1" in out and "0 processes left" in out, out
    assert is_gone(lab, one.run_id)
    before = other.status()["env_steps"]
    other.wait_for_steps(before + 1_000)
    assert other.command("stop", str(other.run_dir))[0] == 0
    assert other.end()[0] == 0
    assert other.summary()["status"] == "stopped" and other.summary()["ledger"]["balanced"]
    assert is_gone(lab, other.run_id)


@pytest.mark.long
def test_a_remote_learner_stores_checkpoints_here_and_resumes_from_them(begin: Begin, lab: Lab, alone: str) -> None:
    run = {"total_env_steps": STEPS // 2, "schedule_env_steps": STEPS}
    first = begin("far", count=2, learner={"host": "h0"}, run=run)
    assert first.done()["env_steps"] >= STEPS // 2
    kept = {path.name.partition("-")[0] for path in (first.run_dir / "checkpoints").iterdir()}
    assert "full" in kept and "v0" in kept
    assert is_gone(lab, first.summary()["run_id"])
    code, out, err = first.command(
        "launch", str(lab.folder / "far.yaml"), "--resume", str(first.run_dir), "--plain",
        "--set", f"run.total_env_steps={STEPS}",
    )  # fmt: skip
    assert code == 0, (out, err)
    assert first.summary()["weights_sha256"] == alone and first.summary()["ledger"]["balanced"]


@pytest.mark.long
def test_secret_keys_stay_on_their_hosts_and_a_stopped_launcher_costs_every_host_its_lease(
    begin: Begin, lab: Lab
) -> None:
    run = begin("stopped", count=2, **ENDLESS)
    run.wait_for_steps(3_000)
    run_id = run.run_id
    hosts = {host.name: [process.pid for process in processes(host, run_id)] for host in lab.hosts[:2]}
    hosts["local"] = list({*here(run_id)} - {pid for pids in hosts.values() for pid in pids})
    folders = (run.run_dir, *(host.tmp for host in lab.hosts))
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    shown = [run.process.pid, *(pid for pids in hosts.values() for pid in pids)]
    assert_each_stays_on_its_host(hosts, run.process.pid, files, shown)
    run.process.send_signal(signal.SIGSTOP)
    try:
        with within(LEASE_S + END_S):
            until(lambda: is_gone(lab, run_id), "every process of the run to end")
    finally:
        run.process.send_signal(signal.SIGCONT)
    assert run.end()[0] == 1, "the learner's host has ended"


@pytest.mark.long
def test_a_cable_that_is_out_for_a_moment_costs_no_bit(begin: Begin, lab: Lab, alone: str) -> None:
    run = begin("cable", limits={"host_lease_s": 30.0, "lost_after_s": 1.0})
    run.wait_for_steps(3_000)
    lab.link(1, False)
    time.sleep(2.0)  # the fault's length
    lab.link(1, True)
    assert run.done()["weights_sha256"] == alone
    assert run.summary()["ledger"]["balanced"]
