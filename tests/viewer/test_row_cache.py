"""Rows of metrics that the viewer has read are kept for its next start; what does not fit is read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.viewer.stored import rows
from zmqrl.metrics.curves import RETURN
from zmqrl.metrics.metric_rows import MetricRows
from zmqrl.types import Array
from zmqrl.viewer.row_cache import KEPT_EVERY_BYTES, UNUSED_S, RowCache

COUNT = 1_000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kept files."""
    monkeypatch.setenv("ZMQRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "view"


@pytest.fixture
def path(tmp_path: Path, cache: Path) -> Path:
    """A file that a viewer has read."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(rows(range(COUNT)))
    assert path.stat().st_size > KEPT_EVERY_BYTES
    assert len(read(path)) == COUNT
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are parsed from now on."""
    return lines_of(monkeypatch)


def lines_of(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are parsed from now on."""
    lines, parse = list[bytes](), MetricRows._rows

    def listed(self: MetricRows, block: bytes) -> Array:
        lines.extend(block.splitlines())
        return parse(self, block)

    monkeypatch.setattr(MetricRows, "_rows", listed)
    return lines


def read(path: Path, metric: str = RETURN) -> Array:
    return RowCache().current(path, metric).thinned.rows


def append(path: Path, value: float) -> None:
    with path.open("a") as file:
        file.write(rows([value], COUNT))


def test_the_next_viewer_reads_what_was_appended(path: Path, cache: Path, parsed: list[bytes]) -> None:
    append(path, 7.0)
    found = RowCache().current(path, RETURN)
    assert found.thinned.rows["value"].tolist() == [*range(COUNT), 7.0] and len(parsed) == 1
    assert found.names == ["wall_s", "env_steps", RETURN, "entropy"]
    assert read(path, "entropy")["value"][1] == 0.5, "another metric has a file of its own"
    assert {found.stat().st_mode & 0o777 for found in cache.iterdir()} == {0o600} and len(list(cache.iterdir())) == 2
    assert cache.stat().st_mode & 0o777 == 0o700


def another_file(path: Path, cache: Path) -> None:
    other = path.with_name("other")
    other.write_text(path.read_text())
    other.rename(path)


def another_head(path: Path, cache: Path) -> None:
    text = path.read_text().replace('"wall_s": 0,', '"wall_s": 9,', 1)
    with path.open("r+") as file:
        file.write(text)


def shorter(path: Path, cache: Path) -> None:
    os.truncate(path, len(rows(range(COUNT // 2))))


def damaged(path: Path, cache: Path) -> None:
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")


def of_a_group(path: Path, cache: Path) -> None:
    (kept,) = cache.iterdir()
    kept.chmod(0o660)


def of_another_metric(path: Path, cache: Path) -> None:
    (kept,) = cache.iterdir()
    content = kept.read_bytes()
    read(path, "entropy")
    (other,) = set(cache.iterdir()) - {kept}
    kept.write_bytes(other.read_bytes())
    assert kept.read_bytes() != content


def unused(path: Path, cache: Path) -> None:
    (kept,) = cache.iterdir()
    then = kept.stat().st_mtime - UNUSED_S - 60
    os.utime(kept, (then, then))
    RowCache()
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    "change", [another_file, another_head, shorter, damaged, of_a_group, of_another_metric, unused]
)
def test_what_does_not_fit_is_read_again(
    path: Path, cache: Path, parsed: list[bytes], change: Callable[[Path, Path], None]
) -> None:
    change(path, cache)
    parsed.clear()
    append(path, 7.0)
    found = read(path)
    assert len(parsed) == len(path.read_bytes().splitlines()) and found["value"][-1] == 7.0


def test_without_a_cache_everything_is_read(path: Path, cache: Path) -> None:
    for kept in cache.iterdir():
        kept.unlink()
    cache.rmdir()
    cache.write_text("")
    assert len(read(path)) == COUNT


def test_a_short_file_is_not_kept(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "short"
    path.write_text(rows(range(10)))
    assert len(read(path)) == 10 and not cache.exists()
