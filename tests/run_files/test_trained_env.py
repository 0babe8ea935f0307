"""A run is continued, scored and exported in the env that it was trained in, or the difference is named."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

import zmqrl
from tests.envs.changing_envs import CONSTRUCTED, VARIANT, VARIANTS
from tests.support.raising import raises
from tests.support.stored_runs import store_run
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.exported import exported_of
from zmqrl.planning.initial_weights import initial_weights_of
from zmqrl.run_files.trained_env import (
    KEY,
    OF_EPISODES,
    check_trained_env,
    differences,
    read_trained_env,
    stored_env,
)
from zmqrl.types import EnvSpec, StateSpec

CHANGING = "tests.envs.changing_envs:Changing"
RUN: dict[str, Any] = {"env__id": CHANGING, "env__max_episode_steps": 20, "learner__executor": "manual"}


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda name: monkeypatch.setenv(VARIANT, name)


def spec(monkeypatch: pytest.MonkeyPatch, name: str) -> EnvSpec:
    monkeypatch.setenv(VARIANT, name)
    return probe(EnvSection(id=CHANGING))


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_stored_as_json_readable_by_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    env = replace(spec(monkeypatch, name), state=StateSpec("bytes", (8,)), agents=("a", "b"), max_episode_steps=9)
    (tmp_path / "config.json").write_text(json.dumps({KEY: stored_env(env)}, allow_nan=False))
    assert read_trained_env(tmp_path) == env
    check_trained_env(tmp_path, env, OF_EPISODES)


CHANGES: list[tuple[str, str, list[tuple[str, Any, Any]]]] = [
    ("", "sensor", [("observation shape", [3], [4])]),
    ("", "column", [("observation shape", [3], [3, 1])]),
    ("", "doubles", [("observation dtype", "float32", "float64")]),
    ("", "range", [("observation high", [1.0], [2.0])]),
    ("", "unbounded", [("observation low", [-1.0], []), ("observation high", [1.0], [])]),
    ("kind", "more values", [("observation nvec[2]", 3, 4)]),
    ("", "action", [("action n", 2, 3)]),
    ("", "start", [("action start", 0, 1)]),
    ("several", "other several", [("action nvec[1]", 3, 4)]),
    ("several", "shifted several", [("action starts", [], [1, 1])]),
    ("continuous", "stronger", [("action low[1]", -1.0, -2.0), ("action high[1]", 1.0, 2.0)]),
    ("continuous", "half-open", [("action high[1]", 1.0, math.inf)]),
    ("continuous", "third motor", [("action shape", [2], [3])]),
    ("named", "renamed", [("observation 'b'", "discrete", "absent"), ("observation 'c'", "absent", "discrete")]),
    ("named", "longer part", [("observation 'a' shape", [3], [5])]),
]


@pytest.mark.parametrize(("before", "now", "found"), CHANGES)
def test_each_change_is_named_with_both_values(
    monkeypatch: pytest.MonkeyPatch, before: str, now: str, found: list[tuple[str, Any, Any]]
) -> None:
    one, other = spec(monkeypatch, before), spec(monkeypatch, now)
    assert list(differences(one, other)) == found
    assert not list(differences(other, other, OF_EPISODES))


def test_what_only_running_episodes_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = spec(monkeypatch, "")
    other = replace(one, max_episode_steps=5, state=StateSpec("uint8", (4,)), reward_threshold=3.0, native_vector=True)
    assert not list(differences(one, other))
    assert [found[0] for found in differences(one, other, OF_EPISODES)] == ["max_episode_steps", "state"]
    assert list(differences(one, replace(one, agents=("a", "b")))) == [("agents", [], ["a", "b"])]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("sensor", "observation shape: the run was trained with [3], the env now has [4]"),
        ("range", "observation high: the run was trained with [1.0], the env now has [2.0]"),
        ("start", "action start: the run was trained with 0, the env now has 1"),
        ("continuous", "action kind: the run was trained with 'discrete', the env now has 'box'"),
    ],
)
def test_a_resume_is_refused_before_anything_is_started(tmp_path: Path, variant: Any, name: str, what: str) -> None:
    store_run("cartpole-ppo", tmp_path, **RUN)
    plan = checked_plan(load(stored=tmp_path).config, tmp_path, time.time(), resume=True)
    assert read_trained_env(tmp_path) == plan.env
    variant(name)
    loaded = load(stored=tmp_path)
    with raises(ConfigError, key=("env", "id"), fix="restore the env, or start a new run") as caught:
        checked_plan(loaded.config, tmp_path, time.time(), resume=True, sources=loaded.sources)
    assert caught.value.what.split("; ")[0] == what


def test_a_resume_with_another_limit_is_refused(tmp_path: Path) -> None:
    store_run("cartpole-ppo", tmp_path)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    stored[KEY]["max_episode_steps"] = 200
    path.write_text(json.dumps(stored))
    with raises(
        ConfigError, key=("env", "id"), what="max_episode_steps: the run was trained with 200, the env now has 500"
    ):
        checked_plan(load(stored=tmp_path).config, tmp_path, time.time(), resume=True)


def test_a_damaged_spec_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({KEY: {"id": 3}}))
    with raises(ConfigError, key=("env_spec",), what="Expected `str`, got `int` - at `$.id`"):
        read_trained_env(tmp_path)


def test_a_policy_is_loaded_and_exported_without_its_env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: Any
) -> None:
    store_run("cartpole-ppo", tmp_path, **RUN)
    monkeypatch.setenv(CONSTRUCTED, str(tmp_path / "constructed"))
    variant("sensor")
    policy = zmqrl.load_policy(tmp_path)
    assert policy([0.0, 0.0, 0.0]).shape == ()
    assert exported_of(tmp_path, "last")[0].observation.shape == (3,)
    assert not (tmp_path / "constructed").exists()
    with pytest.raises(ValueError, match=r"observation of shape \(4,\); the policy was trained with \(3,\)"):
        policy([0.0, 0.0, 0.0, 0.0])
    with raises(ConfigError, key=("env",), what="Changing has observations (4,)"):
        zmqrl.evaluate(policy, episodes=1)


def test_the_spaces_of_the_env_to_score_in(tmp_path: Path, variant: Any) -> None:
    """That of the run is the one that was trained in; another one may have other bounds of observations."""
    variant("continuous")
    store_run("pendulum-ppo", tmp_path, **RUN)
    policy = zmqrl.load_policy(tmp_path)
    variant("stronger")
    for env in (None, CHANGING):
        with raises(ConfigError, key=("env",), what="Changing has action low[1] -2.0"):
            zmqrl.evaluate(policy, env, episodes=1)
    variant("")
    store_run("cartpole-ppo", tmp_path / "other", **RUN)
    policy = zmqrl.load_policy(tmp_path / "other")
    variant("range")
    assert zmqrl.evaluate(policy, CHANGING, episodes=1).returns == (5.0,)
    with raises(ConfigError, key=("env",), what="Changing has observation high [2.0]"):
        zmqrl.evaluate(policy, episodes=1)


def test_a_run_that_starts_from_weights_of_another_env_is_warned(tmp_path: Path, variant: Any) -> None:
    variant("continuous")
    config, env, _ = store_run("pendulum-ppo", tmp_path, **RUN)
    (missing,) = initial_weights_of(str(tmp_path), make_algorithm(config, env)).warnings
    variant("stronger")
    warnings = initial_weights_of(str(tmp_path), make_algorithm(config, probe(config.env))).warnings
    texts = ("action low[1]: the run was trained with -1.0, the env now has -2.0", "action high[1]: the run was ")
    assert len(warnings) == 3 and warnings[2] == missing
    assert all(text in warning for text, warning in zip(texts, warnings, strict=False))
    assert warnings[0].startswith(f"run.init_from: {tmp_path}: ")
