"""Long runs are thinned to means of consecutive rows; the curve is that of all rows, but for a part of a bucket."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zmqrl.metrics import thinning
from zmqrl.metrics.curves import curve_of, series_from
from zmqrl.metrics.metric_rows import ROW, rows_of
from zmqrl.metrics.thinning import MEANS, NO_ROWS, thinned
from zmqrl.types import Array

MOST = 64


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "MOST_ROWS", MOST)


def training(count: int, attempt: int = 1, start: int = 0) -> Array:
    """A row per second and 10 env steps, whose value is a line with noise."""
    steps = 10.0 * np.arange(start, start + count)
    noise = np.random.default_rng(attempt).normal(size=count)
    rows = [
        {"wall_s": k, "env_steps": x, "value": x / 10 + n, "attempt": attempt}
        for k, (x, n) in enumerate(zip(steps.tolist(), noise.tolist(), strict=True))
    ]
    return rows_of(rows, "value")


def drawn(rows: Array, window: int = 1) -> Array:
    series = series_from(Path("run"), rows, window)
    assert series is not None
    return np.stack([curve_of([series], axis).value for axis in ("env_steps", "wall_s")])


def test_a_short_run_has_its_rows() -> None:
    rows, found = training(MOST), NO_ROWS.plus(training(MOST))
    assert found.size == 1
    for name in (*MEANS, "rows"):
        np.testing.assert_array_equal(found.rows[name], rows[name])


@pytest.mark.parametrize("part", [1, 7, 100])
def test_rows_in_parts_are_thinned_as_all_at_once(part: int) -> None:
    rows = np.concatenate([training(1_000), training(300, attempt=2, start=900)])
    rows["is_score"][::9], rows["is_measured"][::5] = True, False
    whole, grown = NO_ROWS.plus(rows), NO_ROWS
    for start in range(0, len(rows), part):
        grown = grown.plus(rows[start : start + part])
    assert (grown.size, grown.count) == (whole.size, whole.count) == (128, 1_300)
    for name in ROW.names or ():
        np.testing.assert_allclose(grown.rows[name], whole.rows[name])


def test_means_are_of_one_kind_and_attempt() -> None:
    rows = np.concatenate([training(500), training(500, attempt=2, start=400)])
    rows["is_score"][::10] = True
    found = NO_ROWS.plus(rows).rows
    assert len(found) <= MOST and (np.diff(found["number"]) > 0).all()
    for name in ("attempt", "is_score"):
        for kind in (0, 1, 2):
            of_kind, before = found[found[name] == kind], rows[rows[name] == kind]
            assert of_kind["rows"].sum() == len(before)
            np.testing.assert_allclose((of_kind["value"] * of_kind["rows"]).sum(), before["value"].sum())


def test_wall_s_separates_attempts_without_a_number() -> None:
    rows = np.concatenate([training(700, attempt=0), training(700, attempt=0, start=700)])
    found = NO_ROWS.plus(rows).rows
    assert found["wall_s"].max() > 680
    np.testing.assert_allclose(drawn(found), drawn(rows), atol=2 * 32 + 4)


@pytest.mark.parametrize("window", [1, 200])
def test_the_curve_is_that_of_all_rows_but_for_a_bucket(window: int) -> None:
    rows = np.concatenate([training(3_000), training(3_000, attempt=2, start=2_500)])
    found = NO_ROWS.plus(rows)
    assert len(found.rows) <= MOST
    curve, whole = drawn(found.rows, window), drawn(rows, window)
    np.testing.assert_allclose(curve, whole, atol=1.5 * found.size)
    if window == 1:
        np.testing.assert_array_equal(curve[:, [0, -1]], whole[:, [0, -1]])


def test_rows_that_cannot_be_joined_end_the_thinning() -> None:
    rows = training(300)
    rows["attempt"] = np.arange(300)
    rows["wall_s"][::3] = np.nan
    found = NO_ROWS.plus(rows)
    assert len(found.rows) == 300 and found.size == 512


def test_at_most_a_part_of_the_rows_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "READ_AT_ONCE", 10)
    rows = rows_of([{"wall_s": k, "env_steps": k, "value": k} for k in range(95)], "value")
    found = thinned(np.split(rows, 19))
    assert (found.size, found.count) == (2, 95) and found.rows["value"][:3].tolist() == [0.0, 1.0, 2.5]
