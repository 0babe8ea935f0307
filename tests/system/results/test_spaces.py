"""Runs with composite and discrete observations: single and sync have the same bits; eval and load_policy work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import long
from tests.support.waiting import WAIT_S
from zmqrl import load_policy, train
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import make_single
from zmqrl.types import ModeName

pytestmark = pytest.mark.whole


def trained(directory: Path, mode: ModeName, preset: str, env: str, **values: Any) -> str:
    overrides = {"env__id": f"tests.envs.space_envs:{env}", "run__total_env_steps": 1_000, "evaluator__episodes": 0}
    overrides |= {"env__max_episode_steps": 30, "network__hidden": [8], "restart__max": 0}
    summary = train(preset, run_dir=directory, mode=mode, workers=2 if mode == "sync" else None, **overrides, **values)
    return summary.weights_sha256


@pytest.mark.parametrize(
    ("preset", "env", "values"),
    [
        long("cartpole-ppo", "Unmasked", {"algorithm__normalise_obs": True}),
        long("cartpole-dqn", "Numbered1", {"replay__learning_starts": 200}),
        ("cartpole-ppo", "MaskedSeveral", {}),
    ],
)
def test_single_and_sync_agree_and_the_policy_takes_observations_as_the_env_gives_them(
    tmp_path: Path, preset: str, env: str, values: dict[str, Any]
) -> None:
    shas = {mode: trained(tmp_path / mode, mode, preset, env, **values) for mode in ("single", "sync")}  # type: ignore[arg-type]
    assert shas["single"] == shas["sync"]
    policy = load_policy(tmp_path / "sync")
    made = make_single(EnvSection(id=f"tests.envs.space_envs:{env}"))
    obs = made.reset(seed=1)[0]
    for _ in range(5):
        action = policy(obs)
        assert made.action_space.contains(action)
        obs = made.step(action)[0]
    command = [sys.executable, "-m", "zmqrl", "eval", tmp_path / "sync", "--episodes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    if env == "Unmasked":
        batch = {name: np.stack([obs[name]] * 3) for name in ("image", "vector")}
        batch["inner"] = tuple(np.stack([part] * 3) for part in obs["inner"])
        assert policy(batch).tolist() == [int(policy(obs))] * 3
