"""`zmqrl down` over real SSH, of a run whose launcher is gone: what is left on each host, and one that is not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Host, Lab, Process, lab_or_skip
from tests.support.waiting import WAIT_S, until
from zmqrl.config.sections import Config, HostSection, SshSection
from zmqrl.run_files.stored_config import stored_config

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
DOOMED, OTHER = "walker-6a2b", "walker-6a2c"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(3, isolated=True) as lab:
        yield lab


def held(host: Host, run_id: str) -> list[Process]:
    """What runs there of a run, without the shells that started it."""
    return [process for process in host.processes(run_id) if process.argv[1:3] == ("-m", "zmqrl.entry")]


def leave(host: Host, run_id: str, role: str, index: int, stopped: bool = False) -> None:
    """A real process of a run that waits for its boot line, as one that an agent left behind."""
    argv = f"{sys.executable} -m zmqrl.entry zmqrl.{role} {run_id} {index}"
    started = host.run("sh", "-c", f"(sleep 600 | PYTHONPATH={ROOT} {argv}) >/dev/null 2>&1 & echo begun")
    assert started.stdout == "begun\n", started.stderr
    found = until(lambda: held(host, run_id), "the process", WAIT_S)
    if stopped:
        for process in found:
            os.kill(process.pid, signal.SIGSTOP)


def run_directory(tmp_path: Path, lab: Lab) -> Path:
    """Of a launcher that was killed."""
    directory = tmp_path / "run"
    directory.mkdir()
    hosts = {name: HostSection(**host) for name, host in lab.hosts_yaml().items()}
    config = Config(hosts=hosts, ssh=SshSection(connect_timeout_s=2.0))
    (directory / "config.json").write_text(json.dumps(stored_config(config)))
    info = {"run_id": DOOMED, "pid": 2**22 - 1, "start_time": 1, "host": socket.gethostname(), "started_at": 0.0}
    (directory / "run.json").write_text(json.dumps({**info, "preset": None}))
    return directory


def down(lab: Lab, directory: Path, *arguments: str) -> tuple[int, list[str], str]:
    command = [sys.executable, "-m", "zmqrl", "down", str(directory), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with lab.run_here(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out.splitlines(), err


def test_each_host_is_queried_and_what_is_gone_is_verified(lab: Lab, tmp_path: Path) -> None:
    first, second, _ = lab.hosts
    leave(first, DOOMED, "learner", 0)
    leave(second, DOOMED, "worker", 3, stopped=True)
    leave(second, OTHER, "worker", 3)
    kept = second.tmp / "zmqrl" / "runs"
    (kept / DOOMED / "h1" / "logs").mkdir(parents=True)
    (kept / OTHER / "h1").mkdir(parents=True)
    lab.power_off(2)
    directory = run_directory(tmp_path, lab)
    code, lines, errors = down(lab, directory)
    assert code == 3, errors
    assert lines[:3] == [f"run {DOOMED}:", "  launcher: 0 processes left", "  local: 0 processes left"]
    reports = {line.split(":")[0].strip(): line for line in lines[3:]}
    assert "ended learner-0 (pid" in reports["h0"]
    assert "killed worker-3 (pid" in reports["h1"]
    assert "NOT VERIFIED" in reports["h2"]
    assert errors.splitlines()[0] == f"zmqrl: not verified as ended: {DOOMED} on h2"
    assert [held(first, DOOMED), held(second, DOOMED), len(held(second, OTHER))] == [[], [], 1]
    assert os.listdir(kept) == [OTHER]
    code, lines, errors = down(lab, directory, "--limit", "h0,h1")
    assert (code, sorted(lines[1:])) == (0, ["  h0: 0 processes left", "  h1: 0 processes left"]), errors
