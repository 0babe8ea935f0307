"""The file of `make bench-quick`: a line for each commit, compared with the last ten of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import quick


def line(commit: str, day: int, value: float, host: str = "here") -> dict[str, Any]:
    figures = {"bus: bus / Queue": value}
    return {"commit": commit, "time": f"2026-01-{day:02}", "host": host, "cores": 2, "figures": figures}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [line(f"c{day}", day, day) for day in range(1, 14)]
    lines += [line("c5", 14, 100.0), line("elsewhere", 15, 9.0, host="there"), line("now", 16, 50.0)]
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(json.dumps(data) + "\n" for data in lines))
    return path


def test_the_last_ten_commits_of_this_machine_are_compared_each_by_its_newest_line(file: Path) -> None:
    found = quick.earlier(file, line("now", 17, 1.0))
    assert [data["commit"] for data in found] == [*(f"c{day}" for day in (4, 6, 7, 8, 9, 10, 11, 12, 13)), "c5"]
    assert quick.earlier(file.with_name("none"), line("now", 17, 1.0)) == []


def test_a_row_has_the_median_and_the_change(file: Path) -> None:
    now = line("now", 17, 19.0)
    head, row = quick.table(now, quick.earlier(file, now)).splitlines()
    assert "of 10 commits" in head
    assert row.split() == ["bus:", "bus", "/", "Queue", "19", "9.5", "+100.0%", "4", "to", "100"]
    assert quick.table(now, []).splitlines()[1].split()[-1] == "19"


def test_every_package_and_the_sum_are_counted() -> None:
    found = quick.lines_per_package()
    packages = {path.parent.name for path in (quick.ROOT / "zmqrl").glob("*/__init__.py")}
    assert {f"lines: {name}" for name in packages} <= found.keys()
    parts = sum(n for name, n in found.items() if name not in ("lines: zmqrl", "lines: tests", "lines: benchmarks"))
    assert found["lines: zmqrl"] == parts > 10_000


def test_a_run_appends_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quick, "git", lambda *words: "5" * 40 if "HEAD" in words else "")
    monkeypatch.setattr(quick, "measure", lambda with_tests: {"bus: bus / Queue": 2.0 if with_tests else 1.0})
    before = file.read_text()
    monkeypatch.setattr("sys.argv", ["quick.py", "--file", str(file), "--no-tests"])
    quick.main()
    assert file.read_text().startswith(before)
    (added,) = map(json.loads, file.read_text().removeprefix(before).splitlines())
    assert added["figures"] == {"bus: bus / Queue": 1.0}
    assert (added["commit"], added["changed"]) == ("5" * 40, False)
    assert "5" * 9 in capsys.readouterr().out
