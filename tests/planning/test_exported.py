"""`zmqrl export RUN DIR --to csv`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.metrics.test_attempts import recorded
from tests.support.raising import raises
from zmqrl.errors import ConfigError, FolderOfRuns
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
    (run / "config.json").write_text("{}")
    with raises(FolderOfRuns, runs=(str(run),)):
        export_csv(tmp_path, tmp_path / "others")
