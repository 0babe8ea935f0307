"""Kinds that were written on the public seam pass all checks of an author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from zmqrl.algorithms.start.make import kind_of
from zmqrl.testing import check_algorithm

QUICK = {"learning_rate": 1e-3, "batch_size": 64, "target_tau": 0.01}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "c51": QUICK,
    "rainbow": QUICK,
    "iqn": {**QUICK, "quantiles": 8},
    "r2d2": {**QUICK, "batch_size": 16, "burn_in": 2, "length": 6, "stride": 4, "lstm_size": 16},
}
"""Fields with which a kind learns the probe envs in few env steps."""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_it_passes_all_checks(kind: str) -> None:
    made = kind_of(kind)
    report = check_algorithm(made, made.Config(**KINDS[kind]))
    assert any("learned within" in name for name in report.passed)
