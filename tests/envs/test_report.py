"""`env.report`: numbers of `info`, of each step and of each episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.agent_envs import Walkers
from tests.envs.report_envs import REPORT
from tests.support.raising import raises
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.returned import InfoReader
from zmqrl.envs.vector import NativeVectorEnv, make_vector_env
from zmqrl.errors import ConfigError, EnvFault
from zmqrl.metrics.episode_reports import EpisodeReports
from zmqrl.types import Array

STEPS, ENVS = 60, 3


def rows(seed: int) -> tuple[Array, Array, Array]:
    """Values, some of them missing, and which rows are valid and end an episode."""
    drawn = np.random.default_rng(seed)
    values = drawn.normal(size=(STEPS, ENVS, len(REPORT)))
    values[drawn.random(values.shape) < 0.3] = np.nan
    done = drawn.random((STEPS, ENVS)) < 0.15
    valid = np.ones((STEPS, ENVS), bool)
    valid[1:] = ~done[:-1]
    done &= valid
    values[done] = drawn.normal(size=(int(done.sum()), len(REPORT)))  # each episode has each name
    return values, valid, done


def walked(values: Array, valid: Array, done: Array) -> list[list[float]]:
    """Numbers of each episode, in the order of their ends, by a plain walk."""
    found = []
    for t, env in zip(*done.nonzero(), strict=True):
        begin = max([s + 1 for s in range(t) if done[s, env]], default=0)
        steps = [s for s in range(begin, t + 1) if valid[s, env]]
        of = [[v for v in values[steps, env, k].tolist() if v == v] for k in range(len(REPORT))]
        found.append([sum(of[0]) / len(of[0]), sum(of[1]), of[2][-1], min(of[3]), max(of[4])])
    return found


@pytest.mark.parametrize("length", [1, 4, 20])
def test_numbers_of_episodes_over_segments_and_a_full_checkpoint(length: int) -> None:
    parts, reports = rows(length), EpisodeReports(REPORT, "room", (2, ENVS), None)
    for begin in range(0, STEPS, length):
        if begin == 2 * length:
            stored = {name: np.array(array) for name, array in reports.arrays().items()}
            reports = EpisodeReports(REPORT, "room", (3, ENVS), None)
            reports.load_arrays(stored)
        reports.observe(1, *(part[begin : begin + length] for part in parts))
    expected = walked(*parts)
    assert len(expected) > 10
    for place, name in enumerate(REPORT):
        np.testing.assert_allclose(reports.finished[name], [episode[place] for episode in expected], rtol=1e-12)
    means = dict(reports.means())
    assert means["cost"] == pytest.approx(np.mean([episode[1] for episode in expected]))


def test_an_episode_without_the_name_and_one_that_ran_when_the_name_was_new() -> None:
    reports = EpisodeReports({"cost": "sum"}, "room", (1, 1), None)
    values, yes = np.full((1, 1, 1), np.nan), np.ones((1, 1), bool)
    with raises(
        ConfigError,
        key=("env", "report", "cost"),
        what="no step of an episode of env room had info['cost']",
        fix="return it in at least one step of each episode, or remove it",
    ):
        reports.observe(0, values, yes, yes)
    reports.load_arrays({})
    reports.observe(0, values, yes, yes)
    assert not reports.finished["cost"]
    reports.observe(0, np.ones((1, 1, 1)), yes, yes)
    assert list(reports.finished["cost"]) == [1.0]


@pytest.mark.parametrize("value", [None, "warm", float("nan"), float("inf"), [1.0, 2.0], 10**400])
def test_a_value_that_is_not_a_finite_number_is_a_fault_of_the_env(value: Any) -> None:
    section = EnvSection(
        "tests.envs.report_envs:Room", num_envs=2, kwargs={"fault": value}, max_episode_steps=9, report={"cost": "sum"}
    )
    env = make_vector_env(section, probe(section), "sync", 1, 4)
    env.start()
    with pytest.raises(EnvFault) as caught:
        env.step(np.zeros(2, np.int64))
    assert caught.value.what == (
        f"step returned info['cost'] {value!r:.60}; expected a finite number: return a number, or remove 'cost' "
        "from env.report"
    )
    assert caught.value.detail["vector_env"] == 4 and "report_envs.py" in caught.value.place
    env.close()


class Gauge(gym.Env[Any, Any]):
    """Reports the number of its steps, every second time as an array."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        info = {"odd": self._steps} if self._steps % 2 else {"even": np.array([self._steps])}
        return np.zeros(1, np.float32), 0.0, False, False, info


def test_each_step_has_its_own_numbers() -> None:
    section = EnvSection(f"{__name__}:Gauge", num_envs=2, max_episode_steps=9, report={"odd": "sum", "even": "last"})
    env = make_vector_env(section, probe(section), "sync", 1, 0)
    env.start()
    for step in (1, 2, 3):
        env.step(np.zeros(2, np.int64))
        expected = [step, np.nan] if step % 2 else [np.nan, step]
        np.testing.assert_array_equal(env.reports, [expected] * 2)
    env.close()


def test_a_vector_env_of_gymnasium_reports_the_same() -> None:
    section = EnvSection(f"{__name__}:Gauge", num_envs=2, max_episode_steps=9)
    made = gym.vector.SyncVectorEnv([lambda: make_single(section)] * 2)
    env = NativeVectorEnv(probe(section), made, 2, 1, 0, 0)
    env.report_on(("odd", "even"))
    env.start()
    for step in (1, 2, 3):
        env.step(np.zeros(2, np.int64))
        expected = [step, np.nan] if step % 2 else [np.nan, step]
        np.testing.assert_array_equal(env.reports, [expected] * 2)
    env.close()


def test_flags_of_a_vector_env_say_which_envs_have_the_name() -> None:
    reader = InfoReader(["cost", "other"], 3)
    reader.read_vector({"cost": np.array([1.0, np.nan, 3.0]), "_cost": np.array([True, False, True])})
    np.testing.assert_array_equal(reader.values, [[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    assert list(reader.numbers()) == ["cost"]


class Scored(Walkers):
    """Walkers that report the number of their agent."""

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:4], {agent: {"own": place} for place, agent in enumerate(self.possible_agents)}


def test_each_agent_has_its_own_numbers() -> None:
    spec = probe(section := EnvSection(f"{__name__}:Scored", num_envs=3, max_episode_steps=5))
    section = EnvSection(section.id, num_envs=2 * len(spec.agents), max_episode_steps=5, report={"own": "last"})
    env = make_vector_env(section, probe(section), "sync", 1, 0)
    env.start()
    env.step(np.zeros((section.num_envs, *spec.action.shape), spec.action.dtype))
    assert env.reports is not None and env.reports[:, 0].tolist() == [0, 1, 2] * 2
    env.close()
