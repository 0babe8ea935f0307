"""The key that an unknown one is likely to mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.config.foreign.aliases import KEYS, NO_KEYS, NOTES
from zmqrl.config.keys import all_keys
from zmqrl.errors import ConfigError, key_of
from zmqrl.planning.configure import kinds, load

EXISTING = {key.name.replace("hosts.NAME", "hosts.local") for part in all_keys(kinds()) for key in part.keys}


def test_every_key_that_is_named_exists() -> None:
    named = {key for keys, _ in KEYS.values() for key in keys}
    assert sorted(named - EXISTING) == []
    assert {note for _, note in KEYS.values() if note} == set(NOTES.values())
    assert not NO_KEYS.keys() & KEYS.keys()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("batch_size=64", "in zmqrl it is algorithm.batch_size"),
        ("algorithm.train-batch-size=64", "in zmqrl it is algorithm.batch_size"),
        ("algorithm.clip_range=0.1", "in zmqrl it is algorithm.clip, which algorithm dqn does not have"),
        ("algorithm.gae_lambda=0.9", "(value 0.9); algorithm dqn does not have it; known keys of algorithm: kind, "),
        ("algorithm.clip=0.2", "(value 0.2); algorithm dqn does not have it; known keys of algorithm: kind, "),
        ("algorithm.name=ppo", "did you mean 'kind'?"),
        ("algorithm={name: ppo}", "algorithm.name: unknown key (value 'ppo'); did you mean 'kind'?"),
        ("env.name=CartPole-v1", "did you mean 'id'?"),
        ("limits.start=60", "did you mean 'start_s'?"),
        ("hosts.node1.host=a", "did you mean 'ssh'?"),
        ("hosts.node1.name=a", "known keys of hosts.node1: workers, "),
        ("hosts.node1.yield_when.users=1", "did you mean 'user_active'?"),
        ("evaluator.every=1000", "known keys of evaluator: "),
        ("hosts.node1.worker=1", "did you mean 'workers'?"),
        ("workers=1", "did you mean defaults.workers or hosts.NAME.workers?"),
        ("env.stack=2", "did you mean 'frame_stack'?"),
        ("run.SEED=3", "did you mean 'seed'?"),
        ("true=4", "known keys of the configuration: "),
        ("modes.foo.env.num_envs=0", "modes.foo: unknown key; known keys of modes: single, sync, pipelined, async"),
        ("foo.env.num_envs=0", "foo: unknown key; known keys of the configuration: "),
        ("lr=", "lr: unknown key (value null); in zmqrl it is algorithm.learning_rate"),
        ("algorithm=null", "algorithm: null: must be"),
        ("modes=null", "modes: null: must be"),
        ("algorithm.learning_rate={start:1e-3}", "write a space after the colon: start: 1e-3"),
        ("algorithm.learning_rate.start=", "algorithm.learning_rate.start: required key is missing"),
        ("model.fcnet_hiddens=[8]", "fcnet_hiddens: in zmqrl it is network.hidden"),
        ("env.n_envs=4", "in zmqrl it is env.num_envs (the run has env.num_envs x env.vector_envs envs)"),
        ("run.fraction=0.1", "did you mean algorithm.learning_rate.fraction or algorithm.epsilon.fraction?"),
        ("port=7000", "did you mean defaults.port, learner.port or hosts.NAME.port?"),
        ("run.learning_starst=5", "did you mean replay.learning_starts?"),
        ("run.total_env_step=5", "did you mean 'total_env_steps'?"),
        ("track=1", "each run writes metrics.jsonl and TensorBoard files (tensorboard/) into its run directory"),
        ("quux=1", "known keys of the configuration: run, env, "),
        ("algorithm=dqn", "must be a mapping; did you mean algorithm.kind?"),
        ("env=CartPole-v1", "; did you mean env.id?"),
        ("network.channels=(1, 2)", "must be a list; write [1, 2]"),
        ("run.total_env_steps=100k", "must be a valid integer; write 100000"),
        ("run.total_env_steps=1,000,000", "must be a valid integer; write 1000000"),
        ("seeds=3", "--seeds N of the command line runs N seeds; in Python, loop over seed="),
        ("run.max_wall_s=10m", "must be a valid number; write 600"),
        ("run.max_wall_s=1h", "; write 3600"),
        ("run.max_wall_s=1.5 h", "; write 5400"),
        ("run.max_wall_s=30s", "; write 30"),
        ("run.max_wall_s=2d", "; write 172800"),
        ("run.max_wall_s=10min", "; write 600"),
        ("run.max_wall_s=10k", "; write 10000"),
        ("run.max_wall_s=1,000", "; write 1000"),
        ("run.total_env_steps=10m", "; write 10000000"),
        ("algorithm.kind=DQN", "; did you mean 'dqn'?"),
        ("network.image_layout=CHW", "; did you mean 'chw'?"),
        ("hosts.local.workers=AUTO", "; did you mean 'auto'?"),
        ("algorithm.gamma='0.99'", "; write 0.99"),
        ("algorithm.gamma=0,995", "; write 0.995"),
        ("algorithm.learning_rate='3e-4'", "; write 0.0003"),
        ("limits.heartbeat_s=0.5s", "; write 0.5"),
        ("limits.lost_after_s=1.5s", "; write 1.5"),
        ("run.stop_at_return='-475.5'", "; write -475.5"),
        ("run.total_env_steps='1e6'", "; write 1000000"),
        ("run.total_env_steps=1.001k", "; write 1001"),
        ("run.total_env_steps=8.0", "; write 8"),
        ("code.exclude='*.pt'", '; write ["*.pt"]'),
        ("network.hidden=64 64", "; write [64, 64]"),
        ("network.hidden=64", "; write [64]"),
        ("network.hidden=[64, 8.0]", "item 2 (8.0) must be a valid integer; write [64, 8]"),
        ("network.hidden.0=64", "must be a list, not a section"),
        ("run.debug=yes", "must be true or false; write true"),
        ("run.debug=0", "must be true or false; write false"),
        ("run.name=3", '; write "3" with quotes'),
        ("hosts.node1.env.A=1", '; write "1" with quotes'),
    ],
)
def test_hints(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("cartpole-dqn", overrides=[flag])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "end"),
    [
        ("algorithm.gamma='1.5'", "must be a valid number"),
        ("algorithm.gamma='1e999'", "must be a valid number"),
        ("run.total_env_steps='1.5'", "must be a valid integer"),
        ("run.total_env_steps=0.0001k", "must be a valid integer"),
        ("run.total_env_steps=0,100,000", "must be a valid integer"),
        ("run.max_wall_s=-5s", "must be a valid number"),
        ("network.hidden=[64, 64.5]", "item 2 (64.5) must be a valid integer"),
        ("network.hidden=64x64", "must be a list"),
        (f"network.hidden={[64.0] * 100}", "item 1 (64.0) must be a valid integer"),
        ("env.wrappers=[{a: 1}]", "item 1 ({'a': 1}) must be a valid string, or a mapping (key: value)"),
        ("run.debug=maybe", "must be true or false"),
        ("store=/tmp/x", "keep_every, sync_full_max_mb, async_replay, wait_s; did you mean store.kind?"),
    ],
)
def test_nothing_wrong_is_suggested(flag: str, end: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("cartpole-dqn", overrides=[flag])
    assert str(caught.value).endswith(end)


@pytest.mark.parametrize("name", ["normalize", "normalise", "algorithm.normalize"])
def test_normalisation_is_a_key_of_the_algorithm(name: str) -> None:
    with raises(ConfigError, key=key_of(name), fix="in zmqrl it is algorithm.normalise_obs"):
        load("cartpole-ppo", overrides=[f"{name}=true"])


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("Acrobot-v1", "is an env: zmqrl train --env Acrobot-v1 --algo KIND"),
        ("ALE/Pong-v5", "presets with it: pong-ppo"),
        ("my_lab:Walk-v0", "is an env: zmqrl train --env my_lab:Walk-v0 --algo KIND"),
        ("my_lab.envs:Walk", "is an env: zmqrl train --env my_lab.envs:Walk --algo KIND"),
        ("my_walk.py", "is a Python file: zmqrl train --env my_walk:NAME"),
        ("SAC", "is an algorithm: zmqrl train --env ID --algo sac; presets with it: cartpole-sac, halfcheetah-sac, "),
        ("cartpole", "unknown preset 'cartpole'; presets that begin with it: cartpole-a2c, cartpole-ape_x-dqn, "),
        ("CartPole", "presets that begin with it: cartpole-a2c, "),
        ("minatar", "presets that begin with it: minatar-breakout-dqn, minatar-breakout-ppo, minatar-breakout-pqn"),
        ("config.rainbow.pong", "'config.rainbow.pong' is a config of JORLDY: `zmqrl import config/rainbow/pong.py` "),
        ("cartpole_ppo", "unknown preset 'cartpole_ppo'; did you mean 'cartpole-ppo'? known: acrobot-dqn, "),
        ("x/y", "x/y: file not found"),
    ],
)
def test_of_presets(preset: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(preset)
    assert message in str(caught.value)


def test_all_unknown_keys_are_in_one_message_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "algorithm: {kind: dqn, n_steps: 32}\nn_envs: 8\nstore: {kind: directory, folders: 1}\nenv: {stack: 3}\n"
    )
    with raises(
        ConfigError,
        key=("algorithm", "n_steps"),
        others=(("n_envs",), ("store", "folders"), ("env", "stack")),
        source=f"{file}:1",
        fix="in zmqrl it is env.segment_steps",
    ) as caught:
        load(str(file))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{file}:{number}" for number in (1, 2, 3, 4)]
    assert len(caught.value.more) == 3


def test_all_unknown_keys_are_named_where_a_kind_is_the_users_code() -> None:
    own = "algorithm.kind=zmqrl.algorithms.dqn:DQN"
    with raises(ConfigError, key=("algorithm", "clips"), others=(("env", "stacks"),)):
        load("cartpole-dqn", overrides=[own, "algorithm.clips=1", "env.stacks=1"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("evaluator.deterministic", "zmqrl.load_policy(RUN, stochastic=True)"),
        ("evaluator.env_kwargs", "evaluator.env.kwargs"),
        ("use_sde", "(gSDE) is not available"),
        ("algorithm.use_sde", "(gSDE) is not available"),
    ],
)
def test_names_with_another_meaning(name: str, meant: str) -> None:
    with raises(ConfigError, key=key_of(name)) as caught:
        load("pendulum-sac", overrides=[f"{name}=true"])
    assert meant in caught.value.fix
