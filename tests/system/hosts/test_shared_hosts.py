"""Hosts that have workers only at some times (`only`), and those that are left to their users (`yield_when`)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, lab_or_skip
from tests.support.marks import long
from tests.support.running import RUN_S
from tests.support.runs.ssh_runs import FarRun, roles, sha256_of_the_same_run
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until

pytestmark = [pytest.mark.whole]
OPEN_S, CLOSED_S, QUIET_S = 45, 15, 8


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


def config(lab: Lab, a: dict[str, Any], b: dict[str, Any], env_steps: int) -> dict[str, Any]:
    return {
        "run": {"mode": "sync", "total_env_steps": env_steps, "stop_at_return": None, "preset": "cartpole-ppo"},
        "env": {"vector_envs": 4, "num_envs": 2, "segment_steps": 16},
        "algorithm": dict(WAITING_TALLY),
        "evaluator": {"episodes": 0},
        "hosts": {
            "local": {"workers": 0},
            "a": lab.hosts[1].hosts_yaml(workers=1, **a),
            "b": lab.hosts[2].hosts_yaml(workers=1, **b),
        },
    }


@contextmanager
def typing_user(lab: Lab, host: int) -> Iterator[None]:
    """Logged in on it with a terminal, on which a line is typed each second."""
    ssh = ["ssh", "-F", str(lab.ssh_config), "-tt", lab.hosts[host].name, "cat > /dev/null"]
    command = ["sh", "-c", 'while echo x; do sleep 1; done | "$@" > /dev/null 2>&1', "sh", *ssh]
    process = lab.run_here(command, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # ssh too; sshd then hangs up the terminal
        process.wait()


def is_training(run: FarRun, name: str) -> bool:
    row = run.host(name)
    return row.get("state") == "ready" and row["env_steps_per_s"] > 0


@pytest.mark.parametrize("window", [False, long(True)], ids=["in use", "outside its window"])
def test_in_sync_with_the_same_bits_also_through_a_time_without_workers(lab: Lab, tmp_path: Path, window: bool) -> None:
    """Host b is in use; so is a, or its window closes: tests/launch/test_staffing.py has the edges of windows."""
    closes = datetime.now() + timedelta(seconds=OPEN_S)
    opens = closes + timedelta(seconds=CLOSED_S)
    used = {"yield_when": {"user_active": True, "quiet_s": QUIET_S}}
    a = {"only": f"{opens:%H:%M:%S}-{closes:%H:%M:%S}"} if window else used
    cause = f"outside its window until {opens:%H:%M}" if window else "input on a terminal"
    run = FarRun(lab, "shared", config(lab, a, used, 1_000_000))
    try:
        until(lambda: is_training(run, "a") and is_training(run, "b"), "both to train", OPEN_S if window else RUN_S)
        idle = ["agent", "template"]
        with ExitStack() as users:
            for host in (2,) if window else (1, 2):
                users.enter_context(typing_user(lab, host))
            until(lambda: run.host("b")["state"] == "away", lambda: str(run.host("b")))
            assert "input on a terminal" in run.host("b")["cause"]
            assert "in use by others: input" in run.command("status", str(run.run_dir))[1]
            until(lambda: run.host("a")["state"] == "away", lambda: str(run.host("a")))
            assert cause in run.host("a")["cause"]
            until(lambda: roles(lab.hosts[1], run.run_id) == ([] if window else idle), "the workers of a to end")
            until(lambda: roles(lab.hosts[2], run.run_id) == idle, "the agent of b to stay without workers")
        until(lambda: is_training(run, "a") and is_training(run, "b"), lambda: str(run.status()["hosts"]))
        assert run.command("stop", str(run.run_dir))[0] == 0
        code, _, err = run.end()
        summary = run.summary()
    finally:
        run.close()
    assert code == 0 and summary["ledger"]["balanced"], err
    assert err.count("back with 1 worker") == 2
    same = sha256_of_the_same_run(tmp_path / "same", config(lab, {}, {}, 0), summary["env_steps"])
    assert summary["weights_sha256"] == same
