"""`load_policy` and `evaluate` without a run of their own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl
from tests.envs.odd_envs import Counting
from tests.envs.value_envs import Returns
from tests.support.raising import fields, raises
from zmqrl.acting.base import ActingContext, Policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.api.policies import ActionSampler, LoadedPolicy
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.spaces import composite
from zmqrl.types import Array, EnvSpec, SpaceSpec

OBS = SpaceSpec("box", (3,), "float64", 0)
ACTION = SpaceSpec("box", (2,), "float32", 0, (-1.0, -1.0), (1.0, 1.0))


def test_episodes_are_played_to_their_end_on_their_own_seeds() -> None:
    seeds = []

    def policy(obs: Any) -> int:
        if obs[1] == 0.0:
            seeds.append(int(obs[0]))
        return 1

    env = Counting(length=7)
    result = zmqrl.evaluate(policy, env, episodes=3, seed=40)
    assert (result.returns, result.lengths, result.mean, result.std) == ((7.0,) * 3, (7,) * 3, 7.0, 0.0)
    assert seeds == [40, 41, 42]
    assert zmqrl.evaluate(policy, env, episodes=1).lengths == (7,), "it stays open"


def test_an_env_is_made_from_its_id_or_from_the_run_of_the_policy() -> None:
    by_id = zmqrl.evaluate(lambda _: 1, "tests.envs.odd_envs:Counting", episodes=2)
    assert zmqrl.evaluate(lambda _: 1, Counting, episodes=2).returns == by_id.returns
    assert by_id.lengths == (5, 5)

    rewards = []

    class Ones(LoadedPolicy):
        def __call__(self, obs: Any, reward: Any = None) -> Array:
            rewards.append(reward)
            return np.array(1)

    section = EnvSection(id="tests.envs.odd_envs:Counting", kwargs={"length": 3})
    policy = Ones(Fixed(), probe(section), section)
    assert zmqrl.evaluate(policy, episodes=2).lengths == (3, 3)
    assert rewards == [0.0, 1.0, 1.0] * 2, "of the step before"

    section = EnvSection(id="tests.envs.report_envs:Room", max_episode_steps=20, report={"cost": "sum"})
    policy = Ones(Fixed(), probe(section), section)
    result = zmqrl.evaluate(policy, episodes=4)
    assert result.reports == {"cost": np.mean([2 * ((length + 1) // 2) for length in result.lengths])}
    assert zmqrl.evaluate(policy, section.id, episodes=1).reports == {}


@pytest.mark.parametrize(
    ("env", "episodes", "fault"),
    [
        (None, 1, fields("env", what="required: an env, or its id")),
        ("CartPole-v1", 0, fields("episodes", "0", what="at least 1")),
        ("CartPol-v1", 1, fields("env.id", what="no env is registered as 'CartPol-v1'")),
        ({"id": "CartPole-v1"}, 1, fields("env", what="an object of type dict")),
    ],
)
def test_what_cannot_be_evaluated_is_refused(env: Any, episodes: int, fault: dict[str, Any]) -> None:
    with raises(zmqrl.ConfigError, **fault):
        zmqrl.evaluate(lambda _: 0, env, episodes=episodes)


@pytest.mark.parametrize("given", ["runs/a", Path("runs/a")])
def test_a_run_directory_is_not_a_policy(given: Any) -> None:
    what = "expected a function of observations, such as zmqrl.load_policy('runs/a')"
    with raises(zmqrl.ConfigError, key=("policy",), value="'runs/a'", what=what):
        zmqrl.evaluate(given, "CartPole-v1")


class Fixed(Policy):
    """Acts by its noise alone, and counts in its state."""

    def load(self, weights: Any, schedule: Any) -> None:
        return

    def act(self, obs: Array, t: int, context: ActingContext) -> Array:
        return np.float32(5.0) * context.noise.normal[t].astype(np.float32)

    def act_greedily(self, obs: Array, state: Any = None) -> Array:
        return np.zeros((len(obs), 2), np.float32)


def test_sampled_actions_are_in_the_space_and_repeat_with_the_seed() -> None:
    spec = ActingSpec(runtime="numpy", observation=OBS, action=ACTION, layers=(), head="gaussian", extras=())
    drawn = []
    for seed in (1, 1, 2):
        policy = LoadedPolicy(Fixed(), EnvSpec("toy", OBS, ACTION), None, ActionSampler(spec, seed))
        drawn.append([policy(np.zeros((4, 3))).tolist() for _ in range(2)])
    assert drawn[0] == drawn[1] != drawn[2]
    actions = np.array(drawn[0])
    assert actions.shape == (2, 4, 2) and np.abs(actions).max() == 1.0 and len(np.unique(actions)) > 4


def test_sampled_actions_are_clipped_on_the_sides_that_have_a_bound() -> None:
    action = SpaceSpec("box", (2,), "float32", low=(0.0, -math.inf), high=(math.inf, 1.0))
    spec = ActingSpec(runtime="numpy", observation=OBS, action=action, layers=(), head="gaussian", extras=())
    policy = LoadedPolicy(Fixed(), EnvSpec("toy", OBS, action), None, ActionSampler(spec, 1))
    actions = policy(np.zeros((200, 3)))
    assert actions[:, 0].min() == 0.0 and actions[:, 0].max() > 1.0
    assert actions[:, 1].max() == 1.0 and actions[:, 1].min() < -1.0


def test_a_name_of_another_library_is_answered() -> None:
    policy = LoadedPolicy(Fixed(), EnvSpec("toy", OBS, ACTION))
    with pytest.raises(AttributeError, match=r"'predict'; call it: policy\(obs\)"):
        policy.predict  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"write zmqrl.train\(PRESET\)"):
        zmqrl.PPO  # type: ignore[attr-defined]  # noqa: B018


PARTS = composite([("a", OBS, ("a",)), ("b", SpaceSpec("discrete", (), "int64", n=4), ("b",))])


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (OBS, np.zeros(4), r"^observation of shape \(4,\); the policy was trained with \(3,\)$"),
        (OBS, np.zeros((5, 4)), r"^observation of shape \(5, 4\); .* \(3,\)$"),
        (OBS, np.zeros((2, 5, 3)), r"^observation of shape \(2, 5, 3\); .* \(3,\)$"),
        (OBS, 1.0, r"^observation of shape \(\); .* \(3,\)$"),
        (OBS, None, r"^observation of type NoneType; .* \(3,\)$"),
        (OBS, {"a": [1, 2, 3]}, r"^observation of type dict; .* \(3,\)$"),
        (OBS, [[1, 2, 3], [1]], r"^observation of type list: .* \(3,\)$"),
        (OBS, (np.zeros(3), {}), r"^observation of type tuple: .* \(3,\)$"),
        (PARTS, {"a": [1, 2, 3]}, r"without part 'b' .*; the policy was trained with a: \(3,\), b: discrete \[4\]$"),
        (PARTS, {"a": 1.0, "b": 1}, r"part 'a' of an observation of shape \(\), its space has \(3,\); the policy was"),
        (PARTS, {"a": [1, 2], "b": 1}, r"of shape \(2,\), its space has \(3,\); the policy was trained with a: \(3,\)"),
        (PARTS, None, r"without part 'a' \(found: NoneType\); the policy was trained with"),
    ],
)
def test_an_observation_of_another_space_is_named(space: SpaceSpec, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoadedPolicy(Fixed(), EnvSpec("toy", space, ACTION))(obs)


PIXELS = SpaceSpec("box", (3,), "uint8", 0)


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (PIXELS, np.full(3, 0.5), r"an observation of dtype float64, its space has dtype uint8; the policy was .*"),
        (PIXELS, [0.5, 1.0, 0.0], r"an observation of dtype float64, its space has dtype uint8; .*"),
        (PIXELS, np.full((2, 3), 300), r"an observation with 300, its space has dtype uint8 \(0 to 255\); .*"),
        (PIXELS, [-1, 0, 0], r"an observation with -1, its space has dtype uint8 \(0 to 255\); .*"),
        (OBS, [0.0, math.nan, 0.0], r"the observation has NaN: \[ 0. nan  0.\]; the policy was trained with \(3,\)"),
        (OBS, np.full((2, 3), 1e39), r"the observation has a number that is not finite in float32: .*"),
        (OBS, np.full(3, 1j), r"an observation of dtype complex128, its space has dtype float64; .*"),
        (OBS, ["a", "b", "c"], r"an observation of dtype <U1, its space has dtype float64; .*"),
        (PARTS, {"a": [0.0, math.nan, 0.0], "b": 1}, r"part 'a' of the observation has NaN: .*"),
        (PARTS, {"a": np.zeros((2, 3)), "b": [1, 4]}, r"part 'b' of an observation \[1 4\], which is outside of .*"),
        (PARTS, {"a": np.zeros((2, 3)), "b": [1.0, 2.0]}, r"part 'b' of an observation of dtype float64, .*"),
    ],
)
def test_a_number_that_the_space_cannot_hold_is_refused(space: SpaceSpec, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        LoadedPolicy(Fixed(), EnvSpec("toy", space, ACTION))(obs)


@pytest.mark.parametrize("obs", [[1, 2, 3], np.ones(3, np.int64), np.ones((4, 3), bool), np.ones(3, np.float16)])
def test_numbers_of_another_dtype_that_the_space_holds_are_accepted(obs: Any) -> None:
    for space in (OBS, SpaceSpec("box", (3,), "float32", 0), *([PIXELS] if np.asarray(obs).dtype.kind != "f" else [])):
        assert LoadedPolicy(Fixed(), EnvSpec("toy", space, ACTION))(obs).shape == (*np.shape(obs)[:-1], 2)


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        ({"terminated": "list false"}, "step returned terminated [False]; expected True or False"),
        ({"truncated": "two"}, "step returned truncated of shape (2,); expected True or False"),
        ({"reward": "text"}, "step returned the reward '1.0'; expected one number"),
    ],
)
def test_an_env_of_the_caller_that_returns_something_else_is_named(kwargs: dict[str, str], what: str) -> None:
    with raises(zmqrl.errors.EnvFault, subject="env Returns, seed 7", what=what) as caught:
        zmqrl.evaluate(lambda _: 0, Returns(**kwargs), episodes=1, seed=7)
    assert caught.value.place.startswith("tests/envs/value_envs.py:")


@pytest.mark.parametrize(
    ("trained", "env", "fault"),
    [
        ("CartPole-v1", "Acrobot-v1", fields("env", what="Acrobot-v1 has observations (6,)")),
        ("CartPole-v1", Counting(), fields("env", what="Counting has observations (3,)")),
        ("MountainCar-v0", "MountainCarContinuous-v0", fields("env", what="MountainCarContinuous-v0 has actions (1,)")),
    ],
)
def test_an_env_of_other_spaces_is_refused_before_it_is_played(trained: str, env: Any, fault: dict[str, Any]) -> None:
    with raises(zmqrl.ConfigError, **fault):
        zmqrl.evaluate(LoadedPolicy(Fixed(), probe(EnvSection(id=trained))), env, episodes=1)
