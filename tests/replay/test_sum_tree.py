from __future__ import annotations

import numpy as np

from zmqrl.replay.sum_tree import SumTree


def test_boundaries_and_leaves_without_mass() -> None:
    tree = SumTree(6)
    tree.set(np.arange(6), np.array([0.0, 1.0, 0.0, 2.0, 0.5, 0.0]))
    assert tree.total == 3.5
    drawn = tree.find(np.array([0.0, 0.999, 1.0, 2.999, 3.0, np.nextafter(3.5, 0.0), 3.5]))
    np.testing.assert_array_equal(drawn, [1, 1, 3, 3, 4, 4, 4])


def test_ranges_are_the_same_as_single_leaves() -> None:
    rng = np.random.default_rng(1)
    one, other = SumTree(37), SumTree(37)
    for start, size in ((0, 37), (5, 12), (36, 1), (1, 3)):
        masses = rng.random(size)
        one.set_range(start, masses)
        other.set(np.arange(start, start + size), masses)
        np.testing.assert_array_equal(one._nodes, other._nodes)


def test_sums_do_not_drift() -> None:
    rng, tree, masses = np.random.default_rng(2), SumTree(64), np.zeros(64)
    for _ in range(2000):
        leaves = rng.choice(64, 8, replace=False)
        masses[leaves] = rng.random(8) * 10.0 ** rng.integers(-8, 8)
        tree.set(leaves, masses[leaves])
    fresh = SumTree(64)
    fresh.set_range(0, masses)
    np.testing.assert_array_equal(tree._nodes, fresh._nodes)


def test_of_a_leaf_named_twice_the_last_mass_counts() -> None:
    tree = SumTree(2)
    tree.set(np.array([1, 1]), np.array([5.0, 2.0]))
    assert tree.total == 2.0


def test_one_leaf() -> None:
    tree = SumTree(1)
    tree.set(np.array([0]), np.array([3.0]))
    assert tree.total == 3.0 and tree.find(np.array([2.9])).tolist() == [0]
