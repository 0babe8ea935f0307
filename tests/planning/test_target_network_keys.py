"""`target_update_every` and `target_tau` mean what their page says, whatever other defaults there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl
from tests.support.marks import long
from zmqrl.algorithms.dqn import DQNConfig
from zmqrl.algorithms.qrdqn import QRDQNConfig
from zmqrl.config.codec import from_json, to_json
from zmqrl.data_stores import tensors
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run
from zmqrl.planning.without_preset import WithoutPreset

KEYS = ("target_update_every", "target_tau")
Pair = tuple[int, float | None]


def set_flags(*values: object) -> list[str]:
    """`--set` of the two keys; `...`: the key is not written."""
    written = [(key, value) for key, value in zip(KEYS, values, strict=True) if value is not ...]
    return [f"algorithm.{key}={'null' if value is None else value}" for key, value in written]


def pair(algorithm: Any) -> Pair:
    return algorithm["target_update_every"], algorithm["target_tau"]


@pytest.mark.parametrize("algo", ["dqn", "qrdqn"])
@pytest.mark.parametrize(
    ("every", "tau", "expected"),
    [
        (..., ..., (1, 0.005)),
        (20, ..., (20, None)),
        (500, ..., (500, None)),
        (1, ..., (1, 0.005)),
        (None, ..., (500, None)),
        (..., 0.01, (1, 0.01)),
        (..., 0.005, (1, 0.005)),
        (..., 1.0, (1, 1.0)),
        (..., None, (500, None)),
        (1, None, (1, None)),
        (20, 0.005, (20, 0.005)),
        (20, None, (20, None)),
        (1, 0.01, (1, 0.01)),
        (None, 0.01, (1, 0.01)),
        (None, None, (500, None)),
    ],
)
def test_a_default_of_the_algorithm_holds_together_with_the_other(
    algo: str, every: object, tau: object, expected: Pair
) -> None:
    flags = set_flags(every, tau)
    found = load(overrides=flags, without_preset=WithoutPreset("CartPole-v1", algo)).config
    assert pair(found.algorithm) == expected
    assert found.algorithm["learning_rate"] == 2.5e-4, "other defaults stay"
    given = {key: value for key, value in zip(KEYS, (every, tau), strict=True) if value is not ...}
    by_python = load(overrides={"algorithm": given}, without_preset=WithoutPreset("CartPole-v1", algo))
    assert pair(by_python.config.algorithm) == expected


@pytest.mark.parametrize(
    ("every", "tau", "expected"),
    [
        (..., ..., (500, None)),
        (20, ..., (20, None)),
        (..., 0.01, (1, 0.01)),
        (20, 0.01, (20, 0.01)),
        (..., None, (500, None)),
    ],
)
def test_a_hosts_file_without_a_preset(tmp_path: Path, every: object, tau: object, expected: Pair) -> None:
    lines = [f"  {flag.removeprefix('algorithm.').replace('=', ': ')}" for flag in set_flags(every, tau)]
    (tmp_path / "hosts.yaml").write_text("\n".join(["algorithm:", "  kind: dqn", *lines]) + "\n")
    assert pair(load(hosts_file=tmp_path / "hosts.yaml").config.algorithm) == expected


@pytest.mark.parametrize(
    ("preset", "every", "tau", "expected"),
    [
        ("cartpole-dqn", ..., ..., (50, None)),
        ("cartpole-qrdqn", ..., ..., (50, None)),
        ("cartpole-dqn", 20, ..., (20, None)),
        ("cartpole-dqn", ..., 0.5, (50, 0.5)),
        ("cartpole-dqn", 1, 0.005, (1, 0.005)),
        ("soft", ..., ..., (4, 0.1)),
        ("soft", 8, ..., (8, 0.1)),
        ("soft", ..., 0.2, (4, 0.2)),
        ("soft", ..., None, (4, None)),
        ("soft", 20, None, (20, None)),
    ],
)
def test_what_a_preset_writes_stays(tmp_path: Path, preset: str, every: object, tau: object, expected: Pair) -> None:
    soft = tmp_path / "soft.yaml"
    soft.write_text("env: {id: CartPole-v1}\nalgorithm: {kind: dqn, target_update_every: 4, target_tau: 0.1}\n")
    config = load(str(soft) if preset == "soft" else preset, overrides=set_flags(every, tau)).config
    assert pair(config.algorithm) == expected


@pytest.mark.parametrize("kind", [DQNConfig, QRDQNConfig])
def test_a_stored_configuration_keeps_its_pair(kind: type[Any]) -> None:
    for every, tau in ((500, 0.005), (1, None), (None, 0.3)):
        config = kind(target_update_every=every, target_tau=tau)
        assert from_json(kind, to_json(config)) == config
        assert config.target_update_every == (every or 1)


@pytest.mark.parametrize(
    ("flags", "warns"), [(["target_tau=0.005"], True), (["target_tau=0.5"], False), (["target_update_every=5"], False)]
)
def test_a_target_network_that_hardly_moves_is_named(tmp_path: Path, flags: list[str], warns: bool) -> None:
    loaded = load("cartpole-dqn", overrides=[f"algorithm.{flag}" for flag in flags], workers=1)
    warnings = plan_run(loaded.config, tmp_path, time.time()).warnings
    expected = (
        "algorithm.target_tau: 0.005: mixed in every 50 updates (algorithm.target_update_every), the target network "
        "follows within about 10,000 of 49,000 updates; set algorithm.target_update_every=1, or "
        "algorithm.target_tau=null to copy the network"
    )
    assert warnings == ((expected,) if warns else ())


@pytest.mark.whole
@pytest.mark.parametrize(
    ("algo", "keys"),
    [
        ("dqn", {"target_update_every": 20}),
        long("dqn", {"target_tau": 0.05}),
        long("qrdqn", {"target_update_every": 20}),
    ],
)
def test_the_value_of_a_constant_reward_is_learned(tmp_path: Path, algo: str, keys: dict[str, object]) -> None:
    """Reward 1 in each step, and episodes that are truncated: Q is 1 / (1 - gamma) = 10 for each action."""
    algorithm = {"gamma": 0.9, "learning_rate": 0.01, "batch_size": 32, **keys}
    zmqrl.train(
        env={"id": "tests.envs.odd_envs:Constant", "max_episode_steps": 4},
        algo=algo,
        mode="single",
        run_dir=tmp_path / "run",
        quiet=True,
        network={"hidden": [16]},
        evaluator={"episodes": 0},
        replay={"capacity": 5000, "learning_starts": 64, "ratio": 1.0},
        algorithm=algorithm,
        run={"total_env_steps": 2_500},
    )
    newest = DirectoryStore(str(tmp_path / "run" / "checkpoints"), 1).newest()
    assert newest is not None
    weights = tensors.parse(newest[1])[0]
    hidden = np.maximum(weights["q.0.weight"] @ np.ones(1, np.float32) + weights["q.0.bias"], 0.0)
    np.testing.assert_allclose(weights["q.1.weight"] @ hidden + weights["q.1.bias"], 10.0, atol=0.3)
