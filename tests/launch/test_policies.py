"""A stored policy acts for every kind of head, also those whose workers need a schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zmqrl.algorithms.make import make_algorithm
from zmqrl.config.sections import Config
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.errors import StoreError
from zmqrl.launch.configure import load_config
from zmqrl.launch.policies import stored_policy
from zmqrl.networks.initial import initial_weights
from zmqrl.types import EnvSpec, Version

ROWS = 3


def run_with_a_version(preset: str, run_dir: Path) -> tuple[Config, EnvSpec]:
    config = load_config(preset)
    env = probe(config.env)
    algorithm = make_algorithm(config, env)
    weights = {**initial_weights(algorithm.network(), config.run.seed), **algorithm.statistics()}
    DirectoryStore(str(run_dir / "checkpoints"), 8).save(Version(0, 4), weights, {})
    return config, env


@pytest.mark.parametrize("preset", ["cartpole-ppo", "acrobot-ppo", "pendulum-ppo", "cartpole-dqn"])
def test_the_stored_policy_acts_on_one_row_and_on_many(tmp_path: Path, preset: str) -> None:
    config, env = run_with_a_version(preset, tmp_path)
    version, policy = stored_policy(tmp_path, config, env)
    assert version == Version(0, 4)
    obs = np.ones((ROWS, *env.observation.shape), dtype=env.observation.dtype)
    actions = np.array(policy.act_greedily(obs))
    assert actions.shape == (ROWS, *env.action.shape)
    np.testing.assert_allclose(actions[:1], policy.act_greedily(obs[:1]), rtol=1e-5)  # shapes change the last bits


def test_a_run_without_a_version_is_named(tmp_path: Path) -> None:
    config = load_config("cartpole-dqn")
    with pytest.raises(StoreError, match=r"checkpoints has no version"):
        stored_policy(tmp_path, config, probe(config.env))
