"""Vector envs of gymnasium in async; other APIs are named with what to write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import zmqrl
from tests.support.raising import fields, raises
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import EnvSection
from zmqrl.doctor.env_check import examine_env
from zmqrl.envs.make import probe
from zmqrl.envs.vector import NativeVectorEnv, make_vector_env
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.without_preset import WithoutPreset
from zmqrl.types import ModeName

HERE = "tests.envs.vector_api_envs:"
FORMS = ["Vec", "made", "VecOnly-v0"]


def planned(tmp_path: Path, mode: ModeName) -> RunPlan:
    loaded = load(mode=mode, workers=1, without_preset=WithoutPreset(f"{HERE}Vec", "ppo"))
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


@pytest.mark.parametrize("form", FORMS)
def test_a_class_a_function_and_an_id_are_stepped_in_one_call(form: str) -> None:
    section = EnvSection(id=f"{HERE}{form}", num_envs=5)
    spec = probe(section)
    assert (spec.vector_only, spec.observation.shape, spec.action.n) == (True, (3,), 2)
    env = make_vector_env(section, spec, "async", 1, 0)
    assert isinstance(env, NativeVectorEnv) and env.start().shape == (5, 3)
    env.close()


def test_async_is_the_only_mode(tmp_path: Path) -> None:
    assert planned(tmp_path, "async").env.vector_only
    modes: tuple[ModeName, ...] = ("sync", "single")
    for mode in modes:
        with raises(ConfigError, key=("run", "mode"), value=repr(mode), others=(("env", "id"),)):
            planned(tmp_path, mode)


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (
            {"kwargs": {"mode": "SAME_STEP"}},
            fields(
                "env.id",
                "'tests.envs.vector_api_envs:Vec'",
                what="makes Vec, a gymnasium.vector.VectorEnv, and has the autoreset mode SAME_STEP",
            ),
        ),
        (
            {"kwargs": {"mode": None}},
            fields(
                "env.id",
                "'tests.envs.vector_api_envs:Vec'",
                what="makes Vec, a gymnasium.vector.VectorEnv, and declares no autoreset_mode",
            ),
        ),
        (
            {"kwargs": {"num_envs": 3}},
            fields(
                "env.id", "'tests.envs.vector_api_envs:Vec'", what="makes Vec, a gymnasium.vector.VectorEnv of 3 envs"
            ),
        ),
        (
            {"id": f"{HERE}of_its_own_number"},
            fields(
                "env.id",
                "'tests.envs.vector_api_envs:of_its_own_number'",
                what="makes Vec, a gymnasium.vector.VectorEnv of 3 envs",
            ),
        ),
        (
            {"kwargs": {"parts": True}},
            fields(
                "env.id", "'tests.envs.vector_api_envs:Vec'", what="of a VectorEnv only Box observations are supported"
            ),
        ),
        (
            {"frame_stack": 2},
            fields("env.frame_stack", what="'tests.envs.vector_api_envs:Vec' makes Vec, a gymnasium.vector.VectorEnv"),
        ),
        (
            {"max_episode_steps": 2},
            fields(
                "env.max_episode_steps", what="'tests.envs.vector_api_envs:Vec' makes Vec, a gymnasium.vector.VectorEnv"
            ),
        ),
        (
            {"id": f"{HERE}Duck"},
            fields(
                "env.id",
                "'tests.envs.vector_api_envs:Duck'",
                what="makes Duck, which is not derived from gymnasium.Env",
            ),
        ),
        (
            {"id": f"{HERE}Aec"},
            fields("env.id", "'tests.envs.vector_api_envs:Aec'", what="makes Aec, which has PettingZoo's AEC API"),
        ),
        (
            {"id": f"{HERE}Aec", "max_episode_steps": 5},
            fields("env.id", "'tests.envs.vector_api_envs:Aec'", what="makes Aec, which has PettingZoo's AEC API"),
        ),
        (
            {"id": f"{HERE}Configured"},
            fields(
                "env.id",
                "'tests.envs.vector_api_envs:Configured'",
                fix="for an env in RLlib's form set env.kwargs: {config: {...}}",
            ),
        ),
        ({"id": f"{HERE}needs_a_package"}, fields("env.id", "'tests.envs.vector_api_envs:needs_a_package'")),
    ],
)
def test_what_is_refused(keys: dict[str, Any], fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        probe(EnvSection(**{"id": f"{HERE}Vec", **keys}))


def test_doctor_measures_its_rate() -> None:
    *_, facts = examine_env(EnvSection(id=f"{HERE}Vec"), "async", 1, 60.0)
    assert (facts.stage, facts.error) == ("done", None) and facts.steps_per_s


@pytest.mark.whole
def test_a_run_trains_and_scores(tmp_path: Path) -> None:
    zmqrl.train(
        algo="ppo",
        env=f"{HERE}made",
        run_dir=tmp_path / "run",
        mode="async",
        workers=1,
        quiet=True,
        run={"total_env_steps": 20_000},
        evaluator={"episodes": 3, "final_limit_s": 60},
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["train_return_mean_100"], summary["eval_return_mean"]) == (20.0, 20.0)
    assert summary["ledger"]["balanced"]
