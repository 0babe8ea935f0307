"""`plot`, `bench`: what is made of finished runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.commands import Command


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
