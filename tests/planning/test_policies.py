"""A stored policy acts for every kind of head, also those whose workers need a schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.raising import raises
from tests.support.stored_runs import store_run
from zmqrl.data_stores import tensors
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError, DamagedCheckpoints, StoreError
from zmqrl.planning.configure import load_config
from zmqrl.planning.policies import named_checkpoint, newest_or_best, stored_policy
from zmqrl.types import Version

ROWS = 3


@pytest.mark.parametrize("preset", ["cartpole-ppo", "acrobot-ppo", "pendulum-ppo", "cartpole-dqn"])
def test_the_stored_policy_acts_on_one_row_and_on_many(tmp_path: Path, preset: str) -> None:
    config, env, _ = store_run(preset, tmp_path)
    version, policy = stored_policy(tmp_path, config, env)
    assert version == Version(0, 4)
    obs = np.ones((ROWS, *env.observation.shape), dtype=env.observation.dtype)
    actions = np.array(policy.act_greedily(obs))
    assert actions.shape == (ROWS, *env.action.shape)
    np.testing.assert_allclose(actions[:1], policy.act_greedily(obs[:1]), rtol=1e-5)  # shapes change the last bits


def test_a_run_without_a_version_is_named(tmp_path: Path) -> None:
    config = load_config("cartpole-dqn")
    with raises(StoreError, place=str(tmp_path / "checkpoints"), what="has no version of the policy"):
        stored_policy(tmp_path, config, probe(config.env))


def test_damaged_checkpoints_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log where another one is taken, in the error where none is left."""
    _, _, weights = store_run("cartpole-dqn", tmp_path, 3, 5)
    place = tmp_path / "checkpoints"
    DirectoryStore(str(place), 8).save_best(Version(0, 5), tensors.dump(weights, {}), 7.0)
    (place / "best-0-5.safetensors").write_bytes(b"cut")
    assert newest_or_best(DirectoryStore(str(place), 8), "place")[0] == Version(0, 5)
    (line,) = caplog.messages
    assert line.startswith("place: 1 checkpoint cannot be loaded: best-0-5.safetensors")
    for path in place.glob("v*"):
        path.write_bytes(b"cut")
    caplog.clear()
    with raises(DamagedCheckpoints, place="place", what="has 3 checkpoints, and none can be loaded"):
        newest_or_best(DirectoryStore(str(place), 8), "place")
    assert not caplog.messages


def test_checkpoints_by_name(tmp_path: Path) -> None:
    _, _, weights = store_run("cartpole-dqn", tmp_path, 3, 5)
    store = DirectoryStore(str(tmp_path / "checkpoints"), 8)
    store.keep(Version(0, 1), weights, {"env_steps": "100"})
    store.save(Version(1, 5), weights, {})
    newest = store.newest()
    assert newest is not None
    store.save_best(Version(0, 2), newest[1], 7.0)
    named = {"best": (0, 2), "last": (1, 5), "0-3": (0, 3), "v0-1": (0, 1), "5": (1, 5), "0-5": (0, 5), "2": (0, 2)}
    for name, version in named.items():
        assert named_checkpoint(store, "place", name)[0] == version
    names = "write best, last or a version such as 0-120; "
    for wrong, hint in (("4", ""), ("1-1", ""), ("final", names), ("0-3-1", names)):
        fix = f"{hint}its versions: 1-5 (last), 0-5, 0-3, 0-2 (best), 0-1"
        with raises(ConfigError, key=("--checkpoint",), value=wrong, what="not found in place", fix=fix):
            named_checkpoint(store, "place", wrong)


def test_the_only_checkpoint_is_damaged(tmp_path: Path) -> None:
    store_run("cartpole-dqn", tmp_path, 3)
    place = tmp_path / "checkpoints"
    (place / "v0-3.safetensors").write_bytes(b"")
    cause = "v0-3.safetensors: the file is empty"
    with raises(DamagedCheckpoints, what="has 1 checkpoint, and none can be loaded", cause=cause):
        newest_or_best(DirectoryStore(str(place), 8), "place")
