"""`zmqrl doctor` as a shell sees it, on this machine alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def doctor(folder: Path, text: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "hosts.yaml").write_text(text)
    command = [sys.executable, "-m", "zmqrl", "doctor", "hosts.yaml", *options]
    here = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", **env}
    return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=WAIT_S)


def test_a_sound_machine_is_a_table_and_exit_code_0(tmp_path: Path) -> None:
    ended = doctor(tmp_path, "run: {preset: cartpole-ppo}\nhosts: {local: {workers: 1}}\n")
    head, row, *_ = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stdout
    assert head.split()[:3] == ["host", "state", "python"] and row.startswith("local ")
    assert "ports" not in head and "store" not in head  # nothing is to be known of them here
    assert ended.stdout.splitlines()[-1].endswith(": no faults")
    assert [path.name for path in tmp_path.iterdir()] == ["hosts.yaml"]


def test_a_blocking_condition_gives_exit_code_2(tmp_path: Path) -> None:
    text = (
        "run: {preset: cartpole-ppo}\nenv: {id: 'odd_env:Env', max_episode_steps: 100}\nhosts: {local: {workers: 1}}\n"
    )
    ended = doctor(tmp_path, text, "--json", ODD_ENV="import")
    faults = json.loads(ended.stdout)["faults"]
    assert ended.returncode == 2
    assert {(fault["host"], fault["check"]) for fault in faults} == {("local", "env"), ("launcher", "configuration")}
    assert all("licence" in fault["cause"] for fault in faults)


def test_bad_configuration_gives_one_message(tmp_path: Path) -> None:
    ended = doctor(tmp_path, "hosts: {local: {worker: 1}}\n")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("zmqrl: hosts.yaml:1") and "did you mean 'workers'?" in ended.stderr
    limited = doctor(tmp_path, "hosts: {local: {workers: 1}}\n", "--limit", "node07")
    assert limited.returncode == 2 and "--limit node07: unknown host or group" in limited.stderr


def test_a_taken_port_of_the_learners_host_and_a_refused_worker(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = min(taken.getsockname()[1], 65533)
        text = (
            f"run: {{preset: cartpole-ppo}}\nlearner: {{port: {port}}}\n"
            "hosts: {local: {workers: 0}, later: {manual: true, workers: 1}, "
            "far: {ssh: 127.0.0.1, port: 1, workers: 1}}\n"
        )
        ended = doctor(tmp_path, text)
    assert ended.returncode == 2
    lines = ended.stdout.splitlines()
    assert any(line.startswith("later  manual") for line in lines)
    assert f"local: ports: cannot listen: port {port}: Address already in use by pid {os.getpid()}" in ended.stdout
    assert "far: ssh: 127.0.0.1:1 refused the connection" in ended.stdout
    assert lines[-1].startswith("2 hosts examined: 2 faults preventing a launch")


def test_a_run_on_this_machine_alone_imports_no_paramiko(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("run: {preset: cartpole-ppo}\nhosts: {local: {workers: 1}}\n")
    code = (
        "import sys; sys.argv[1:] = ['doctor', 'hosts.yaml', '--json']\n"
        "from zmqrl.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in ('paramiko', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout.splitlines()[-1] == "[]"
