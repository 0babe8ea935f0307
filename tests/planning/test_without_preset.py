"""`zmqrl train --env ID --algo KIND`: each algorithm has settings for each env that it can train in."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.algorithms.start.make import fitting, kind_of
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection, RunSection
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.without_preset import WithoutPreset
from zmqrl.spaces import SpaceSpec
from zmqrl.types import EnvSpec, ModeName

DISCRETE = [
    *("a2c", "bc", "c51", "cql", "dqn", "impala", "iql", "iqn"),
    *("ppo", "ppo_gru", "pqn", "qrdqn", "r2d2", "rainbow", "reinforce", "sac", "vmpo"),
]
CONTINUOUS = [
    *("a2c", "bc", "cql", "ddpg", "impala", "iql", "mpo"),
    *("ppo", "ppo_gru", "reinforce", "sac", "td3", "tqc", "vmpo"),
]
FITTING = {
    "CartPole-v1": DISCRETE,
    "Pendulum-v1": CONTINUOUS,
    "tests.envs.space_envs:Unmasked": DISCRETE,
    "tests.envs.space_envs:Pair": ["a2c", "bc", "impala", "iql", "ppo", "ppo_gru", "reinforce", "vmpo"],
}


def planned(tmp_path: Path, env: str, algorithm: str, *flags: str, mode: ModeName | None = None) -> RunPlan:
    loaded = load(overrides=flags, mode=mode, workers=2, without_preset=WithoutPreset(env, algorithm))
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


@pytest.mark.parametrize(
    ("env", "algorithm", "mode"),
    [
        (env, algorithm, mode)
        for env, fits in FITTING.items()
        for algorithm in fits
        for mode in ("sync", "async")
        if mode in kind_of(algorithm).modes
    ],
)
@pytest.mark.whole
def test_every_algorithm_has_settings_that_it_accepts(tmp_path: Path, env: str, algorithm: str, mode: ModeName) -> None:
    config = planned(tmp_path, env, algorithm, mode=mode).config
    assert (config.env.id, config.algorithm["kind"], config.run.preset) == (env, algorithm, None)
    assert config.run.total_env_steps >= 100_000


@pytest.mark.parametrize("env", FITTING)
def test_the_defaults_of_behaviour_cloning_are_those_of_mode_offline(tmp_path: Path, env: str) -> None:
    config = planned(tmp_path, env, "bc", "replay.load=data", "run.stop_at_updates=1000").config
    assert (config.mode.offline, config.run.total_env_steps) == (True, RunSection().total_env_steps)
    with raises(ConfigError, key=("run", "mode"), value="'sync'"):
        planned(tmp_path, env, "bc", mode="sync")


@pytest.mark.parametrize("env", FITTING)
def test_what_fits(env: str) -> None:
    assert fitting(probe(EnvSection(id=env))) == FITTING[env]


@pytest.mark.parametrize(
    ("env", "algorithm", "flags", "message"),
    [
        ("CartPole-v1", "td3", (), f"has discrete actions; algorithms for this env: {', '.join(DISCRETE)}"),
        ("Pendulum-v1", "dqn", (), f"has continuous actions; algorithms for this env: {', '.join(CONTINUOUS)}"),
        (
            "tests.envs.space_envs:MaskedBandit",
            "dqn",
            (),
            "has an action_mask; algorithms for this env: a2c, impala, ppo",
        ),
        ("CartPol-v1", "ppo", (), "--env: env.id: no env is registered as 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("CartPole-v1", "trpo", (), "sac, td3, tqc, vmpo; or a dotted path `module:Name`$"),
        ("CartPole-v1", "saac", (), "did you mean 'sac'?"),
        ("CartPole-v1", "ppo", ("algorithm.lr=1",), "in zmqrl it is algorithm.learning_rate"),
        ("CartPole-v1", "ppo", ("run.preset=acrobot-ppo",), "'acrobot-ppo': cannot be combined with --env"),
    ],
)
def test_what_is_refused(tmp_path: Path, env: str, algorithm: str, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, env, algorithm, *flags)
    assert message in f"{caught.value}$"


def test_a_version_that_gymnasium_chooses_is_named(tmp_path: Path) -> None:
    (warning,) = planned(tmp_path, "CartPole", "ppo").warnings
    assert warning.startswith("env.id: 'CartPole' has no version: 'CartPole-v1' is used")
    assert planned(tmp_path, "CartPole-v1", "ppo").warnings == ()


def test_flags_go_over_the_settings(tmp_path: Path) -> None:
    flags = ("env.num_envs=3", "algorithm.minibatch_size=32", "run.total_env_steps=999", "network.hidden=[8]")
    config = planned(tmp_path, "CartPole-v1", "ppo", *flags).config
    assert (config.env.num_envs, config.network.hidden, config.run.total_env_steps) == (3, (8,), 999)
    assert (config.algorithm["minibatch_size"], config.algorithm["normalise_obs"]) == (32, True)


def test_the_spaces_decide(tmp_path: Path) -> None:
    wrapped = 'env.wrappers=[{"zmqrl.envs.select:Select": {entries: [0]}}]'
    assert planned(tmp_path, "CartPole-v1", "ppo", wrapped).env.observation.shape == (1,)
    discrete, continuous = (planned(tmp_path, env, "ppo").config for env in ("CartPole-v1", "Pendulum-v1"))
    assert (discrete.algorithm["ent_coef"], continuous.algorithm["ent_coef"]) == (0.01, 0.0)
    numbered = planned(tmp_path, "tests.envs.space_envs:Numbered1", "ppo").config
    assert numbered.algorithm["normalise_obs"] is False


def test_an_image_has_convolutions_and_a_replay_that_fits() -> None:
    env = EnvSpec("x", SpaceSpec("box", (96, 96, 3), "uint8"), SpaceSpec("discrete", (), "int64", n=4))
    sections = kind_of("dqn").defaults(env)
    assert sections["network"]["kind"] == "cnn"
    assert 10_000 < sections["replay"]["capacity"] * env.observation.nbytes <= 2e9
    small = EnvSpec("x", SpaceSpec("box", (10, 10, 3), "uint8"), env.action)
    for image, expected in ((env, ("cnn", True)), (small, ("mlp", False))):
        for kind in ("ppo", "a2c", "impala"):
            found = kind_of(kind).defaults(image)
            assert (found["network"]["kind"], found["algorithm"]["shared"]) == expected


def test_an_env_without_a_limit_starts_new_episodes_after_a_death(tmp_path: Path) -> None:
    assert planned(tmp_path, "tests.envs.odd_envs:Walker", "sac").config.env.recovery == "restart_episode"
    stateful = planned(tmp_path, "tests.envs.odd_envs:Stateful", "dqn")
    assert stateful.config.env.recovery == "restart_episode", "its methods may have another meaning"
    assert planned(tmp_path, "Pendulum-v1", "sac").config.env.recovery == "exact"


def test_each_agent_has_a_slot(tmp_path: Path) -> None:
    config = planned(tmp_path, "tests.envs.agent_envs:Walkers", "ppo").config
    assert config.env.num_envs == 2 * len(probe(config.env).agents)


@pytest.mark.parametrize(
    ("env", "algorithm", "name"),
    [
        ("CartPole-v1", "ppo", "cartpole-ppo"),
        ("ALE/Pong-v5", "dqn", "pong-dqn"),
        ("my_lab.envs:Walk", "my_lab.algos:Mine", "walk-mine"),
        ("flappy_bird_gymnasium:FlappyBird-v0", "ppo", "flappybird-ppo"),
    ],
)
def test_the_name_is_that_of_a_preset(env: str, algorithm: str, name: str) -> None:
    assert WithoutPreset(env, algorithm).name == name
