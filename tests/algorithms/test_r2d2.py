"""One update of R2D2 against loops over the rows of each sequence, which follow the definitions of the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.algorithms.driver import DISCRETE, env_spec
from tests.algorithms.test_distributions import learner_with
from tests.support.raising import raises
from zmqrl.acting.spec import previous_size
from zmqrl.algorithms.q_learning.base import MunchausenSection
from zmqrl.algorithms.r2d2 import CORE, R2D2, R2D2Config
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.learning import PRIORITY
from zmqrl.types import Array

BATCH, LENGTH, OBS, SIZE, GAMMA, N_STEP = 5, 7, 3, 16, 0.9, 3
SMALL: dict[str, Any] = {"batch_size": BATCH, "length": LENGTH, "stride": 1, "lstm_size": SIZE}


def h(x: float, epsilon: float | None) -> float:
    """Section 3.2 of Pohlen et al. 2018."""
    return x if epsilon is None else float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x)


def inverse_h(x: float, epsilon: float | None) -> float:
    """Proposition A.2 of Pohlen et al. 2018."""
    if epsilon is None:
        return x
    root = (np.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon)) - 1) / (2 * epsilon)
    return float(np.sign(x) * (root**2 - 1))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    return np.asarray(weights[f"{name}.weight"].astype(np.float64) @ x + weights[f"{name}.bias"])


def q_values(weights: dict[str, Array], rows: dict[str, Array], state: Array) -> list[Array]:
    """Of each row of a sequence: a hidden layer, an LSTM that sees the previous step too, and a dueling layer."""
    found, (hidden, cell) = [], state.astype(np.float64).reshape(2, SIZE)
    for obs, previous, reset in zip(rows["obs"], rows["previous"], rows["reset"], strict=True):
        if reset:
            hidden, cell = np.zeros(SIZE), np.zeros(SIZE)
        x = np.concatenate((np.maximum(linear(weights, "q.0", obs), 0.0), previous))
        gates = np.zeros(4 * SIZE)
        for part, vector in (("ih", x), ("hh", hidden)):
            gates += weights[f"{CORE}.weight_{part}"] @ vector + weights[f"{CORE}.bias_{part}"]
        i, f, g, o = gates.reshape(4, SIZE)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        value, advantage = (linear(weights, f"q.1.{part}", hidden) for part in ("value", "advantage"))
        found.append(value + advantage - advantage.mean())
    return found


def errors_of(rows: dict[str, Array], online: list[Array], target: list[Array], config: R2D2Config) -> Array:
    """Q(s_t, a_t) - y_t of each row to learn from (section 2.3 of Kapturowski et al. 2019); 0 of the others."""
    begin, found = config.burn_in, np.zeros(LENGTH)
    for t in np.flatnonzero(rows["mask"][begin:]):
        total, discount, at = 0.0, 1.0, begin + t
        for _ in range(N_STEP):
            total, discount, at = total + discount * rows["reward"][at], discount * GAMMA, at + 1
            if rows["terminated"][at - 1]:
                discount = 0.0
            if rows["terminated"][at - 1] or rows["truncated"][at - 1] or at == begin + LENGTH:
                break
        best = (online if config.double else target)[at].argmax()
        aim = h(total + discount * inverse_h(target[at][best], config.rescaling), config.rescaling)
        found[t] = online[begin + t][rows["action"][begin + t]] - aim
    return found


def batch_of(random: np.random.Generator, burn_in: int) -> dict[str, Array]:
    """Sequences with ends of episodes, of which the row after an end is not valid."""
    rows, previous = burn_in + LENGTH, previous_size(env_spec(DISCRETE, OBS).action)
    ends = random.random((BATCH, rows))
    terminated, truncated, valid = ends < 0.15, (ends > 0.15) & (ends < 0.3), np.ones((BATCH, rows), bool)
    for t in range(1, rows):
        valid[:, t] = ~(terminated | truncated)[:, t - 1]
        terminated[:, t] &= valid[:, t]
        truncated[:, t] &= valid[:, t]
    mask = valid.copy()
    mask[:, :burn_in] = False
    return {
        "obs": random.normal(0, 3, (BATCH, rows + 1, OBS)).astype(np.float32),
        "action": random.integers(0, DISCRETE.n, (BATCH, rows)),
        "reward": 3 * random.normal(size=(BATCH, rows)),
        "terminated": terminated,
        "truncated": truncated,
        "mask": mask,
        "reset": np.concatenate((np.zeros((BATCH, 1), bool), ~valid), 1),
        "previous": random.normal(size=(BATCH, rows + 1, previous)).astype(np.float32),
        f"state.{CORE}": random.normal(size=(BATCH, 2 * SIZE)).astype(np.float32),
        "weight": random.uniform(0.5, 1.0, BATCH),
    }


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(("burn_in", "rescaling"), [(3, 1e-2), (0, 1e-2), (3, None)])
def test_one_update(double: bool, burn_in: int, rescaling: float | None) -> None:
    more = {"double": double, "rescaling": rescaling, "gamma": GAMMA, "n_step": N_STEP}
    config, random = R2D2Config(burn_in=burn_in, **SMALL, **more), np.random.default_rng(5)
    network = NetworkSection(hidden=(6,), activation="relu")
    learner, online, target = learner_with(R2D2(config, network, env_spec(DISCRETE, OBS), 40, 1), random)
    batch = batch_of(random, burn_in)
    errors = []
    for sequence in range(BATCH):
        rows = {name: column[sequence] for name, column in batch.items()}
        both = [q_values(weights, rows, rows[f"state.{CORE}"]) for weights in (online, target)]
        assert all(len({int(q.argmax()) for q in of_rows}) > 1 for of_rows in both), "rows differ in the best action"
        errors.append(errors_of(rows, *both, config))
    losses = [np.square(row).sum() / 2 / count for row, count in zip(errors, batch["mask"].sum(1), strict=True)]
    results = learner.run({name: learner.tensor(column) for name, column in batch.items()}, {"q": 1e-3})
    assert float(results["loss/q"]) == pytest.approx((batch["weight"] * losses).mean(), rel=1e-4)
    np.testing.assert_allclose(results[PRIORITY].numpy(), np.abs(errors), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("noisy", True), ("munchausen", MunchausenSection()), ("worker_priorities", True)],
)
def test_options_of_transitions_are_refused(name: str, value: Any) -> None:
    config = R2D2Config(**{name: value})
    with raises(ConfigError, key=("algorithm", name)):
        R2D2(config, NetworkSection(), env_spec(DISCRETE, OBS), 80, 2).check("sync", 4, ReplaySection())
