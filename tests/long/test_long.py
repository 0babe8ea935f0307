"""Drills, learning and soaks of minutes to an hour each: `make test-long`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import power_cut, scores
from tests.lab import lab_or_skip
from tests.support.running import ROOT, environment

HOUR_S = 3600
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * HOUR_S)]


def python(*words: object, limit_s: float) -> str:
    """A command that ends well; what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_every_scenario_is_drilled_for_an_hour_in_all(tmp_path: Path) -> None:
    out = python("-m", "zmqrl", "drill", "--long", "--run-dir", tmp_path / "d", limit_s=2 * HOUR_S)
    assert "no row lost, no row stored twice, all processes recovered" in out


@pytest.mark.parametrize("row", scores.TABLE, ids=lambda row: row.preset)
def test_a_preset_reaches_its_score(tmp_path: Path, row: scores.Row) -> None:
    """The median of its seeds; without a bar the scores are printed."""
    out = python(
        "-m",
        "benchmarks.scores",
        row.preset,
        "--out",
        tmp_path / "results",
        "--page",
        tmp_path / "page",
        limit_s=2 * HOUR_S,
    )
    (line,) = (line for line in out.splitlines() if line.startswith(f"| {row.preset} |"))
    _, _, _, found, median, verdict, *_ = (cell.strip() for cell in line.split("|"))
    assert verdict == "-" if row.bar is None else verdict.endswith(": met"), line
    assert len(found.split(", ")) == row.seeds and math.isfinite(float(median)), line


@pytest.mark.parametrize(
    ("env", "algorithm", "total", "least"),
    [("CartPole-v1", "ppo", 150_000, 475), ("CartPole-v1", "dqn", 300_000, 400), ("Pendulum-v1", "sac", 20_000, -250)],
)
def test_the_settings_without_a_preset_learn(
    tmp_path: Path, env: str, algorithm: str, total: int, least: float
) -> None:
    """The best version of one seed, played greedily."""
    run = ("train", "--env", env, "--algo", algorithm, "--run-dir", tmp_path / "r", "--plain")
    python("-m", "zmqrl", *run, "--set", f"run.total_env_steps={total}", limit_s=HOUR_S)
    score = json.loads(python("-m", "zmqrl", "eval", tmp_path / "r", "--json", limit_s=HOUR_S))
    assert score["return_mean"] >= least


def test_no_role_grows_in_fifteen_minutes() -> None:
    python("benchmarks/memory.py", 900, limit_s=HOUR_S)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_million_hostile_messages_do_no_harm(mode: str) -> None:
    python("benchmarks/fuzz.py", "--messages", 1_000_000, "--mode", mode, limit_s=HOUR_S)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_twenty_hosts_of_which_one_crashes_every_20_s_for_ten_minutes(tmp_path: Path, mode: str) -> None:
    """Present, back in time, nothing lost or stored twice, one more joins, in sync the same bits."""
    with lab_or_skip(1, isolated=True):
        pass
    report = tmp_path / "soak.json"
    python("-m", "benchmarks.soak", "--hosts", 20, "--mode", mode, "--for", 600, "--json", report, limit_s=HOUR_S)
    found = json.loads(report.read_text())
    assert (found["failed"], found["lost"], found["doubled"]) == ([], 0, 0)
    assert found["faults"] >= 29 and found["commit"]


def test_twenty_power_cuts_are_resumed() -> None:
    why = power_cut.why_not()
    if why is not None:
        pytest.skip(why)
    python("benchmarks/power_cut.py", "--cuts", 20, limit_s=HOUR_S)
