"""Data sets in the layout of Minari: as h5py and Minari read them, and as they are read back."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from tests.data_sets.recorded import assert_equal, episode
from tests.support.raising import raises
from zmqrl.data_sets.minari_files import DATA, MAIN, METADATA, read_data_set, write_data_set
from zmqrl.envs.spaces import action_spec, observation_spec
from zmqrl.errors import ConfigError
from zmqrl.spaces import view
from zmqrl.types import EnvSpec

SPACES = {
    "box": (spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)),
    "unbounded": (spaces.Box(-np.inf, np.inf, (2, 2), np.float64), spaces.Discrete(3, start=-1)),
    "discrete": (spaces.Discrete(5, start=2), spaces.MultiDiscrete([2, 3])),
    "image": (spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.MultiBinary(3)),
    "parts": (
        spaces.Dict(a=spaces.Box(0, 255, (4,), np.uint8), b=spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))),
        spaces.Discrete(2),
    ),
    "float parts": (spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Box(-1, 1, (1, 2))), spaces.Discrete(2)),
}


def _env(name: str) -> EnvSpec:
    observation, action = SPACES[name]
    return EnvSpec("tests:Any", observation_spec("tests:Any", observation), action_spec("tests:Any", action))


def _written(tmp_path: Path, name: str) -> tuple[EnvSpec, list]:  # type: ignore[type-arg]
    env, rng = _env(name), np.random.default_rng(5)
    episodes = [episode(env, rng, 3), episode(env, rng, 1), episode(env, rng, 4, ended=False)]
    assert write_data_set(tmp_path / "set", env, "dqn", episodes) == (3, 8)
    return env, episodes


@pytest.mark.parametrize("name", SPACES)
def test_what_was_written_is_read_back(tmp_path: Path, name: str) -> None:
    env, episodes = _written(tmp_path, name)
    for place in (tmp_path / "set", tmp_path / "set" / DATA):
        assert_equal(read_data_set(place, env), episodes)


def test_the_layout_is_that_of_minari(tmp_path: Path) -> None:
    _, episodes = _written(tmp_path, "unbounded")
    with h5py.File(tmp_path / "set" / DATA / MAIN) as file:
        assert list(file) == ["episode_0", "episode_1", "episode_2"]
        group = file["episode_2"]
        assert dict(group.attrs) == {"id": 2, "total_steps": 4, "unfinished": True}
        assert group["observations"].shape == (5, 2, 2) and not group["truncations"][:].any()
        assert np.array_equal(group["actions"], episodes[2].action - 1)  # as the env numbers them
    metadata = json.loads((tmp_path / "set" / DATA / METADATA).read_text())
    assert (metadata["total_episodes"], metadata["total_steps"], metadata["data_format"]) == (3, 8, "hdf5")


@pytest.mark.parametrize("name", SPACES)
def test_minari_reads_it(tmp_path: Path, name: str) -> None:
    minari = pytest.importorskip("minari", reason="Minari is not installed here")
    _, episodes = _written(tmp_path, name)
    found = minari.MinariDataset(tmp_path / "set" / DATA)
    assert (found.total_episodes, found.total_steps, found.id) == (3, 8, "zmqrl/set-v0")
    observation, action = SPACES[name]
    if name != "image":  # MultiBinary is stored as a MultiDiscrete of twos
        assert found.action_space == action
    assert found.observation_space == observation
    for one, own in zip(found.iterate_episodes(), episodes, strict=True):
        assert np.array_equal(one.rewards, own.reward) and np.array_equal(one.terminations, own.terminated)
        assert len(one) == len(own.reward)
        if name in ("box", "unbounded", "image"):
            assert np.array_equal(one.observations, own.obs)


def test_what_minari_wrote_is_read(tmp_path: Path) -> None:
    minari_storage = pytest.importorskip("minari.dataset.minari_storage", reason="Minari is not installed here")
    from minari.data_collector import EpisodeBuffer

    env, rng = _env("parts"), np.random.default_rng(7)
    one = episode(env, rng, 5)
    parts = {part.name: view(one.obs, env.observation, part) for part in env.observation.parts}
    storage = minari_storage.MinariStorage.new(tmp_path / DATA, *SPACES["parts"])
    buffer = EpisodeBuffer(
        observations={"a": parts["a"], "b": (parts["b.0"], parts["b.1"])},
        actions=list(one.action),
        rewards=one.reward.tolist(),
        terminations=one.terminated.tolist(),
        truncations=one.truncated.tolist(),
    )
    storage.update_episodes([buffer])
    assert_equal(read_data_set(tmp_path, env), [one])


def test_actions_are_stored_as_the_env_took_them(tmp_path: Path) -> None:
    env = _env("box")
    one = episode(env, np.random.default_rng(1), 2)
    one.action[0, 0] = 5.0
    write_data_set(tmp_path, env, "ppo", [one])
    assert read_data_set(tmp_path, env)[0].action[0, 0] == 2.0


@pytest.mark.parametrize("kind", ["absent", "cut", "metadata", "group", "format", "spaces", "rows"])
def test_another_file_is_one_message(tmp_path: Path, kind: str) -> None:
    env, _ = _written(tmp_path, "box")
    data = tmp_path / "set" / DATA
    if kind == "absent":
        (data / MAIN).unlink()
    if kind == "cut":
        (data / MAIN).write_bytes((data / MAIN).read_bytes()[:-200])
    if kind == "metadata":
        (data / METADATA).write_text("{")
    if kind == "format":
        (data / METADATA).write_text('{"data_format": "arrow", "total_episodes": 3}')
    if kind in ("group", "rows"):
        with h5py.File(data / MAIN, "r+") as file:
            del file["episode_1" if kind == "group" else "episode_1/rewards"]
            if kind == "rows":
                file["episode_1/rewards"] = np.zeros(7)
    with raises(ConfigError, key=("replay", "load"), value=repr(str(tmp_path / "set"))):
        read_data_set(tmp_path / "set", _env("discrete") if kind == "spaces" else env)
