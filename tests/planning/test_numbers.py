"""Numbers for envs before a run: who receives them, and whose names they have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from tests.support.runs.system_plans import CARTPOLE, DQN, TALLY, system_plan
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.errors import ConfigError

LEVEL = EnvSection("tests.stand_ins.progress_envs:Level", num_envs=2, max_episode_steps=9)
SCHEDULED: Mapping[str, Any] = {"kind": "tests.stand_ins.tally:ScheduledTally"}


def planned(tmp_path: Path, env: EnvSection, algorithm: Mapping[str, Any] = TALLY) -> bool:
    return system_plan(tmp_path / "run", "single", 1, algorithm, env).env.receives_numbers


def test_numbers_that_nothing_receives_are_refused(tmp_path: Path) -> None:
    what = "neither the env nor a wrapper has a method on_progress"
    with raises(ConfigError, key=("env", "schedule"), value="wind, level", what=what):
        planned(tmp_path, replace(CARTPOLE, schedule={"wind": 1.0, "level": ((0, 1.0),)}))
    assert not planned(tmp_path, CARTPOLE)
    assert planned(tmp_path, replace(CARTPOLE, wrappers=("tests.stand_ins.progress_envs:Sum",), schedule={"wind": 1.0}))


def test_a_name_has_one_source(tmp_path: Path) -> None:
    env = replace(LEVEL, schedule={"level": 1.0, "epsilon": 0.5})
    with raises(ConfigError, key=("env", "schedule"), value="'epsilon'", what="is a name of the algorithm too"):
        planned(tmp_path, env, DQN)
    assert planned(tmp_path, replace(env, schedule={"level": 1.0}), DQN)
    with raises(ConfigError, key=("env", "schedule"), what="has more than 255 characters"):
        planned(tmp_path, replace(env, schedule={"level": 1.0, "n" * 256: 0.5}))


@pytest.mark.parametrize("algorithm", [SCHEDULED])
def test_an_algorithm_may_send_numbers_for_the_env_alone(tmp_path: Path, algorithm: Mapping[str, Any]) -> None:
    """Without such an env a number that the head does not read is a mistake."""
    assert planned(tmp_path, replace(LEVEL, schedule={"level": 1.0}), algorithm)
    with pytest.raises(ConfigError):
        planned(tmp_path, CARTPOLE, algorithm)


def test_an_env_that_refuses_the_first_numbers_is_found_before_the_run(tmp_path: Path) -> None:
    env = replace(LEVEL, kwargs={"least": 1.0}, schedule={"level": ((0, 0.5), (1000, 2.0))})
    with raises(ConfigError, key=("env", "id"), value="'tests.stand_ins.progress_envs:Level'") as caught:
        planned(tmp_path, env)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert planned(tmp_path, replace(env, check=False)), "left to the workers"
