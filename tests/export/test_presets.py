"""Exports of every preset act as `zmqrl.load_policy` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqrl
from tests.export.parity import ROWS, OnnxPolicy, numpy_policy, observations, perturbed, row_of
from tests.support.extras import missing_extra
from tests.support.stored_runs import store_run
from zmqrl.config.presets import presets
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.export.write import export
from zmqrl.planning.exported import exported_of
from zmqrl.types import EnvSpec, Version

STEPS = 4

FRAMES: Mapping[str, Any] = {
    "env__id": "tests.envs.odd_envs:Frames",
    "env__frame_stack": 3,
    "network__kind": "cnn",
    "network__channels": [4],
    "network__kernels": [3],
    "network__strides": [2],
}


@pytest.mark.parametrize("preset", presets())
def test_preset(preset: str, tmp_path: Path) -> None:
    if (extra := missing_extra(preset)) is not None:
        pytest.skip(f"needs the extra {extra}")
    exports_act_as_the_policy(preset, tmp_path)


def test_stacks_of_frames_are_the_image_of_a_cnn(tmp_path: Path) -> None:
    run, env = exports_act_as_the_policy("cartpole-ppo", tmp_path, **FRAMES)
    assert (env.observation.shape, env.observation.is_image) == ((3, 8, 8), True)
    assert len(zmqrl.evaluate(zmqrl.load_policy(run), episodes=3).returns) == 3


def exports_act_as_the_policy(preset: str, tmp_path: Path, **overrides: Any) -> tuple[Path, EnvSpec]:
    run = tmp_path / "run"
    _, env, weights = store_run(preset, run, **overrides)
    DirectoryStore(str(run / "checkpoints"), 8).save(Version(0, 9), perturbed(weights, 1), {})
    for form in ("onnx", "numpy"):
        export(tmp_path / form, form, *exported_of(run, "last"))
    expected: Any = zmqrl.load_policy(run)
    exported = {"onnx": OnnxPolicy(tmp_path / "onnx"), "numpy": numpy_policy(tmp_path / "numpy")}
    generator = np.random.default_rng(2)
    for step in range(STEPS):
        for policy in (expected, *exported.values()):
            if step == STEPS - 1:
                policy.reset()
            elif step == STEPS - 2:
                policy.reset(np.arange(ROWS) < 2)
        obs = observations(env.observation, ROWS, generator)
        reward = generator.standard_normal(ROWS).astype(np.float32)
        actions = expected(obs, reward)
        for form, policy in exported.items():
            found = policy(obs, reward)
            assert (found.shape, found.dtype) == (actions.shape, actions.dtype), form
            np.testing.assert_allclose(found, actions, rtol=1e-4, atol=1e-5, err_msg=form)
            assert policy.state.keys() == expected._state.keys()
            for name, state in expected._state.items():
                np.testing.assert_allclose(policy.state[name], state, rtol=1e-4, atol=1e-5, err_msg=form)
    for policy in (expected, exported["numpy"]):
        policy.reset()
    one = row_of(obs, 0)
    np.testing.assert_allclose(exported["numpy"](one), expected(one), rtol=1e-4, atol=1e-5)
    assert len((tmp_path / "numpy" / "policy.py").read_text().splitlines()) <= 100
    return run, env
