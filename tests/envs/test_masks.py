"""Masks from a method or from `info` become a part of the observation; without a wrapper they are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import zmqrl
from tests.support.raising import raises
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import close_env
from zmqrl.envs.check import remarks
from zmqrl.envs.make import make_single, probe
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load
from zmqrl.planning.without_preset import WithoutPreset

HERE, WRAPPER = "tests.envs.test_masks:", "zmqrl.envs.masks:"


class Masked(gym.Env[Any, Any]):
    """Action `t % 4` alone is allowed. `where`: method or info; `as_dict`: of the observation."""

    def __init__(self, where: str = "method", as_dict: bool = False) -> None:
        box = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = gym.spaces.Dict({"x": box}) if as_dict else box
        self.action_space = gym.spaces.Discrete(4)
        self._info, self._as_dict = where == "info", as_dict
        if where == "method":
            self.action_masks = self._mask

    def _mask(self) -> Any:
        return np.arange(4) == self._t % 4

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {"action_mask": self._mask()} if self._info else {}

    def step(self, action: Any) -> Any:
        if not self._mask()[action]:
            raise ValueError("illegal action")
        self._t += 1
        over = self._t >= 6
        info = {"action_mask": self._mask()} if self._info and not over else {}
        return self._obs(), 1.0, over, False, info

    def _obs(self) -> Any:
        obs = np.zeros(3, np.float32)
        return {"x": obs} if self._as_dict else obs


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize(("where", "wrapper"), [("method", "FromMethod"), ("info", "FromInfo")])
def test_a_mask_is_a_part_of_the_observation(where: str, wrapper: str, as_dict: bool) -> None:
    kwargs = {"where": where, "as_dict": as_dict}
    section = EnvSection(id=f"{HERE}Masked", kwargs=kwargs, wrappers=(f"{WRAPPER}{wrapper}",))
    spec = probe(section)
    assert spec.observation.action_mask is not None
    assert {part.name for part in spec.observation.parts} == {"x" if as_dict else "observation", "action_mask"}
    env = make_single(section)
    obs, _ = env.reset(seed=1)
    for step in range(6):
        assert np.flatnonzero(obs["action_mask"]).tolist() == [step % 4]
        obs, *_ = env.step(step % 4)
    assert list(remarks(env, section, spec, 1)) == []
    close_env(env)


@pytest.mark.parametrize(
    ("id_", "kwargs", "wrapper"),
    [
        (f"{HERE}Masked", {"where": "method"}, "FromMethod"),
        (f"{HERE}Masked", {"where": "info"}, "FromInfo"),
        ("Taxi-v4", {}, "FromInfo"),
    ],
)
def test_a_mask_that_is_ignored_is_named(id_: str, kwargs: dict[str, Any], wrapper: str) -> None:
    section = EnvSection(id=id_, kwargs=kwargs)
    (remark,) = remarks(make_single(section), section, probe(section), 1)
    assert "which is ignored" in remark and f"{WRAPPER}{wrapper}" in remark


def test_an_illegal_action_of_the_first_steps_names_the_mask() -> None:
    with raises(ConfigError, key=("env", "id")):
        load(None, None, ["env.kwargs.where=info"], workers=1, without_preset=WithoutPreset(f"{HERE}Masked"))


@pytest.mark.whole
def test_a_run_takes_allowed_actions_alone(tmp_path: Path) -> None:
    zmqrl.train(
        algo="ppo",
        algorithm={"epochs": 1},
        env={"id": f"{HERE}Masked", "kwargs": {"where": "info"}, "wrappers": [f"{WRAPPER}FromInfo"]},
        run_dir=tmp_path / "run",
        mode="single",
        quiet=True,
        run={"total_env_steps": 2000},
        learner={"executor": "eager"},
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["train_return_mean_100"] == 6.0
