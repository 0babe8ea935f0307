from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from zmqrl.ops.advantages import generalised_advantages

ORACLES = Path(__file__).parents[1] / "oracles"
LITERAL = json.loads((ORACLES / "gae.json").read_text())["cases"]


@pytest.mark.parametrize("case", LITERAL)
def test_agrees_with_rlax(case: dict) -> None:
    column = lambda values, dtype: np.array(values, dtype=dtype)[:, None]  # noqa: E731
    reward = column(case["reward"], np.float32)
    nothing = np.zeros(reward.shape, dtype=bool)
    advantage = generalised_advantages(
        reward,
        column(case["value"], np.float32),
        column(case["terminated"], bool),
        nothing,
        ~nothing,
        case["gamma"],
        case["lambda"],
    )
    np.testing.assert_allclose(advantage[:, 0], case["advantage"], atol=1e-3)


def test_agrees_with_brute_force_across_episode_ends() -> None:
    oracle = json.loads((ORACLES / "gae_truncation.json").read_text())
    flags = [np.array(oracle[name]) for name in ("terminated", "truncated", "valid")]
    assert flags[1].any() and not flags[2].all()
    advantage = generalised_advantages(
        np.array(oracle["reward"]), np.array(oracle["value"]), *flags, oracle["gamma"], oracle["lambda"]
    )
    np.testing.assert_allclose(advantage, oracle["advantage"], atol=1e-6)


def test_values_without_the_last_row_are_refused() -> None:
    zeros = np.zeros((4, 2))
    with pytest.raises(ValueError, match=r"T \+ 1"):
        generalised_advantages(zeros, zeros, zeros > 0, zeros > 0, zeros == 0, 0.9, 0.9)
