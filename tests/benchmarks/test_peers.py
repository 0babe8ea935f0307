"""The harness beside other systems: what counts as a step, what ends a system, and the table of recorded runs."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import page
from benchmarks.peers.cases import CASES, COMMANDS
from benchmarks.peers.logged import EVERY, FOLDER, cartpole
from benchmarks.peers.measure import Running
from benchmarks.peers.steps import LAST, RECORDS, Steps
from tests.support.running import ROOT
from tests.support.waiting import until

TREE = """
import subprocess, sys, time
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(away.pid, flush=True)
time.sleep(600)
"""
"""A system with a process in another session."""
PARENT = """
import os, sys, time
from pathlib import Path
from benchmarks.peers.guard import descendants
from benchmarks.peers.measure import Running
running = Running([sys.executable, "-c", sys.argv[1]], os.environ, Path(sys.argv[2]))
print("started", flush=True)
time.sleep(600)
"""


def env_of(*records: tuple[float, int, float]) -> Any:
    return np.array(list(records), RECORDS)


def row(case: str, system: str, seed: int, value: float | None) -> dict[str, Any]:
    known = {"run": "2026-01-01T00:00:00Z", "commit": "abc", "machine": "a CPU, 2 cores", "packages": "torch 1"}
    figures = {"first_step_s": 2.0, "env_steps": 1, "wall_s": 1.0, "cpu_s": 1.0, "load": 0.5}
    named = {"version": "1.0", "case": case, "system": system, "seed": seed, "value": value}
    return {**known, **figures, **named}


def test_every_step_and_episode_of_an_env_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    envs = [cartpole(), cartpole()]  # the second is never stepped
    envs[0].reset(seed=1)
    returns, length = [], 0.0
    for step in range(3 * EVERY):
        _, reward, terminated, truncated, _ = envs[0].step(step % 2)
        length += float(reward)
        if terminated or truncated:
            returns.append(length)
            length = 0.0
            envs[0].reset()
    (found,) = Steps.read(tmp_path, "").envs
    assert len(list(tmp_path.iterdir())) == 2 and len(returns) > 0
    assert {1, EVERY, 2 * EVERY, 3 * EVERY} <= set(found["steps"]) and Steps([found]).total == 3 * EVERY
    assert found["returned"][~np.isnan(found["returned"])].tolist() == returns
    assert Steps.read(tmp_path, "zmqrl.worker") == Steps([])  # as the env that a launcher checks


def test_the_target_is_reached_at_the_end_of_the_episode_that_completes_the_mean() -> None:
    nan = math.nan
    one = env_of(*((float(n), 10 * n, 500.0 if n > 50 else 0.0) for n in range(1, 101)))
    other = env_of(*((n + 0.5, 10 * n, 500.0 if n > 50 else nan) for n in range(1, 101)))
    assert Steps([one]).reached(1.0) == 100.0 and LAST == 100  # 100 episodes at first
    assert Steps([one]).reached(251.0) is None
    assert Steps([one, other]).reached(475.0) == 98.0  # of 145 episodes by then, 95 of the last 100 returned 500
    assert Steps([]).reached(0.0) is None and Steps([]).first is None


def test_the_rate_is_of_each_env_between_its_records() -> None:
    nan = math.nan
    one = env_of((0.0, 1, nan), (5.0, 32, nan), (10.0, 64, nan), (16.0, 96, nan))
    other = env_of((5.0, 100, nan), (7.0, 120, nan))
    assert Steps([one, other]).rate(5.0, 15.0) == 32 / 5 + 10


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_system_ends_with_the_with_and_its_cpu_time_is_known(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Running([sys.executable, "-c", TREE], os.environ, log) as running:
        until(lambda: log.read_text().strip().isdigit())
        assert running.is_alive and running.memory_mb() > 1
    assert not is_running(int(log.read_text())) and running.cpu_s > 0


def test_a_system_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-c", PARENT, TREE, str(log)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
        until(lambda: log.read_text().strip().isdigit())
        pid = int(log.read_text())  # what lost its pipe writes to the log too
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_running(pid))


def test_the_table_has_medians_and_ratios_of_pairs() -> None:
    rows = [row("475-sync", "zmqrl", seed, 2.0 * seed) for seed in (1, 2, 3)]
    rows += [row("475-sync", "stable-baselines3", seed, value) for seed, value in ((1, 8.0), (2, 8.0), (3, 9.0))]
    rows += [row("475-async", "zmqrl", 1, 4.0), row("475-async", "sample-factory", 1, None)]
    rows += [row("dqn", "zmqrl", 1, 1234.0), row("dqn", "stable-baselines3", 1, 617.0)]
    found = page.table(page.lines(rows)).splitlines()[2:]
    title = {case.name: f"{case.title} [{case.unit}]" for case in CASES}
    assert found[:6] == [
        f"| {title['475-async']} | zmqrl 1.0 | 4 | 4 |  |",
        "|  | sample-factory 1.0 | - | - |  |",
        f"| {title['475-sync']} | zmqrl 1.0 | 4 | 2, 4, 6 |  |",
        "|  | stable-baselines3 1.0 | 8 | 8, 8, 9 | 2.00x |",
        f"| {title['dqn']} | zmqrl 1.0 | 1,234 | 1,234 |  |",
        "|  | stable-baselines3 1.0 | 617 | 617 | 2.00x |",
    ]
    assert [text.split(" | ")[1] for text in found[6:]] == ["zmqrl 1.0", "stable-baselines3 1.0", "sample-factory 1.0"]


def test_the_page_is_current() -> None:
    rows = command.recorded(command.RESULTS)
    assert command.PAGE.read_text() == page.page(rows), "run: python -m benchmarks.peers --no-runs"
    assert {row["system"] for row in rows} <= set(COMMANDS)


def test_the_page_and_its_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--no-runs", "--out", str(command.RESULTS), "--page", str(tmp_path / "page.md")]
    assert command.main(words) == 0
    assert (tmp_path / "page.md").read_text() == command.PAGE.read_text()
    assert "</svg>" in (tmp_path / page.PICTURE).read_text()
    assert "| zmqrl " in capsys.readouterr().out
