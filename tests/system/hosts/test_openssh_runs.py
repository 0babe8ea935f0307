"""Whole runs whose hosts are reached by the system's ssh: every part that uses a connection, and nothing left."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.ssh.ssh_lab import sessions
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end, processes, sha256_of_one_process
from tests.support.runs.system_plans import SLOW_TALLY, TALLY, WAITING_TALLY
from tests.support.waiting import until
from tests.support.yardstick import within
from zmqrl.ssh.openssh_client import PERSIST_S
from zmqrl.wire.runtime_folder import run_folder_root

pytestmark = [pytest.mark.timed, pytest.mark.whole]
STEPS = 12_000
LEASE_S = 4.0
SETTINGS = (
    "run.stop_at_return=null",
    f"run.total_env_steps={STEPS}",
    f"algorithm.kind={TALLY['kind']}",
    "env.vector_envs=4",
    "evaluator.episodes=0",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


def config(lab: Lab, total_env_steps: int, algorithm: Mapping[str, Any], workers: int = 1) -> dict[str, Any]:
    """The learner on one host, workers behind a tunnel on another, and here."""
    (lab.folder / "my_module.py").write_text("HERE = 1\n")
    far = lab.hosts_yaml(1, workers=1) | lab.hosts_yaml(2, workers=workers, tunnel=True)
    return {
        "run": {"preset": "cartpole-ppo", "total_env_steps": total_env_steps, "stop_at_return": None},
        "env": {"vector_envs": 4},
        "algorithm": dict(algorithm),
        "min_workers": 2 + workers,
        "evaluator": {"episodes": 0},
        "limits": {"host_lease_s": LEASE_S, "lost_after_s": 2.0},
        "learner": {"host": "h1"},
        "ssh": {"client": "openssh"},
        "code": {"sync": ["my_module.py"]},
        "hosts": {"local": {"workers": 1}, **far},
    }


def masters() -> list[Path]:
    return list(run_folder_root().glob("ssh-*"))


@pytest.mark.long
def test_doctor_and_a_run_over_the_systems_ssh(lab: Lab, tmp_path: Path) -> None:
    with closed_at_the_end() as runs:
        runs.append(run := FarRun(lab, "openssh", config(lab, STEPS, SLOW_TALLY, workers=2)))
        file = str(lab.folder / "openssh.yaml")
        run.wait_for_steps(1_000)
        assert len(masters()) == 2
        code, out, err = run.command("doctor", file, "--plain")
        assert code == 0, (out, err)
        summary = run.done()
    assert summary["weights_sha256"] == sha256_of_one_process(tmp_path / "alone", SETTINGS)
    assert summary["ledger"]["balanced"] and summary["workers"] == 4
    assert list((run.run_dir / "checkpoints").glob("full-*.safetensors")), "the learner's checkpoints are here"
    assert masters() == []
    for host in lab.hosts[1:]:
        until(lambda host=host: not sessions(host) and not processes(host, summary["run_id"]))


@pytest.mark.long
def test_a_launcher_that_was_killed_leaves_a_master_for_its_bound_only(lab: Lab) -> None:
    with closed_at_the_end() as runs:
        runs.append(run := FarRun(lab, "killed", config(lab, 10_000_000, WAITING_TALLY)))
        run.wait_for_steps(1_000)
        run_id, folders = run.run_id, masters()
        assert len(folders) == 2
        with within(LEASE_S + PERSIST_S + 5.0):
            run.process.send_signal(signal.SIGKILL)
            until(lambda: not any((folder / "m").exists() for folder in folders), "the masters to end")
        for host in lab.hosts[1:]:
            until(lambda host=host: not sessions(host) and not processes(host, run_id))
        code, out, err = run.command("down", str(run.run_dir))
        assert code == 0 and "h1: 0 processes left" in out and "h2: 0 processes left" in out, (out, err)
    code, out, _ = run.command("clean")
    assert code == 0 and masters() == [], out
