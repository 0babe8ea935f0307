"""Learning compared with Stable-Baselines3: curves of runs, what seeds show together, the page of recorded runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks.learning import __main__ as command
from benchmarks.learning import page
from benchmarks.learning.cases import CASES, case_of, words_of
from benchmarks.learning.curve import POINTS, Point, curve, interval, iqm, score_at
from benchmarks.peers.steps import RECORDS, Steps
from benchmarks.scores import finished

NAN = math.nan


def steps_of(*envs: list[tuple[float, int, float]]) -> Steps:
    return Steps([np.array(records, RECORDS) for records in envs])


def row(case: str, system: str, seed: int, score: float, points: list[list[float]]) -> dict[str, Any]:
    return {"commit": "abc", "case": case, "system": system, "seed": seed, "score": score, "curve": points}


def test_a_curve_has_the_mean_return_of_the_last_episodes_over_the_steps_of_all_envs() -> None:
    one = [(11.0, 10, 1.0), (12.0, 20, 2.0), (13.0, 32, NAN)]
    other = [(11.5, 5, NAN), (12.5, 15, 6.0)]
    assert curve(steps_of(one, other), 10.0) == [Point(10, 1.0, 1.0), Point(25, 2.0, 1.5), Point(35, 2.5, 3.0)]
    many = curve(steps_of([(float(n), 10 * n, float(n)) for n in range(1, 1001)]), 0.0)
    assert len(many) == POINTS and many[-1] == Point(10_000, 1000.0, 950.5)  # of the last 100
    assert many[0] == Point(200, 20.0, 10.5)  # of all 20


def test_a_score_at_a_moment_is_that_of_the_last_point_before() -> None:
    points = [Point(10, 1.0, 5.0), Point(20, 4.0, 7.0)]
    assert [score_at(points, "env_steps", mark) for mark in (9, 10, 19, 99)] == [None, 5.0, 5.0, 7.0]
    assert score_at(points, "wall_s", 3.9) == 5.0


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert iqm([0.0, 1.0, 3.0, 1000.0]) == 2.0
    assert iqm([-1000.0, 1.0, 3.0]) == pytest.approx(2 * (-1000 / 12 + 1 / 3 + 3 / 12))
    low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    assert 2.0 < low < iqm(range(1, 11)) < high < 9.0 and interval([4.0] * 10) == (4.0, 4.0)


def test_the_tables_have_every_seed_and_compare_at_equal_steps_and_times() -> None:
    rows = []
    for seed in (1, 2, 3):
        rows.append(row("acrobot-ppo", "zmqrl", seed, -80.0, [[125_000, 10.0, -100.0], [250_000, 20.0, -90.0]]))
        peer = [[62_500, 10.0, -400.0], [250_000, 40.0, -90.0]]
        rows.append(row("acrobot-ppo", "stable-baselines3", seed, -85.0, peer))
        rows.append(row("taxi", "zmqrl", seed, -100.0 + seed, [[100_000, 9.0, -100.0]]))
        rows.append(row("taxi", "stable-baselines3", seed, -200.0 + seed, [[100_000, 90.0, -200.0]]))
    rows.append({"case": "taxi", "system": "random", "seed": 1, "score": -298.0})
    text = page.page(rows)
    assert (
        "| acrobot-ppo | 125,000 env steps | -100.0 (-100.0 to -100.0) | -400.0 (-400.0 to -400.0) | 3 and 3 |" in text
    )
    assert "| acrobot-ppo | 20 s | -90.0 (-90.0 to -90.0) | -400.0 (-400.0 to -400.0) | 3 and 3 |" in text
    assert "| acrobot-ppo | 5 s | - | - | 3 and 3 |" in text
    seeds = "-99.0, -98.0, -97.0 | -199.0, -198.0, -197.0"
    assert f"| Taxi-v4 | PPO | 100,000 | -298.0 | {seeds} | 2.00 | 9 s, 90 s |" in text


def test_the_page_is_current() -> None:
    assert command.PAGE.read_text() == page.page(finished(command.RESULTS)), (
        "run: python -m benchmarks.learning --no-runs"
    )


def test_a_finished_run_is_not_run_again_and_the_systems_alternate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []

    def train(case: object, system: str, seed: int) -> tuple[list[Point], float]:
        trained.append((system, seed))
        return [Point(50_000, 3.0, 1.0)], 1.0

    monkeypatch.setattr(command, "train", train)
    monkeypatch.setattr(command, "play_random", lambda case: -33.0)
    out = tmp_path / "out"
    out.write_text(json.dumps(row("mountaincar-continuous", "stable-baselines3", 1, 0.0, [[50_000, 3.0, 0.0]])) + "\n")
    words = ["mountaincar-continuous", "--out", str(out), "--page", str(tmp_path / "page")]
    assert command.main(words) == 0
    peer = "stable-baselines3"
    assert trained == [("zmqrl", 1), (peer, 2), ("zmqrl", 2), ("zmqrl", 3), (peer, 3)]
    assert "| -33.0 | 1.0, 1.0, 1.0 | 0.0, 1.0, 1.0 | 1.00 | 3 s, 3 s |" in (tmp_path / "page").read_text()


def test_every_case_names_an_env_and_a_preset_that_exist() -> None:
    for case in CASES:
        words = words_of(case, 1, "run", "benchmarks.peers.logged:Logged")
        assert (case.preset in words) == (case.part == "presets")
        if ":" not in case.env:
            gymnasium.spec(case.env)
    assert [case_of(case.name) for case in CASES] == list(CASES)
