"""One update of QR-DQN and of PPO-GRU: losses, gradients and metrics are the frozen ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.algorithms.driver import DISCRETE, env_spec
from zmqrl.algorithms.base import LearnerContext, OnPolicyLearner, Progress
from zmqrl.algorithms.ppo_gru import PPOGRU, PPOGRUConfig
from zmqrl.algorithms.q_learning.base import PrioritisedSection
from zmqrl.algorithms.qrdqn import QRDQN, QRDQNConfig, QRDQNLearner
from zmqrl.config.sections import NetworkSection
from zmqrl.learning import PRIORITY
from zmqrl.replay.base import SegmentBatch, SegmentMeta
from zmqrl.types import ACTING_STATE, Array, SegmentId, Version

ORACLES = Path(__file__).parents[1] / "oracles"
FLOATS = frozenset({"obs", "reward", "log_prob", "state"})
CORE = "torso.gru"
"""Name of the recurrent unit."""
STEEP = 1e3
"""Adam's epsilon and learning rate: its first step is then -g / (1 + |g| / STEEP)."""


def oracle(name: str) -> Any:
    return json.loads((ORACLES / f"{name}.json").read_text())


def linear(tables: list[Any]) -> Array:
    """Weights of a layer whose outputs for the i-th unit vector are the i-th table, flat."""
    return np.concatenate([np.array(table) for table in tables]).reshape(2 * len(tables[0]), -1).T.astype(np.float32)


@pytest.mark.parametrize("kind", ["plain", "double"])
def test_qrdqn(kind: str) -> None:
    """The first half of the unit vectors are observations, the second half the next ones."""
    given = oracle("quantile_huber")["qrdqn"]
    rows, _, quantiles = np.shape(given["quantiles"])
    config = QRDQNConfig(quantiles=quantiles, double=kind == "double", prioritised=PrioritisedSection())
    algorithm = QRDQN(config, NetworkSection(hidden=()), env_spec(DISCRETE, 2 * rows), 16, 1)
    tables = {name: linear([given["quantiles"], given[f"next_{name}"]]) for name in ("online", "target")}
    weights = {"q.0.weight": tables["online"], "q.0.bias": np.zeros(len(tables["online"]), np.float32)}
    learner = algorithm.learner(LearnerContext(weights))
    assert isinstance(learner, QRDQNLearner)
    learner.load_state(weights, {**learner.state(), "target.q.0.weight": tables["target"]})
    obs, next_obs = np.eye(2 * rows, dtype=np.float32).reshape(2, rows, -1)
    columns = {name: np.array(given[name]) for name in ("action", "n_step_return", "discount", "weight")}
    batch = {name: learner.tensor(column) for name, column in {**columns, "obs": obs, "next_obs": next_obs}.items()}
    results = learner.run(batch, {"q": 1e-3})
    expected = np.array(given["losses"][kind])
    np.testing.assert_allclose(results[PRIORITY].numpy(), expected, rtol=1e-5)
    assert float(results["loss/q"]) == pytest.approx((columns["weight"] * expected).mean(), rel=1e-5)


def test_ppo_gru() -> None:
    """Two sequences of each env in one update, with stored state and episodes that begin in them."""
    given = oracle("ppo_gru")
    columns = {n: np.array(c, np.float32 if n in FLOATS else None) for n, c in given["columns"].items()}
    columns[ACTING_STATE + CORE] = columns.pop("state")
    (steps, envs), (sequences, _, size) = columns["valid"].shape, columns[ACTING_STATE + CORE].shape
    config = PPOGRUConfig(
        gru_size=size,
        sequence=steps // sequences,
        minibatch_size=steps * envs,
        epochs=1,
        learning_rate=STEEP,
        adam_epsilon=STEEP,
        max_grad_norm=1e9,
        **given["settings"],
    )
    algorithm = PPOGRU(config, NetworkSection(hidden=()), env_spec(DISCRETE, 3), steps, envs)
    weights = {name: np.array(array, np.float32) for name, array in given["weights"].items()}
    learner = algorithm.learner(LearnerContext(weights))
    assert isinstance(learner, OnPolicyLearner)
    meta = SegmentMeta(SegmentId(0, 0, 0), Version(0, 0), int(columns["valid"].sum()))
    result = learner.learn(SegmentBatch(columns, (meta,)), Progress(1, 0, 0, 1))
    assert result.updates == 1
    for name, expected in given["metrics"].items():
        assert result.metrics[name] == pytest.approx(expected, rel=1e-4), name
    for name, array in learner.weights().items():
        slope = np.array(given["gradient"][name])
        step = slope / (1.0 + np.abs(slope) / STEEP)
        np.testing.assert_allclose(weights[name] - array, step, rtol=1e-4, atol=1e-6, err_msg=name)
