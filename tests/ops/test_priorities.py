from __future__ import annotations

import numpy as np
import pytest

from zmqrl.ops.priorities import sequence_priorities


def test_the_mix_of_largest_and_mean_over_the_rows_that_count() -> None:
    delta = np.array([[1.0, -4.0, 9.0], [-3.0, 2.0, 9.0], [9.0, 6.0, 9.0]], np.float32)
    mask = np.array([[True, True, False], [True, True, False], [False, True, False]])
    np.testing.assert_allclose(sequence_priorities(delta, mask), [0.9 * 3 + 0.1 * 2, 0.9 * 6 + 0.1 * 4, 0.0])
    np.testing.assert_allclose(sequence_priorities(delta, mask, 0.0), [2.0, 4.0, 0.0])


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="one shape"):
        sequence_priorities(np.ones((2, 3)), np.ones((2, 1), bool))
