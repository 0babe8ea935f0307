"""A run whose learner's host does not start, as a queued job: it ends at once on a stop, and after `limits.start_s`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.lab import Lab, lab_or_skip
from tests.support.marks import long
from tests.support.running import ROOT, Run, environment
from tests.support.runs.ssh_runs import FarRun, closed_at_the_end
from tests.support.yardstick import within

pytestmark = [pytest.mark.whole, pytest.mark.timed]
PENDING = '''
from typing import Any

from zmqrl.config.sections import Config
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator


class Pending(ShellOrchestrator):
    """Its command waits in place of Python."""

    @classmethod
    def shell(cls, config: Any, run: Config, host: str) -> PipedShell:
        return PipedShell(host, ["sh", "-c", "exec sleep 1000"])
'''
END_S = 5.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pending.py").write_text(PENDING)
    host = {"python": sys.executable, "workdir": str(tmp_path / "far"), "env": {"PYTHONPATH": str(ROOT)}}
    config = {
        "run": {"preset": "cartpole-ppo"},
        "hosts": {"local": {"workers": 1}, "far": {"workers": 1, **host}},
        "learner": {"host": "far"},
        "orchestrator": {"kind": "pending:Pending"},
        "store": {"path": str(tmp_path / "store")},
        "evaluator": {"episodes": 0},
    }
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def started(folder: Path, *words: str) -> Run:
    command = [sys.executable, "-m", "zmqrl", "launch", "hosts.yaml", "--run-dir", "run", "--plain", *words]
    path = {"PYTHONPATH": f"{folder}:{ROOT}"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, env=environment(path), stdout=pipe, stderr=pipe, text=True)
    return Run(process, folder / "run")


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    run = started(folder)
    yield run
    run.cut_short()


@pytest.mark.parametrize(("number", "status", "code"), [
    (signal.SIGINT, "interrupted", 130),
    long(signal.SIGTERM, "interrupted", 130),
    long(signal.SIGUSR1, "stopped", 0),
])  # fmt: skip
def test_one_signal_ends_it_at_once(run: Run, number: signal.Signals, status: str, code: int) -> None:
    run.wait_for(lambda: run.status().get("phase") == "starting")
    with within(END_S):
        run.process.send_signal(number)
        found, _, err = run.end()
    summary = run.summary()
    assert (found, summary["status"], summary["error"]) == (code, status, None), err


def test_it_ends_after_the_start_limit(folder: Path) -> None:
    run = started(folder, "--set", "limits.start_s=5")
    try:
        run.wait_for(lambda: run.status().get("phase") == "starting")
        with within(5.0 + END_S):
            code, _, err = run.end()
        assert (code, run.summary()["status"]) == (4, "failed"), err
        assert "the learner's host far did not start within limits.start_s (5 s)" in run.summary()["error"]
    finally:
        run.cut_short()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(1) as lab:
        lab.hosts[0].kill_sshd()
        lab.hosts[0].start_sshd({"ForceCommand": "exec cat > /dev/null"})
        yield lab


def test_over_ssh_a_host_that_does_not_answer_is_not_waited_for(lab: Lab) -> None:
    host = lab.hosts[0].hosts_yaml(workers=1)
    config = {
        "run": {"preset": "cartpole-ppo"},
        "hosts": lab.by_own_names({"local": {"workers": 1}, "far": host}),
        "learner": {"host": "far"},
        "evaluator": {"episodes": 0},
    }
    with closed_at_the_end() as runs:
        run = FarRun(lab, "unstarted", config)
        runs.append(run)
        run.wait_for(lambda: run.status().get("phase") == "starting")
        time.sleep(2.0)
        with within(END_S):
            run.process.send_signal(signal.SIGINT)
            code, out, err = run.end()
        assert (code, run.summary()["status"]) == (130, "interrupted"), f"{out}\n{err}"
