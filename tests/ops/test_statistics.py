from __future__ import annotations

import math

import numpy as np

from zmqrl.ops.returns import explained_variance
from zmqrl.ops.running_stats import RunningStats, discounted_returns


def test_merging_batches_is_taking_all_rows_at_once() -> None:
    rows = np.random.default_rng(1).normal(1e3, 2.0, (1000, 3))
    stats = RunningStats.empty(3)
    for part in np.array_split(rows, [1, 4, 500]):
        stats = stats.merge(part)
    stats = stats.merge(rows[:0])
    assert stats.count == 1000
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(stats.scale, 1.0 / rows.std(0), rtol=1e-8)


def test_scale_is_one_before_the_first_row_and_finite_for_constants() -> None:
    np.testing.assert_array_equal(RunningStats.empty(2).scale, [1.0, 1.0])
    assert np.isfinite(RunningStats.empty(1).merge(np.ones((5, 1))).scale).all()


def test_discounted_returns_reset_after_an_episode() -> None:
    reward = np.array([[1.0], [1.0], [0.0], [1.0], [1.0]])
    done = np.array([[False], [True], [False], [False], [False]])
    valid = np.array([[True], [True], [False], [True], [True]])
    returns, running = discounted_returns(reward, done, valid, np.array([4.0]), 0.5)
    np.testing.assert_allclose(returns[:, 0], [3.0, 2.5, 0.0, 1.0, 1.5])
    np.testing.assert_allclose(running, [1.5])


def test_explained_variance() -> None:
    target = np.array([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.zeros(3), target) == 0.0
    assert math.isnan(explained_variance(target, np.ones(3)))
