"""`zmqrl fetch`: which directory is written, and which are left alone."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.raising import raises
from zmqrl.cli.run.fetch import MARKER, PART, _complete, _copy_of
from zmqrl.errors import ConfigError


def record(directory: Path, lineage: str | None, run_id: str = "r-2") -> None:
    directory.mkdir(exist_ok=True)
    data = {"run_id": run_id, "pid": 1, "start_time": 1, "host": "gpu1", "started_at": 0.0, "preset": None}
    (directory / "run.json").write_text(json.dumps({**data, "lineage": lineage}))


def test_a_new_copy_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "a"
    copy = _copy_of(target, "r-1")
    assert copy == target.with_name("a" + PART) and not target.exists()
    (copy / "config.json").write_text("{}")
    assert _copy_of(target, "r-1") == copy, "continued"
    _complete(copy, target)
    assert [path.name for path in target.iterdir()] == ["config.json"] and not copy.exists()


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    copy = _copy_of(tmp_path, "r-1")
    _complete(copy, tmp_path)
    assert tmp_path.is_dir() and not copy.exists()


def test_an_earlier_copy_of_the_run_is_brought_up_to_date(tmp_path: Path) -> None:
    record(tmp_path / "a", "r-1")
    assert _copy_of(tmp_path / "a", "r-1") == tmp_path / "a"
    record(tmp_path / "b", None, "r-1")  # of zmqrl 0.1
    assert _copy_of(tmp_path / "b", "r-1") == tmp_path / "b"


def test_what_is_not_a_copy_of_the_run_is_left_alone(tmp_path: Path) -> None:
    record(tmp_path / "a", "r-1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    (tmp_path / "c.part").mkdir()
    (tmp_path / "c.part" / MARKER).write_text("r-9")
    for name, taken, what in (
        ("a", "a", "contains a different run (r-2)"),
        ("b", "b", "exists and is not a copy of a run"),
        ("c", "c.part", "is the partial copy of another run"),
    ):
        with raises(ConfigError, value=str(tmp_path / taken), what=what):
            _copy_of(tmp_path / name, "r-0")
    with raises(ConfigError, key=("DIR",)):
        _copy_of(tmp_path / "b" / "mine" / "x", "r-0")
