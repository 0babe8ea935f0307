"""Hosts that crash and come back during a run are taken back; without enough of them the run pauses."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.ssh.ssh_lab import sessions
from tests.support.marks import long
from tests.support.runs.ssh_runs import FarRun, role, sha256_of_the_same_run
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until
from tests.support.yardstick import scaled_s
from zmqrl.wire.runtime_folder import run_folder_root

pytestmark = [pytest.mark.whole]
CRASHES = 2
PAUSE_S = 12.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


def config(lab: Lab, mode: str, env_steps: int) -> Mapping[str, Any]:
    return {
        "run": {"mode": mode, "total_env_steps": env_steps, "stop_at_return": None, "preset": "cartpole-ppo"},
        "env": {"vector_envs": 4, "num_envs": 2, "segment_steps": 16},
        "algorithm": dict(WAITING_TALLY),
        "evaluator": {"episodes": 0},
        "limits": {"lost_after_s": 3, "heartbeat_s": 0.2},
        "hosts": {"local": {"workers": 1}, **{n: lab.hosts[i].hosts_yaml(workers=1) for n, i in (("a", 1), ("b", 2))}},
    }


def crash_and_boot(run: FarRun, lab: Lab, name: str, index: int) -> None:
    """It is lost, and back with a worker that has stored a segment."""
    lab.hosts[index].crash()
    until(lambda: run.host(name).get("state") in ("lost", "failed", "connecting"), f"{name} to be lost")
    lab.hosts[index].boot()
    until(lambda: run.host(name).get("state") == "ready" and run.host(name)["env_steps_per_s"] > 0, f"{name} back")


def test_in_sync_with_the_same_bits(lab: Lab, tmp_path: Path) -> None:
    run = FarRun(lab, "rejoin", config(lab, "sync", 1_000_000))
    try:
        run.wait_for_steps(500)
        for crash in range(CRASHES):
            crash_and_boot(run, lab, *(("a", 1), ("b", 2))[crash % 2])
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, _, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert code == 0 and summary["ledger"]["balanced"], err
    assert err.count("back with 1 worker") == CRASHES
    same = sha256_of_the_same_run(tmp_path / "same", config(lab, "sync", 0), summary["env_steps"])
    assert summary["weights_sha256"] == same


@pytest.mark.long
def test_in_async_nothing_is_lost_or_doubled(lab: Lab) -> None:
    run = FarRun(lab, "async", config(lab, "async", 100_000_000))
    try:
        run.wait_for_steps(2_000)
        crash_and_boot(run, lab, "b", 2)
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, _, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert code == 0 and summary["ledger"]["balanced"], err
    assert err.count("back with 1 worker") == 1


@pytest.mark.long
@pytest.mark.parametrize("client", ["paramiko", "openssh"])
def test_the_connection_of_a_replaced_agent_is_closed(lab: Lab, client: str) -> None:
    """Only the agent of a host ends; its sshd, and that of the jump host before it, live."""
    settings = dict(config(lab, "async", 100_000_000))
    hosts = {**settings["hosts"], "b": lab.hosts[2].hosts_yaml(workers=1, jump="h1")}
    run = FarRun(lab, client, {**settings, "hosts": hosts, "ssh": {"client": client}})

    def held() -> tuple[int, ...]:
        """Descriptors and threads of the launcher, logins on the host and on its jump host, folders of masters."""
        process = Path(f"/proc/{run.process.pid}")
        threads, descriptors = (len(list((process / name).iterdir())) for name in ("task", "fd"))
        return (
            threads,
            descriptors,
            *(len(sessions(host)) for host in lab.hosts[1:]),
            len([*run_folder_root().glob("ssh-*")]),
        )

    def kill_agent() -> None:
        before = role(lab.hosts[2], run.run_id, "agent").pid
        os.kill(before, signal.SIGKILL)
        until(lambda: run.host("b").get("state") != "ready", "b to be lost")
        until(lambda: run.host("b")["state"] == "ready" and run.host("b")["env_steps_per_s"] > 0, "b back")

    try:
        run.wait_for_steps(500)
        most = held()
        for _ in range(2):
            kill_agent()
        until(lambda: all(now <= before for now, before in zip(held(), most, strict=True)), lambda: (most, held()))
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, _, err = run.end()
    finally:
        run.close()
    assert code == 0 and run.summary()["ledger"]["balanced"], err


@pytest.mark.long
@pytest.mark.parametrize("stops", [True, long(False)])
def test_a_run_with_too_few_workers_pauses_continues_and_ends_with_a_full_checkpoint(lab: Lab, stops: bool) -> None:
    """At a stop, or by `limits.too_few_s`: tests/launch/test_too_few.py and test_ends.py have the latter."""
    settings, pause_s = dict(config(lab, "sync", 1_000_000)), scaled_s(PAUSE_S)
    settings |= {"min_workers": 3, "limits": {**settings["limits"], "too_few_s": pause_s, "grace_s": 4}}
    run = FarRun(lab, "few", settings)
    try:
        run.wait_for_steps(500)
        lab.hosts[1].crash()
        until(lambda: run.status().get("phase") == "paused", "the pause")
        steps = [run.status()["env_steps"]]

        def rest() -> bool:  # what was leased is stored
            time.sleep(1.5)
            steps.append(run.status()["env_steps"])
            return steps[-1] == steps[-2]

        until(rest, "no more env steps")
        paused_at = steps[-1]
        lab.hosts[1].boot()
        until(lambda: run.status().get("phase") == "running" and run.status()["env_steps"] > paused_at, "the rest")
        if stops:
            assert run.command("stop", str(run.run_dir))[0] == 0
        else:
            lab.hosts[2].crash()
        code, _, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert "2 workers are ready, min_workers is 3: a is" in err and "3 workers are ready again after" in err
    newest = max(int(path.stem.rpartition("-")[2]) for path in (run.run_dir / "checkpoints").glob("full-*"))
    assert newest == max(int(path.stem.rpartition("-")[2]) for path in (run.run_dir / "checkpoints").glob("v*"))
    if stops:
        assert (code, summary["status"]) == (0, "stopped") and summary["ledger"]["balanced"], err
        return
    assert (code, summary["status"]) == (4, "failed"), err
    assert f"2 of at least 3 workers ready for limits.too_few_s ({pause_s:g} s)" in summary["error"]
    lab.hosts[2].boot()
    total = f"run.total_env_steps={summary['env_steps'] + 500}"
    code, _, err = run.command(
        "launch", str(lab.folder / "few.yaml"), "--plain", "--resume", str(run.run_dir), "--set", total
    )
    assert code == 0 and run.summary()["resumed_from"]["env_steps"] > paused_at, err
