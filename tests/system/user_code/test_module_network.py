"""A `torch.nn.Module` of the user's in whole runs: the same bits in single, in sync and after a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.envs.space_envs import ACTIONS, Unmasked
from tests.networks.nets import ImageAndVector
from tests.support.running import RUN_S
from zmqrl import Summary, load_policy, resume, train
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import make_single
from zmqrl.evaluator.evaluation import EVALUATION
from zmqrl.random_streams import episode_seed
from zmqrl.types import ModeName

pytestmark = pytest.mark.whole
NET = "tests.networks.nets:ImageAndVector"
ENV = "tests.envs.space_envs:Unmasked"


def trained(directory: Path, mode: ModeName, preset: str = "cartpole-ppo", **values: Any) -> Summary:
    given = {"run__total_env_steps": 1_024, "evaluator__episodes": 0, "restart__max": 0, **values}
    given["run__schedule_env_steps"] = 1_024
    given |= {"env__id": ENV, "env__max_episode_steps": 30, "network__kind": NET, "network__kwargs": {"channels": 3}}
    return train(preset, run_dir=directory, mode=mode, workers=None if mode == "single" else 1, **given)


class Plain:
    """A checkpoint in plain torch: the module in evaluation mode, then the last layer of the actor."""

    def __init__(self, checkpoint: Path) -> None:
        tensors = load_file(checkpoint)
        self._module = ImageAndVector(Unmasked.observation_space, channels=3)
        self._last = nn.Linear(16, ACTIONS)
        for prefix, module in (("actor.0.", self._module), ("actor.1.", self._last)):
            own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            module.load_state_dict(own)
            module.eval()

    def __call__(self, obs: Any) -> int:
        """The action with the largest logit."""
        image, vector = torch.from_numpy(obs["image"]).float() / 255, torch.from_numpy(obs["vector"])
        with torch.no_grad():
            return int(self._last(self._module({"image": image[None], "vector": vector[None]})).argmax())


def episode(policy: Callable[[Any], int], seed: int) -> tuple[float, list[int]]:
    """Its return, and its actions."""
    env, total, actions, ended = make_single(EnvSection(id=ENV, max_episode_steps=30)), 0.0, [], False
    obs = env.reset(seed=seed)[0]
    while not ended:
        actions.append(int(policy(obs)))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        total, ended = total + float(reward), terminated or truncated
    return total, actions


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    folder = tmp_path_factory.mktemp("runs") / "single"
    return folder, trained(folder, "single")


@pytest.mark.long
def test_sync_and_its_resume_have_the_bits_of_single(tmp_path: Path, single: tuple[Path, Summary]) -> None:
    trained(tmp_path / "half", "sync", run__total_env_steps=512)
    assert resume(tmp_path / "half", run__total_env_steps=1_024).weights_sha256 == single[1].weights_sha256


def test_eval_and_load_policy_act_with_what_was_trained(single: tuple[Path, Summary]) -> None:
    folder, _ = single
    versions = sorted((folder / "checkpoints").glob("v0-*.safetensors"))
    first, last = (Plain(path) for path in (versions[0], versions[-1]))
    seeds = [episode_seed(3, EVALUATION, slot, 0) for slot in range(5)]
    played = [episode(last, seed) for seed in seeds]
    assert played != [episode(first, seed) for seed in seeds], "the training changed no action: nothing is compared"
    assert [episode(load_policy(folder), seed) for seed in seeds] == played
    words = ("eval", str(folder), "--episodes", "5", "--seed", "3", "--json")
    done = subprocess.run([sys.executable, "-m", "zmqrl", *words], capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["returns"] == pytest.approx([total for total, _ in played])


@pytest.mark.long
def test_async(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "async").env_steps >= 1_024


@pytest.mark.long
def test_dqn(tmp_path: Path) -> None:
    values = {"env__id": ENV, "replay__learning_starts": 200}
    assert trained(tmp_path / "run", "single", "cartpole-dqn", **values).updates > 10
