"""Scores of offline learners: what is finished is not run again, and the page has the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import offline
from benchmarks.scores import finished


def result(name: str, seed: int, commit: str, folder: Path) -> offline.Result:
    return offline.Result(commit, name, seed, 100.0 * len(name) + seed, 0.0, 100, 1.0)


def test_the_page_is_current() -> None:
    page = offline.PAGE.read_text()
    assert page == offline.written(page, finished(offline.RESULTS)), "run: python -m benchmarks.offline --no-runs"


def test_what_is_missing_is_run_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offline, "measured", result)
    page, words = tmp_path / "page", ["--out", str(tmp_path / "out"), "--page", str(tmp_path / "page")]
    page.write_text("# Data\n\n## Scores\n\nold\n\n## Further\n\ntext\n")
    assert offline.main(["bc", *words]) == 0
    assert offline.main(words) == 0
    begun = [line for line in capsys.readouterr().out.splitlines() if " seed " in line and "|" not in line]
    assert begun[:4] == ["bc seed 1: 201.0", "bc seed 2: 202.0", "bc seed 3: 203.0", "data seed 1: 401.0"]
    assert len(begun) == len({*begun}) == 2 + 3 * len(offline.LEARNERS)
    text = page.read_text()
    assert "| `bc` | 201.0, 202.0, 203.0 | 202.0 |\n" in text and "old" not in text
    assert text.startswith("# Data\n\n## Scores\n\n") and text.endswith("\n\n## Further\n\ntext\n")
