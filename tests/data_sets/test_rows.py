"""Segments of a data set: what replay draws from them are the transitions of the episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data_sets.recorded import episode
from tests.replay.goals import PLAIN
from zmqrl.data_sets.episodes import Episode
from zmqrl.data_sets.minari_files import read_data_set, write_data_set
from zmqrl.data_sets.rows import LoadedReplay, columns_of, digest_of
from zmqrl.errors import ConfigError
from zmqrl.replay.spec import Prioritised, Relabel, ReplaySpec
from zmqrl.spaces import unpack
from zmqrl.types import EnvSpec, SpaceSpec

ENV = EnvSpec("tests:Any", SpaceSpec("box", (3,), "float32"), SpaceSpec("discrete", (), "int64", n=50))
GAMMA = 0.9


def _episodes() -> list[Episode]:
    rng = np.random.default_rng(3)
    return [episode(ENV, rng, length, ended=length != 5) for length in (4, 9, 1, 5, 12)]


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("steps", [4, 7])
def test_each_row_is_drawn_with_its_successor(tmp_path: Path, steps: int, envs: int) -> None:
    episodes = _episodes()
    write_data_set(tmp_path, ENV, "dqn", episodes)
    replay = LoadedReplay(columns_of(read_data_set(tmp_path, ENV), steps, envs), 1, ReplaySpec())
    assert replay.size == sum(len(one.reward) for one in episodes)
    expected = {
        (*one.obs[t].tolist(), int(one.action[t])): (
            *one.obs[t + 1].tolist(),
            float(one.reward[t]),
            0.0 if one.terminated[t] else np.float32(GAMMA),
        )
        for one in episodes
        for t in range(len(one.reward))
    }
    sample = replay.sample(4000, 1, GAMMA, key=0)
    keys = [(*obs, action) for obs, action in zip(sample.obs.tolist(), sample.action.tolist(), strict=True)]
    found = zip(sample.next_obs.tolist(), sample.n_step_return.tolist(), sample.discount.tolist(), strict=True)
    drawn = {key: (*obs, reward, discount) for key, (obs, reward, discount) in zip(keys, found, strict=True)}
    assert drawn.keys() == expected.keys()
    for key, values in drawn.items():
        assert np.allclose(values, expected[key]), key


@pytest.mark.parametrize("envs", [1, 3])
def test_hindsight_draws_goals_that_the_episode_achieved_later_in_any_segment(envs: int) -> None:
    """Observations name their episode and step as the goal that is achieved; one slot has all of each episode."""
    lengths, flags = (4, 9, 1, 5, 12), np.zeros((2, 12), bool)
    episodes = []
    for number, length in enumerate(lengths):
        goals = np.array([[0, number, step] for step in range(length + 1)], np.float32)
        obs = np.concatenate([goals, goals * 0, goals], axis=1)  # achieved, desired, observation
        rows = np.zeros(length, np.int64), np.zeros(length, np.float32), *flags[:, :length]
        episodes.append(Episode(obs, *rows))
    spec = ReplaySpec(relabel=Relabel("tests.replay.goals:distance", share=1.0))
    replay = LoadedReplay(columns_of(episodes, 4, envs), 1, spec, PLAIN)
    parts = unpack(replay.sample(8000, 1, GAMMA, key=0).obs, PLAIN)
    own, goal = parts["observation"], parts["desired_goal"]
    assert np.array_equal(own[:, 1], goal[:, 1])
    found = {tuple(map(int, (now[1], now[2], then[2]))) for now, then in zip(own, goal, strict=True)}
    expected = {(n, t, g) for n, length in enumerate(lengths) for t in range(length) for g in range(t + 1, length + 1)}
    assert found == expected if envs == 1 else found < expected


def test_an_unfinished_episode_ends_like_a_truncated_one() -> None:
    columns = columns_of(_episodes(), steps=8, envs=1)
    valid, truncated = columns["valid"].reshape(-1), columns["truncated"].reshape(-1)
    at = 4 + 1 + 9 + 1 + 1 + 1 + 5  # rows of the first three episodes, each with its autoreset row, and its own
    assert truncated[at - 1] and valid[at - 1] and not valid[at]
    assert columns["obs"].shape == (5, 9, 1, 3)  # 36 rows


def test_priorities_continue_in_a_replay_made_of_its_state(tmp_path: Path) -> None:
    write_data_set(tmp_path, ENV, "dqn", _episodes())
    columns, spec = columns_of(read_data_set(tmp_path, ENV), 4, 2), ReplaySpec(prioritised=Prioritised())
    first = LoadedReplay(columns, 1, spec)
    for key in range(3):
        sample = first.sample(8, 1, GAMMA, key)
        first.set_priorities(sample, np.arange(1.0, 9.0) * (key + 1))
    second = LoadedReplay(columns_of(read_data_set(tmp_path, ENV), 4, 2), 1, spec, state=first.state())
    one, other = first.sample(64, 1, GAMMA, 3), second.sample(64, 1, GAMMA, 3)
    assert np.array_equal(one.rows, other.rows) and np.array_equal(one.weight, other.weight)


def test_the_digest_is_that_of_the_values(tmp_path: Path) -> None:
    episodes = _episodes()
    write_data_set(tmp_path / "a", ENV, "dqn", episodes)
    write_data_set(tmp_path / "b", ENV, "sac", episodes)
    episodes[2].reward[0] += 1.0
    write_data_set(tmp_path / "c", ENV, "dqn", episodes)
    a, b, c = (digest_of(read_data_set(tmp_path / name, ENV)) for name in "abc")
    assert a == b != c


def test_a_data_set_without_an_env_step_is_refused(tmp_path: Path) -> None:
    write_data_set(tmp_path, ENV, "dqn", [])
    with pytest.raises(ConfigError) as caught:
        read_data_set(tmp_path, ENV)
    assert caught.value.key == ("replay", "load")
