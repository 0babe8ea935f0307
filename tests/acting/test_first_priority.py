"""The first priorities of workers are the TD errors of their n-step targets (Horgan et al. 2018, appendix F)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.raising import raises
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.q_learning.base import PrioritisedSection
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.ops.returns import n_step_targets
from zmqrl.testing.algorithm import DISCRETE, VECTOR
from zmqrl.testing.experience import SEGMENTS, acted, published
from zmqrl.types import Array, EnvSpec

GAMMA, T, N = 0.9, 16, 3


def q_of(algorithm: DQN, obs: Array) -> Array:
    """q values `[rows, n]` of version 0, in float64."""
    arrays = published(algorithm)
    x: Array = obs.reshape(len(obs), -1).astype(np.float64)
    for layer in algorithm.acting().layers:
        x = x @ arrays[f"{layer.name}.weight"].T + arrays[f"{layer.name}.bias"] if layer.name else np.maximum(x, 0.0)
    return x


@pytest.mark.parametrize("n_step", [1, 3, T + 4])
def test_the_priority_is_the_td_error_of_the_rows_target(n_step: int) -> None:
    """Of each valid row, with the target that replay has for it, by the definition of section 7.1 of Sutton & Barto."""
    config = DQNConfig(gamma=GAMMA, n_step=n_step, worker_priorities=True, prioritised=PrioritisedSection())
    network = NetworkSection(hidden=(8,), activation="relu")
    algorithm = DQN(config, network, EnvSpec("toy", VECTOR, DISCRETE), T, N)
    slots = acted(algorithm, 1)
    for segment in range(SEGMENTS):
        columns = {name: column[segment] for name, column in slots.items()}
        q = np.stack([q_of(algorithm, columns["obs"][:, env]) for env in range(N)], 1)
        for t, env in np.argwhere(columns["valid"]):
            window = t + np.arange(n_step)
            at = np.minimum(window, T - 1)[None], np.full((1, n_step), env)
            reward, terminated, truncated = (columns[name][at] for name in ("reward", "terminated", "truncated"))
            target = n_step_targets(reward, terminated, truncated, window[None] < T, GAMMA)
            value = q[t + target.length[0], env].max()
            delta = target.n_step_return[0] + target.discount[0] * value - q[t, env, columns["action"][t, env]]
            assert np.isclose(columns["priority"][t, env], abs(delta), rtol=1e-4, atol=1e-5)
    assert algorithm.replay().first_priority == "priority"


def test_without_it_no_outputs_are_kept() -> None:
    plain = DQN(DQNConfig(), NetworkSection(hidden=(8,)), EnvSpec("toy", VECTOR, DISCRETE), T, N)
    assert plain.acting().head == "epsilon_greedy" and not plain.acting().extras and not plain.acting().options


def test_priorities_that_are_not_used_are_refused() -> None:
    algorithm = DQN(DQNConfig(worker_priorities=True), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), T, N)
    with raises(ConfigError, key=("algorithm", "worker_priorities")):
        algorithm.check("sync", 4, ReplaySection())
