"""`zmqrl export RUN DIR --to csv`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.metrics.test_attempts import recorded
from tests.support.raising import raises
from zmqrl.errors import ConfigError
from zmqrl.planning.exported import export_csv


def test_the_rows_that_count_with_a_column_per_figure(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [(1, 1.0, 10, "loss"), (1, 2.0, 20, "loss"), (2, 1.5, 15, "cost, of all")])
    (run / "episodes.csv").write_text("attempt,return\n1,2.5\n")
    written = export_csv(run, tmp_path / "tables")
    assert [path.name for path in written] == ["metrics.csv", "episodes.csv"]
    with written[0].open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["wall_s", "env_steps", "attempt", "loss", "cost, of all"],
            ["1.0", "10", "1", "1.0", ""],
            ["1.5", "15", "2", "", "2.0"],
        ]
    assert written[1].read_text() == (run / "episodes.csv").read_text()
    with raises(ConfigError, value=str(written[0]), what="exists", fix="name a new directory"):
        export_csv(run, tmp_path / "tables")
    with pytest.raises(ConfigError):
        export_csv(tmp_path, tmp_path / "others")


def test_a_folder_of_runs_is_one_table_with_their_names_and_seeds(tmp_path: Path) -> None:
    rows = [(1, 1.0, 10, "loss"), (1, 2.0, 20, "loss"), (2, 1.0, 15, "b")]
    for seed in (10, 9):
        run = recorded(tmp_path / "lr" / f"seed-{seed}", rows)
        (run / "config.json").write_text(json.dumps({"config": {"run": {"seed": seed}}}))
        (run / "run.json").write_text("{}")
    (run / "episodes.csv").write_text("attempt,return\n1,2.5\n")
    (tmp_path / "lr" / "damaged").mkdir()
    (tmp_path / "lr" / "damaged" / "run.json").write_text("")
    written = export_csv(tmp_path / "lr", tmp_path / "tables")
    tables = [list(csv.reader(path.read_text().splitlines())) for path in written]
    assert tables[0] == [
        ["run", "seed", "wall_s", "env_steps", "attempt", "loss", "b"],
        *(row for seed in ("9", "10") for row in (
            [f"seed-{seed}", seed, "1.0", "10", "1", "1.0", ""], [f"seed-{seed}", seed, "1.0", "15", "2", "", "2.0"]
        )),
    ]  # fmt: skip
    assert tables[1] == [["run", "seed", "attempt", "return"], ["seed-9", "9", "1", "2.5"]]
