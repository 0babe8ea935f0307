"""The interquartile mean and its interval against frozen results of rliable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zmqrl.metrics.curves import interval, iqm, resamples

CASES = json.loads((Path(__file__).parents[1] / "oracles" / "iqm.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES)
def test_as_rliable(case: dict[str, Any]) -> None:
    scores, indices = np.array(case["scores"]), np.array(case["indices"])
    assert iqm(scores) == pytest.approx(case["iqm"])
    assert interval(scores, indices, case["confidence"]) == pytest.approx(case["interval"])


def test_every_point_of_a_curve_has_the_same_resamples() -> None:
    curves = np.random.default_rng(1).normal(size=(5, 2, 7))
    indices = resamples(5, 2, 100)
    low, high = interval(curves, indices)
    for point in range(7):
        assert (low[point], high[point]) == pytest.approx(interval(curves[:, :, point], indices))
    assert (low <= iqm(curves)).all() and (iqm(curves) <= high).all()
    np.testing.assert_array_equal(indices, resamples(5, 2, 100))
    assert not np.array_equal(indices[:, :, 0], indices[:, :, 1]), "the tasks are resampled together"


def test_one_run_is_its_own_interval() -> None:
    scores = np.array([[3.0]])
    assert iqm(scores) == 3.0
    assert interval(scores, resamples(1, 1, 10)) == (3.0, 3.0)
