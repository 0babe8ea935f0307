"""The table of scores: every preset is in it, and finished runs are not run again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import scores
from tests.support.running import ROOT

UNSCORED = {"pendulum-ppo"}
"""300,000 env steps, in no other table either."""


def measure(preset: str, folder: Path) -> int:
    files = ("out", "page", "package")
    return scores.main([preset, *(word for file in files for word in (f"--{file}", str(folder / file)))])


def test_every_preset_has_a_bar() -> None:
    presets = {path.stem for path in (ROOT / "zmqrl" / "presets").glob("*.yaml")}
    assert {row.preset for row in scores.TABLE} == presets - UNSCORED


def test_the_page_is_current() -> None:
    expected = scores.HEAD + scores.table(scores.finished(scores.RESULTS)) + "\n"
    assert scores.PAGE.read_text() == expected, "run: python -m benchmarks.scores --no-runs"


def test_the_package_has_the_scores() -> None:
    found = json.loads(scores.OF_PACKAGE.read_text())
    assert found == scores.of_package(scores.finished(scores.RESULTS)), "run: python -m benchmarks.scores --no-runs"


def test_what_is_finished_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[str, int]] = []

    def train(row: scores.Row, seed: int, commit: str) -> scores.Result:
        trained.append((row.preset, seed))
        return scores.Result(commit, row.preset, row.env_steps, seed, 470.0 + 5 * seed, 0.0, "0-9", 480.0, 1.0, 450.0)

    monkeypatch.setattr(scores, "train", train)
    out = tmp_path / "out"
    earlier = asdict(scores.Result("abc", "cartpole-ppo", 500_000, 2, 460.0, 0.0, "0-3", 400.0, 1.0))
    del earlier["last_score"]  # of a run before it was measured
    out.write_text(json.dumps(earlier) + "\n")
    assert measure("cartpole-ppo", tmp_path) == 0
    assert trained == [("cartpole-ppo", 1), ("cartpole-ppo", 3)]
    row = capsys.readouterr().out.splitlines()[-1]
    scored = "cartpole-ppo | 500,000 | 475.0, 460.0, 485.0 | 475.0 | 475: met"
    assert row == f"| {scored} | 450.0, -, 450.0 | 480.0, 400.0, 480.0 | rl-zoo 500.0 |"


def test_the_shortest_rows_are_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was measured; a row without results, by its estimate."""
    trained: list[str] = []

    def train(row: scores.Row, seed: int, commit: str) -> scores.Result:
        trained.append(row.preset)
        return scores.Result(commit, row.preset, row.env_steps, seed, 1.0, 0.0, "0-9", 1.0, 1.0)

    monkeypatch.setattr(scores, "train", train)
    monkeypatch.setattr(scores, "TABLE", [scores.Row(name, 1, None, "", 2, minutes=3.0) for name in "abc"])
    earlier = [scores.Result("", name, 1, 1, 1.0, 0.0, "", 1.0, wall_s) for name, wall_s in (("a", 600.0), ("c", 60.0))]
    (tmp_path / "out").write_text("".join(json.dumps(asdict(one)) + "\n" for one in earlier))
    files = ("out", "page", "package")
    assert scores.main([word for file in files for word in (f"--{file}", str(tmp_path / file))]) == 0
    assert trained == ["c", "b", "b", "a"]


def test_a_yardstick_is_run_too_and_makes_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(name: str, seed: int, score: float) -> scores.Result:
        return scores.Result("abc", name, 100_000, seed, score, 0.0, "0-9", None if " " in name else 480.0, 1.0)

    monkeypatch.setattr(scores, "train", lambda row, seed, _: result(row.preset, seed, 3000.0 + seed))
    other = "stable-baselines3 HalfCheetah-v5"
    monkeypatch.setattr(scores, "train_yardstick", lambda row, seed, _: result(other, seed, 3500.0 + 500 * seed))
    assert measure("halfcheetah-sac", tmp_path) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert "| 3001.0, 3002.0, 3003.0 | 3002.0 | 3200: MISSED | - |" in row
    assert "SAC of Stable-Baselines3: 4000.0, 4500.0 (bar: 0.8 of the lower)" in row


def test_an_unknown_preset_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        measure("cartpole", tmp_path)
    assert "unknown: cartpole; known: acrobot-dqn, " in capsys.readouterr().err
