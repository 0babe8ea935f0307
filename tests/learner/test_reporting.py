"""Figures of a metrics event: one value out of the bounds costs none of the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from zmqrl.learner.reporting import Rates, figures_of
from zmqrl.messages.lines import child_event, line_of
from zmqrl.messages.process import Metrics


def test_figures_arrive_whatever_their_size() -> None:
    given: dict[str, Any] = {
        "env_steps": 5, "loss": np.float32(0.5), "rows": np.int64(7), "large": 1 << 62, "larger": 1 << 70,
        "least": -(1 << 62), "nan": math.nan, "inf": np.inf, "huge": 1e301, "hugest": 10**400, "n" * 300: 1.5,
    }  # fmt: skip
    expected = {
        "env_steps": 5, "loss": 0.5, "rows": 7, "large": 2.0**62, "larger": 2.0**70, "least": -(2.0**62), "n" * 255: 1.5
    }  # fmt: skip
    figures = figures_of(given)
    assert figures == expected and type(figures["env_steps"]) is int
    assert child_event(line_of(Metrics(figures))) == Metrics(expected)


def test_waits_are_unknown_before_the_second_sample() -> None:
    """As in a run that ends before its first segment: 0 would mean that the learner never waited."""
    rates = Rates()
    for _ in range(2):
        assert (rates.summary()["wait_fraction"], rates.summary()["store_wait_fraction"]) == (None, None)
        rates.observe(1.0, 0, 0, 1.0, 0.0)
    rates.observe(3.0, 8, 1, 2.0, 0.5)
    assert rates.summary() == {
        "env_steps_per_s": 4.0, "updates_per_s": 0.5, "wait_fraction": 0.5, "store_wait_fraction": 0.25
    }  # fmt: skip
