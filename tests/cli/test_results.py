"""`eval`, `plot`, `bench`: what is made of finished runs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.commands import Command


@pytest.mark.whole
def test_eval_plays_the_best_checkpoint_the_same_each_time(zmqrl: Command, finished: Path) -> None:
    first = zmqrl("eval", finished / "seed-1", "--episodes", "3", "--seed", "4")
    assert first.code == 0
    assert re.fullmatch(r"version \d+-\d+: return [\d.]+ \+- [\d.]+ over 3 greedy episodes\n", first.out)
    assert zmqrl("eval", finished / "seed-1", "--episodes", "3", "--seed", "4").out == first.out


@pytest.mark.whole
def test_eval_as_json(zmqrl: Command, finished: Path) -> None:
    arguments = ("eval", finished / "seed-1", "--episodes", "3", "--seed", "4")
    score, line = json.loads(zmqrl(*arguments, "--json").out), zmqrl(*arguments).out
    assert line == (
        f"version {score['version']}: return {score['return_mean']:.2f} +- {score['return_std']:.2f} "
        "over 3 greedy episodes\n"
    )
    assert score["run_dir"] == str(finished / "seed-1") and (score["episodes"], score["seed"]) == (3, 4)
    assert sum(score["returns"]) / 3 == pytest.approx(score["return_mean"])


def test_eval_of_the_folder_of_seeds_names_the_runs_and_a_command(zmqrl: Command, finished: Path) -> None:
    ended = zmqrl("eval", finished, "--episodes", "1")
    assert ended.code == 2
    assert "seed-1, seed-2" in ended.err
    assert f"zmqrl eval {finished}/seed-1" in ended.err
    assert zmqrl("eval", finished / "seed-1", "--episodes", "1").code == 0


def test_eval_of_a_run_without_a_checkpoint(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "seed-1" / "config.json", tmp_path)
    ended = zmqrl("eval", tmp_path)
    assert ended.code == 1
    assert "no version" in ended.err


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_draws_seeds_as_one_band(zmqrl: Command, finished: Path, suffix: str) -> None:
    ended = zmqrl("plot", finished, finished / "seed-1", "--out", f"curve.{suffix}")
    assert ended.code == 0, ended.err
    content = Path(f"curve.{suffix}").read_bytes()
    assert (b"PNG" in content[:8]) if suffix == "png" else (b"<svg" in content[:1000])


@pytest.mark.parametrize("out", ["curve.bmp", "nowhere/curve.png"])
def test_plot_that_cannot_be_written(zmqrl: Command, finished: Path, out: str) -> None:
    ended = zmqrl("plot", finished, "--out", out)
    assert ended.code == 2
    assert out in ended.err
    assert ended.err.count("\n") == 1


def test_bench_passes_its_options_on(zmqrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[dict[str, object]] = []

    def run(**options: object) -> SimpleNamespace:
        requested.append(options)
        return SimpleNamespace(print=lambda: print("{}"))

    monkeypatch.setattr("zmqrl.bench.e2e.run", run)
    assert zmqrl("bench", "e2e", "--repeats", "2", "--sb3-python", "/py").out == "{}\n"
    assert zmqrl("bench", "e2e").code == 0
    assert requested == [{"repeats": 2, "sb3_python": "/py"}, {}]
