from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from zmqrl.ops.returns import n_step_targets

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "n_step.json").read_text())


@pytest.mark.parametrize("n", [1, 3, 5])
def test_agrees_with_brute_force(n: int) -> None:
    reward, terminated, truncated = (np.array(ORACLE[name]) for name in ("reward", "terminated", "truncated"))
    expected = ORACLE["targets"][str(n)]
    t, env = (np.array([row[name] for row in expected]) for name in ("t", "env"))
    window = t[:, None] + np.arange(n)
    at = (np.minimum(window, len(reward) - 1), env[:, None])
    target = n_step_targets(reward[at], terminated[at], truncated[at], window < len(reward), ORACLE["gamma"])
    for name in ("n_step_return", "length", "discount"):
        np.testing.assert_allclose(getattr(target, name), [row[name] for row in expected], atol=1e-6, err_msg=name)


def test_lengths_cover_every_case() -> None:
    lengths = {(row["length"], row["discount"] == 0.0) for row in ORACLE["targets"]["3"]}
    assert lengths == {(k, ended) for k in (1, 2, 3) for ended in (False, True)}
