"""`run_of_0_2` was written by zmqrl 0.2 (commit a7280e79): CartPole PPO in mode single, 8 hidden units."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.support.runs.command_runs import resume, summary, zmqrl
from zmqrl.planning.configure import load_config

MADE = Path(__file__).with_name("run_of_0_2")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    shutil.copytree(MADE, tmp_path / "run")
    run = json.loads((MADE / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**run, "host": socket.gethostname()}))
    return tmp_path / "run"


def test_a_run_of_0_2_is_resumed(run_dir: Path) -> None:
    stored = json.loads((run_dir / "config.json").read_text())
    assert stored["format_version"] == 1 and stored["config"]["algorithm"]["clip_schedule"] == "linear"
    rows = (run_dir / "metrics.jsonl").read_text()
    printed = resume(run_dir, 1500)
    assert "algorithm.learning_rate_schedule is now a part of algorithm.learning_rate" in printed
    done, now = summary(run_dir), json.loads((run_dir / "config.json").read_text())
    assert done["resumed_from"]["env_steps"] == 738 and done["resumed_from"]["version"] == "0-3"
    assert done["env_steps"] >= 1500 and done["ledger"]["balanced"] and done["attempts"] == 2
    assert done["updates"] > 6 and done["episodes"] > 30, "counters continue"
    assert now["format_version"] == 2 and now["config"]["algorithm"]["clip"]["end"] == 0.0
    assert (run_dir / "metrics.jsonl").read_text().startswith(rows)


def test_its_best_version_is_scored_and_nothing_changes(run_dir: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert "version 0-2" in zmqrl("eval", run_dir, "--episodes", 1, at=run_dir.parent)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_a_hosts_file_of_0_2_has_the_present_keys(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(
        "run: {preset: cartpole-ppo}\n"
        "algorithm: {kind: ppo, learning_rate: 1e-3, learning_rate_schedule: linear, clip_schedule: constant}\n"
        "segment_transport: {kind: zmq}\n"
        "hosts: {local: {workers: 2}}\n"
    )
    config = load_config(hosts_file=file)
    assert config.memory_backend.kind == "zmq"
    assert config.algorithm["learning_rate"]["start"] == 1e-3 and config.algorithm["clip"] == 0.2
