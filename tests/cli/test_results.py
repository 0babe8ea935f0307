"""`plot`, `bench`: what is made of finished runs."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.commands import Command
from tests.support.raising import compare
from zmqrl.bench.report import BenchResult, Figure
from zmqrl.cli.results import BENCHES


@pytest.fixture
def seeds(finished: Path, tmp_path: Path) -> Path:
    """The finished runs with three rows of metrics each: how many a short run writes depends on its time."""
    folder = tmp_path / "runs"
    shutil.copytree(finished, folder)
    for file in folder.glob("seed-*/metrics.jsonl"):
        row = next(row for row in map(json.loads, file.read_text().splitlines()) if "version" in row)
        rows = [
            {**row, "env_steps": row["env_steps"] * n, "wall_s": row["wall_s"] * n, "episodes": n} for n in (1, 2, 3)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.whole
def test_plot_draws_seeds_as_one_band(zmqrl: Command, seeds: Path, suffix: str) -> None:
    ended = zmqrl("plot", seeds, seeds / "seed-1", "--out", f"curve.{suffix}")
    assert ended.code == 0, ended.err
    content = Path(f"curve.{suffix}").read_bytes()
    assert (b"PNG" in content[:8]) if suffix == "png" else (b"<svg" in content[:1000])


@pytest.mark.whole
def test_plot_of_a_metric_with_labels_and_csv(zmqrl: Command, seeds: Path) -> None:
    runs, options = (f"{seeds}/seed=both", f"{seeds}/seed-1=one"), ("--csv", "c.csv", "--smooth", "2")
    ended = zmqrl("plot", *runs, "--metric", "version", "--metric", "updates", "--x", "episodes", "--final", *options)
    assert ended.code == 0, ended.err
    assert ended.out.split() == ["returns.png", "c.csv"]
    with Path("c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["label"], row["metric"], row["axis"], row["runs"]) for row in rows} == {
        (label, metric, axis, runs)
        for label, runs in (("both", "2"), ("one", "1"))
        for metric in ("version", "updates")
        for axis in ("episodes", "final")
    }
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    ended = zmqrl("plot", seeds, "--metric", "versoin")
    assert ended.code == 2
    compare(ended.error, fix="did you mean 'version'?")


def test_plot_checks_all_its_files_before_it_writes_one(zmqrl: Command, seeds: Path) -> None:
    Path("folder").mkdir()
    ended = zmqrl("plot", seeds, "--csv", "folder")
    assert (ended.code, ended.out) == (2, "")
    compare(ended.error, key=("--csv",), value="folder")
    assert not Path("returns.png").exists()


def test_plot_names_the_part_of_its_argument_that_is_missing(zmqrl: Command, seeds: Path) -> None:
    compare(zmqrl("plot", "=label").error, source="=label", what="RUN is missing")
    compare(zmqrl("plot", f"{seeds}=").error, source=f"{seeds}=", what="LABEL is missing")


@pytest.mark.parametrize("python", ["/nope/python", "/etc/passwd", "without"])
def test_the_baseline_of_a_benchmark_is_checked_before_its_first_run(
    zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    without = tmp_path / "without"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    without.chmod(0o755)
    monkeypatch.setattr("zmqrl.bench.e2e.run_preset", lambda *_, **__: pytest.fail("a run was started"))
    ended = zmqrl("bench", "e2e", "--sb3-python", tmp_path / python)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    compare(ended.error, key=("--sb3-python",), value=str(tmp_path / python))


@pytest.mark.parametrize("out", ["curve.bmp", "nowhere/curve.png"])
def test_plot_that_cannot_be_written(zmqrl: Command, seeds: Path, out: str) -> None:
    ended = zmqrl("plot", seeds, "--out", out)
    assert ended.code == 2
    compare(ended.error, key=("--out",), value=out)
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


def test_bench_all_prints_one_table_and_one_list(zmqrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[dict[str, object]] = []
    for name in BENCHES:
        figures = [Figure(f"figure of {name}", "ms", (1.0, 3.0, 2.5))]
        result = BenchResult(name, figures, ratios=[Figure("ratio", "", (2e4,))])
        monkeypatch.setattr(f"zmqrl.bench.{name}.run", lambda result=result, **given: requested.append(given) or result)
    ended = zmqrl("bench", "all", "--quick")
    assert requested == [{"repeats": 1}, {"repeats": 1}, {"repeats": 1, "seeds": 1}]
    assert [row.split() for row in ended.err.splitlines()[:2]] == [
        ["bus", "figure", "of", "bus", "2.5", "ms"],
        ["bus", "ratio", "20,000"],
    ]
    assert [data["figures"]["ratio"]["median"] for data in json.loads(ended.out)] == [2e4] * 3
    for wrong in (("all", "--quick", "--repeats", "2"), ("bus", "--sb3-python", "/py")):
        assert zmqrl("bench", *wrong).code == 2


def test_an_upload_of_a_folder_is_of_its_runs(zmqrl: Command, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [finished / name for name in ("seed-1", "seed-2")]
    closed = SimpleNamespace(close=lambda _: None)

    def upload(service: str, run: str, *_: object) -> tuple[SimpleNamespace, None]:
        found = SimpleNamespace(directory=Path(run), id=service)
        return SimpleNamespace(run=found, sent=0, step=lambda: None, is_waiting=False, destination=closed), None

    monkeypatch.setattr("zmqrl.cli.upload._upload", upload)
    ended = zmqrl("upload", "wandb", finished, runs[0])
    assert ended.out.splitlines() == [f"{run}: 0 new rows in wandb, wandb" for run in runs]


def test_status_prints_figures_for_prometheus(zmqrl: Command, finished: Path) -> None:
    printed = zmqrl("status", finished / "seed-2" / ".." / "seed-1", "--prometheus")
    labels = f'{{run="{finished / "seed-1"}",env="CartPole-v1",algorithm="zmqrl.bench.noop:NoUpdate",host="'
    assert printed.code == 0 and printed.out.startswith("# HELP zmqrl_run_live ")
    assert f"zmqrl_run_exit_code{labels}" in printed.out
    for option in ("-f", "--json"):
        assert zmqrl("status", finished / "seed-1", "--prometheus", option).code == 2
