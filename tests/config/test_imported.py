"""Presets from the configurations of other libraries: what each setting becomes, and that the presets load."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.cli.commands import Command
from tests.cli.conftest import empty_directory as empty_directory
from tests.cli.conftest import zmqrl as zmqrl
from tests.support.raising import raises
from zmqrl.config.foreign.aliases import KEYS, NO_KEYS
from zmqrl.config.foreign.kinds import instead_of
from zmqrl.config.foreign.preset import preset
from zmqrl.config.foreign.settings import read
from zmqrl.config.foreign.values import CONVERSIONS
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import config_of, load

INPUTS = Path(__file__).with_name("imports")
CLEANRL = "python cleanrl/ppo.py --env-id Acrobot-v1 --total-timesteps 100_000 --no-anneal-lr --num-envs=8 --track"
"""On a command line; `own/cleanrl.sh` is a file."""
EXPECTED: dict[tuple[str, str | None], dict[str, Any]] = {
    ("ppo.yml", "CartPole-v1"): {
        "run.total_env_steps": 100_000,
        "env.id": "CartPole-v1",
        "env.num_envs": 2,  # in 4 vector envs
        "env.segment_steps": 32,
        "network.kind": "mlp",
        "algorithm.kind": "ppo",
        "algorithm.minibatch_size": 256,
        "algorithm.gae_lambda": 0.8,
        "algorithm.epochs": 20,
        "algorithm.learning_rate": {"start": 0.001, "end": 0.0},
        "algorithm.clip": {"start": 0.2, "end": 0.0},
    },
    ("ppo.yml", "Pendulum-v1"): {
        "algorithm.normalise_obs": True,
        "algorithm.normalise_reward": True,
        "algorithm.log_std_init": -2,
        "env.segment_steps": 2048,  # of Stable-Baselines3
        "network.hidden": [256],
    },
    ("flat.yaml", None): {"algorithm.kind": "ppo", "algorithm.minibatch_size": 256},
    ("rllib.yaml", None): {"run.stop_at_return": 150, "algorithm.gamma": 0.99, "algorithm.learning_rate": 3e-4},
    ("mlagents.yaml", None): {
        "run.total_env_steps": 500_000,
        "network.hidden": [20, 20],
        "algorithm.minibatch_size": 32,
        "env.segment_steps": 64,  # 256 rows of 4 envs
        "algorithm.normalise_obs": False,
    },
    ("jorldy.py", None): {
        "env.id": "CartPole-v1",
        "env.num_envs": 2,
        "replay.capacity": 50_000,
        "algorithm.kind": "dqn",
        "algorithm.double": False,
        "algorithm.optimiser": "adam",
        "algorithm.learning_rate": {"start": 1e-4, "end": 0.0},
    },
    ("coach.py", None): {"algorithm.kind": "ppo"},
    ("own/dqn.yml", "CartPole-v1"): {
        "network.hidden": [256, 256],
        "replay.ratio": 0.5,
        "algorithm.target_update_every": 5,  # 10 env steps
        "algorithm.epsilon": {"fraction": 0.16, "end": 0.04},
    },
    ("own/dqn.yml", "atari"): {"env.frame_stack": 4, "replay.ratio": 0.25},
    ("own/sac.yml", None): {
        "replay.ratio": 1.0,
        "replay.learning_starts": 100,
        "network.activation": "relu",
        "algorithm.temperature": "auto",
        "algorithm.warmup_env_steps": 100,
    },
    ("own/rllib-dqn.yaml", None): {
        "run.max_wall_s": 600,
        "run.stop_at_return": 150,
        "replay.capacity": 50_000,
        "algorithm.batch_size": 32,
        "algorithm.double": True,
        "algorithm.epsilon": {"start": 1.0, "end": 0.02, "fraction": 0.1},
    },
    ("own/mlagents-sac.yaml", "Walker"): {
        "env.segment_steps": 5120,
        "network.hidden": [256] * 3,
        "algorithm.ent_coef": 0.005,
        "algorithm.clip": 0.2,
        "algorithm.epochs": 3,
    },
    ("own/cleanrl.sh", None): {
        "env.id": "Acrobot-v1",
        "run.seed": 3,
        "replay.ratio": 0.1,
        "algorithm.target_update_every": 50,
        "algorithm.learning_rate": 1e-3,
    },
    (CLEANRL, None): {
        "env.id": "Acrobot-v1",
        "env.num_envs": 2,
        "run.total_env_steps": 100_000,
        "algorithm.minibatch_size": 256,  # 8 x 128 rows in 4
        "algorithm.learning_rate": 2.5e-4,
        "algorithm.value_clip": 0.2,
        "algorithm.vf_coef": 0.25,  # of the whole error
    },
    ("own/jorldy_ppo.py", None): {
        "env.segment_steps": 128,
        "algorithm.gae_lambda": 0.95,
        "algorithm.clip": 0.1,
        "algorithm.epochs": 3,
        "algorithm.max_grad_norm": 1.0,
    },
    ("own/jorldy_per.py", None): {
        "algorithm.prioritised": {"alpha": 0.7, "beta": 0.5},
        "replay.ratio": 1 / 16,  # learn_period of JORLDY's PER
        "algorithm.target_update_every": 31,
    },
    ("own/jorldy_r2d2.py", None): {
        "env.segment_steps": 12,  # 4 rows, and 4 times those between two sequences
        "algorithm.burn_in": 1,
        "algorithm.length": 3,
        "algorithm.stride": 2,
        "algorithm.prioritised": {"alpha": 0.6, "uniform_mix": 0.001},
    },
    ("own/jorldy_rainbow.py", None): {"algorithm.high": 10, "replay.ratio": 0.5, "algorithm.n_step": 4},
    ("own/jorldy_rainbow_iqn.py", None): {
        "algorithm.kind": "iqn",
        "algorithm.noisy": True,
        "algorithm.dueling": True,
        "algorithm.prioritised": {"alpha": 0.6},
        "algorithm.n_step": 3,
        "algorithm.quantiles": 32,
        "replay.ratio": 0.25,
    },
    ("own/jorldy_m_dqn.py", None): {
        "algorithm.munchausen": {"alpha": 0.8, "temperature": 0.05, "clip": 2},
        "replay.ratio": 1.0,
        "algorithm.target_update_every": 500,
    },
    ("own/CartPole_DQN.py", None): {
        "run.total_env_steps": 100_000,
        "run.stop_at_return": 150,
        "replay.learning_starts": 1000,
        "replay.capacity": 40_000,
        "algorithm.gamma": 0.99,
        "algorithm.target_update_every": 25,
        "algorithm.epsilon": {"start": 1.0, "end": 0.01, "fraction": 0.1},
    },
}
LEFT_OUT = {
    ("ppo.yml", "Pendulum-v1"): ["use_sde", "policy_kwargs.net_arch.vf"],
    ("flat.yaml", None): ["env.id"],
    ("rllib.yaml", None): ["config.framework", "config.num_workers", "config.entropy_coeff_schedule"],
    ("jorldy.py", None): ["env.render", "train.num_workers", "agent.network", "env.name"],
    ("own/dqn.yml", "atari"): ["env.id", "policy", "env_wrapper"],
    ("own/sac.yml", None): ["callback", "policy_kwargs.optimizer_kwargs.eps", "hidden_size"],
    ("own/rllib-dqn.yaml", None): ["config.lr", "config.model.fcnet_activation", "config.num_env_runners"],
    ("own/mlagents-sac.yaml", "Walker"): ["env.id", "time_horizon", "environment_parameters"],
    (CLEANRL, None): ["track"],
    ("own/jorldy_rainbow.py", None): ["agent.v_max"],
    ("own/jorldy_m_dqn.py", None): ["train.eval_iteration", "train.update_period"],
    ("own/CartPole_DQN.py", None): ["steps_between_evaluation_periods"],
}


def test_an_algorithm_of_another_library_is_named_and_a_class_of_the_user_is_not() -> None:
    assert instead_of("icm_ppo") == "in zmqrl it is ppo with algorithm.intrinsic.kind=icm"
    assert instead_of("rainbow:DQN") is None and instead_of("my_algorithm") is None


def content(source: str) -> str:
    """Python files have another ending here: no tool reads them as code of this project."""
    if source == CLEANRL:
        return source
    return (INPUTS / (f"{source}.txt" if source.endswith(".py") else source)).read_text()


def imported(source: str, entry: str | None, **others: str) -> str:
    return preset(read(content(source), source, entry), config_of, **others)


def keys(text: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return {f"{section}.{name}": value for section, part in found.items() for name, value in part.items()}


@pytest.mark.parametrize(("source", "entry"), EXPECTED)
def test_what_settings_become(source: str, entry: str | None) -> None:
    text = imported(source, entry)
    expected = EXPECTED[source, entry]
    assert {key: value for key, value in keys(text).items() if key in expected} == expected
    left_out = [line for line in text.splitlines() if line.startswith("# - ")]
    for name in LEFT_OUT.get((source, entry), ()):
        assert any(line.startswith(f"# - {name}: ") for line in left_out), (name, left_out)


@pytest.mark.parametrize(("source", "entry"), EXPECTED)
def test_every_setting_is_a_key_or_a_comment(source: str, entry: str | None) -> None:
    text = imported(source, entry)
    foreign = read(content(source), source, entry)
    assert [name for name in foreign.settings if f"{name}: " not in text] == []


@pytest.mark.parametrize(("source", "entry"), EXPECTED)
def test_the_preset_trains(source: str, entry: str | None, zmqrl: Command) -> None:
    file = source if source == CLEANRL else Path(source).name
    if source != CLEANRL:
        Path(file).write_text(content(source))
    written = zmqrl("import", file, *filter(None, [entry]), "-o", "a.yaml")
    assert (written.code, written.out) == (0, "zmqrl train a.yaml\n"), written.err
    planned = zmqrl("train", "a.yaml", "--dry-run")
    assert planned.code == 0, planned.err
    assert f"{EXPECTED[source, entry].get('algorithm.kind', '')} on " in planned.out.splitlines()[0]


def test_env_and_algorithm_of_the_command_line() -> None:
    found = keys(imported("own/mlagents-sac.yaml", "3DBall", env="Pendulum-v1", algorithm="td3"))
    assert (found["env.id"], found["algorithm.kind"], found["replay.ratio"]) == ("Pendulum-v1", "td3", 0.1)
    assert found["algorithm.gamma"] == 0.98  # not that of curiosity
    assert found["replay.capacity"] == 12_000  # not that of the memory of the network


RLLIB = """
a:
  env: CartPole-v1
  run: PPO
  config:
    num_workers: 2
    num_envs_per_worker: 4
    train_batch_size: 4000
    vf_clip_param: 10.0
    lr_schedule: [[0, 0.001], [50000, 0.0001]]
    model: {use_lstm: true}
    observation_filter: MeanStdFilter
    num_steps_sampled_before_learning_starts: 10
  stop: {timesteps_total: 100000}
"""


def test_settings_with_another_meaning_in_rllib() -> None:
    text = preset(read(RLLIB, "a.yaml"), config_of)
    found = keys(text)
    assert (found["env.vector_envs"], found["env.num_envs"], found["env.segment_steps"]) == (4, 2, 500)
    assert found["algorithm.learning_rate"] == [[0, 0.001], [50_000, 0.0001]]
    assert found["algorithm.normalise_obs"] is True
    assert not {"algorithm.value_clip", "replay.learning_starts"} & found.keys()
    for name in ("config.vf_clip_param", "config.num_steps_sampled_before_learning_starts", "config.model.use_lstm"):
        assert f"# - {name}: " in text


def test_merge_keys_and_ids_of_old_atari_envs() -> None:
    found = keys(imported("own/dqn.yml", "PongNoFrameskip-v4"))
    assert (found["env.id"], found["run.total_env_steps"]) == ("ALE/Pong-v5", 2_000_000)
    assert (found["network.kind"], found["algorithm.batch_size"]) == ("cnn", 32)


@pytest.mark.parametrize(
    ("text", "name", "entry", "key"),
    [
        ("A-v0: {n_timesteps: 1}\nB-v0: {n_timesteps: 1}\n", "ppo.yml", None, ("ENTRY",)),
        ("A-v0: {n_timesteps: 1}\n", "ppo.yml", "C-v0", ("ENTRY",)),
        ("A-v0: {n_timesteps: 1}\n", "trpo.yml", None, ("--algo",)),
        ("a: 1\n", "a.yaml", None, ()),
        ("a = 1\n", "a.py", None, ()),
        ("env = {'a': (\nagent = 1\n", "a.py", None, ()),
        ("a: !!python/object:os.system [ls]\n", "a.yaml", None, ()),
    ],
)
def test_what_cannot_be_imported(text: str, name: str, entry: str | None, key: tuple[str, ...]) -> None:
    with raises(ConfigError, key=key):
        preset(read(text, name, entry), config_of)


def test_hostile_names_and_values_stay_in_their_comment() -> None:
    text = 'A-v0:\n  n_timesteps: 1\n  "x\\nrun: {seed: 7}\\n": "a\\nenv: 1"\n  gamma: "1\\nenv: {id: B}"\n'
    found = keys(preset(read(text, "ppo.yml"), config_of))
    assert found["env.id"] == "A-v0"
    assert not {"run.seed", "algorithm.gamma"} & found.keys()


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("ppo.yml", ["import ppo.yml CartPole-v1", "import ppo.yml Pendulum-v1"]),
        ("rllib.yaml", ["import rllib.yaml cartpole-ppo"]),
        ("mlagents.yaml", ["import mlagents.yaml"]),
        ("jorldy.py", ["import jorldy.py"]),
        ("coach.py", ["import coach.py"]),
        ("flat.yaml", ["env.num_envs", "run.total_env_steps", "network.kind", "env.segment_steps", "minibatch_size"]),
    ],
)
def test_training_with_such_a_file_names_the_command_or_all_keys(file: str, names: list[str], zmqrl: Command) -> None:
    Path(file).write_text(content(file))
    ended = zmqrl("train", file)
    assert ended.code == 2
    assert [name for name in names if name not in ended.err] == []


VALUES = [
    0,
    -1,
    3,
    1e-3,
    1e300,
    math.inf,
    True,
    None,
    "x",
    "lin_x",
    "auto",
    [],
    [[0, 1], [2, 3]],
    {"a": 1},
    {},
    "a\nb: 1",
]


@pytest.mark.parametrize(("algorithm", "kind"), [("ape_x", "dqn"), ("rnd_ppo", "ppo"), ("icm_ppo", "ppo")])
def test_an_algorithm_that_is_options_of_another(algorithm: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(preset(read("CartPole-v1: {n_timesteps: 100}", f"{algorithm}.yml"), config_of))
    found = load(str(tmp_path / "a.yaml")).config.algorithm
    assert found["kind"] == kind
    assert found["ladder"] == 7.0 if kind == "dqn" else found["intrinsic"]["kind"] == algorithm[:3]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac", "td3", "ddpg", "tqc", "qrdqn", "pqn", "a2c", "c51"])
@pytest.mark.whole
def test_no_value_of_any_setting_makes_a_preset_that_does_not_load(algorithm: str, tmp_path: Path) -> None:
    random = Random(1)
    names = sorted({*KEYS, *NO_KEYS, *CONVERSIONS, "id", "kind", "frame_stack", "seed"})
    for _ in range(8):
        settings = {name: random.choice(VALUES) for name in random.sample(names, 12)}
        text = yaml.safe_dump({"CartPole-v1": {**settings, "n_timesteps": 100}})
        file = tmp_path / "a.yaml"
        file.write_text(preset(read(text, f"{algorithm}.yml"), config_of))
        assert load(str(file)).config.algorithm["kind"] == algorithm
