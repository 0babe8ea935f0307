"""A `torch.nn.Module` of the user's in whole runs: the same bits in single, in sync and after a resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zmqrl import Summary, load_policy, resume, train
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import make_single
from zmqrl.types import ModeName

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]
NET = "tests.networks.nets:ImageAndVector"
ENV = "tests.envs.space_envs:Unmasked"


def trained(directory: Path, mode: ModeName, preset: str = "cartpole-ppo", **values: Any) -> Summary:
    given = {"run__total_env_steps": 1_024, "evaluator__episodes": 0, "restart__max": 0, **values}
    given["run__schedule_env_steps"] = 1_024
    given |= {"env__id": ENV, "env__max_episode_steps": 30, "network__kind": NET, "network__kwargs": {"channels": 3}}
    return train(preset, run_dir=directory, mode=mode, workers=None if mode == "single" else 1, **given)


def zmqrl(*words: str | Path) -> None:
    command = [sys.executable, "-m", "zmqrl", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    folder = tmp_path_factory.mktemp("runs") / "single"
    return folder, trained(folder, "single")


def test_sync_and_its_resume_have_the_bits_of_single(tmp_path: Path, single: tuple[Path, Summary]) -> None:
    trained(tmp_path / "half", "sync", run__total_env_steps=512)
    assert resume(tmp_path / "half", run__total_env_steps=1_024).weights_sha256 == single[1].weights_sha256


def test_eval_and_load_policy_act_with_what_was_trained(single: tuple[Path, Summary]) -> None:
    folder, _ = single
    zmqrl("eval", folder, "--episodes", "2")
    one, other = load_policy(folder), load_policy(folder)
    made = make_single(EnvSection(id=ENV))
    obs = made.reset(seed=1)[0]
    for _ in range(5):
        action = one(obs)
        assert np.array_equal(action, other(obs))
        obs = made.step(action)[0]


@pytest.mark.long
def test_async(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "async").env_steps >= 1_024


@pytest.mark.long
def test_dqn(tmp_path: Path) -> None:
    values = {"env__id": ENV, "replay__learning_starts": 200}
    assert trained(tmp_path / "run", "single", "cartpole-dqn", **values).updates > 10
