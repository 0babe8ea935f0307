"""SAC's temperature: a tensor that is learned, or the number of the configuration."""

from __future__ import annotations

import numpy as np
import pytest

from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.envs.make import probe
from zmqrl.planning.configure import load_config
from zmqrl.testing.experience import context_of, train, version_0


def sac(temperature: float | str) -> Algorithm:
    overrides = {"algorithm.temperature": temperature, "network.hidden": [8], "algorithm.batch_size": 8}
    config = load_config("pendulum-sac", overrides=overrides)
    return make_algorithm(config, probe(config.env))


def test_a_fixed_temperature_is_that_of_the_configuration_whatever_the_weights() -> None:
    """Those of a run that learned it have another one."""
    algorithm = sac(0.2)
    weights = {**version_0(algorithm), "log_temperature": np.array(-3.0, np.float32)}
    learner = algorithm.learner(context_of(algorithm, weights))
    _, metrics = train(algorithm, learner, range(2))
    assert metrics["temperature"] == pytest.approx(0.2)
    assert not any("log_temperature" in name for name in (*version_0(algorithm), *learner.state()))


def test_a_learned_temperature_begins_with_1_and_changes() -> None:
    algorithm = sac("auto")
    assert version_0(algorithm)["log_temperature"] == 0.0
    learner = algorithm.learner(context_of(algorithm))
    _, metrics = train(algorithm, learner, range(2))
    assert metrics["temperature"] != 1.0 and learner.state()["private.log_temperature"] != 0.0
