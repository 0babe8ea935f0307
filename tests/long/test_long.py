"""Drills, learning and soaks of minutes to an hour each: `make test-long`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import power_cut
from tests.running import ROOT, environment

HOUR_S = 3600
pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * HOUR_S)]
SOLVED = {"CartPole": 475, "Acrobot": -100, "LunarLander": 200}
"""Gymnasium's thresholds of the mean return of 100 episodes; Pendulum has none."""
PRESETS = {
    path.stem: threshold
    for path in sorted((ROOT / "zmqrl" / "presets").glob("*.yaml"))
    for env, threshold in SOLVED.items()
    if path.stem.startswith(env.lower())
}


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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_learns_with_three_seeds(tmp_path: Path, preset: str) -> None:
    folder, goal = tmp_path / "runs", f"run.stop_at_return={PRESETS[preset]}"
    words = ("--plain", "--seeds", 3, "--set", goal, "--run-dir", folder)
    python("-m", "zmqrl", "train", preset, *words, limit_s=2 * HOUR_S)
    summaries: list[dict[str, Any]] = [json.loads(path.read_text()) for path in folder.glob("*/summary.json")]
    assert len(summaries) == 3
    assert all(summary["solved_at_env_steps"] is not None for summary in summaries), summaries


def test_no_role_grows_in_fifteen_minutes() -> None:
    python("benchmarks/memory.py", 900, limit_s=HOUR_S)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_million_hostile_messages_do_no_harm(mode: str) -> None:
    python("benchmarks/fuzz.py", "--messages", 1_000_000, "--mode", mode, limit_s=HOUR_S)


def test_twenty_power_cuts_are_resumed() -> None:
    why = power_cut.why_not()
    if why is not None:
        pytest.skip(why)
    python("benchmarks/power_cut.py", "--cuts", 20, limit_s=HOUR_S)
