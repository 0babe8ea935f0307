"""`evaluator.env`: scores, the best version, `eval` and `evaluate` are of levels that are not trained on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import zmqrl
from tests.support.raising import fields, raises
from tests.support.running import environment
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load, load_config

LEVELS, DOUBLED = "tests.evaluator.levels_env:Levels", "tests.evaluator.levels_env:Doubled"


def configured(*flags: str) -> Config:
    return load_config("cartpole-ppo", overrides=[f"env.id={LEVELS}", *flags], workers=1)


def planned(tmp_path: Path, *flags: str) -> RunPlan:
    loaded = load("cartpole-ppo", None, [f"env.id={LEVELS}", *flags], workers=1)
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


def test_arguments_are_laid_over_and_wrappers_replaced() -> None:
    config = configured("env.kwargs={first: 3, count: 5}", f"env.wrappers=[{DOUBLED}]", "evaluator.env.kwargs.first=90")
    assert config.scored_env.kwargs == {"first": 90, "count": 5}
    assert config.scored_env.wrappers == (DOUBLED,)
    assert configured(f"env.wrappers=[{DOUBLED}]", "evaluator.env.wrappers=[]").scored_env.wrappers == ()
    assert configured().scored_env == configured().env


def test_they_belong_to_the_env_that_they_were_written_for(tmp_path: Path) -> None:
    file = tmp_path / "levels.yaml"
    file.write_text(f"env: {{id: {LEVELS}}}\nevaluator: {{episodes: 3, env: {{kwargs: {{first: 90}}}}}}\n")
    assert load_config(str(file)).scored_env.kwargs == {"first": 90}
    other = load_config(str(file), overrides=["env.id=CartPole-v1"])
    assert (other.scored_env.kwargs, other.evaluator.episodes) == ({}, 3)


@pytest.mark.parametrize(
    ("flag", "fault"),
    [
        (
            "evaluator.env.kwargs.sensors=4",
            fields("evaluator.env", what="its observation space has shape (4,), that of env has (3,)"),
        ),
        (
            "evaluator.env.kwargs.level=4",
            fields(
                "evaluator.env",
                what="env.kwargs: {'level': 4} are not accepted by 'tests.evaluator.levels_env:Levels': "
                "Levels.__init__() got an unexpected keyword argument 'level'",
            ),
        ),
        ("evaluator.env_kwargs={first: 2}", fields("evaluator.env_kwargs", what="unknown key")),
        ("evaluator.deterministic=false", fields("evaluator.deterministic", what="unknown key (value false)")),
    ],
)
def test_what_is_refused(tmp_path: Path, flag: str, fault: dict[str, Any]) -> None:
    with raises(ConfigError, **fault):
        planned(tmp_path, flag)
    assert planned(tmp_path, "evaluator.episodes=0", "evaluator.env.kwargs.sensors=4"), "nothing is scored"


@pytest.mark.whole
def test_a_run_is_scored_by_levels_that_it_does_not_train_on(tmp_path: Path) -> None:
    zmqrl.train(
        "cartpole-ppo",
        run_dir=tmp_path / "run",
        mode="single",
        quiet=True,
        env={"id": LEVELS, "max_episode_steps": 9},
        evaluator={"episodes": 2, "final_limit_s": 60, "env": {"kwargs": {"first": 50}, "wrappers": [DOUBLED]}},
        run={"total_env_steps": 2000, "stop_at_return": None},
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["train_return_mean_100"], summary["eval_return_mean"]) == (0.0, 200.0)
    assert zmqrl.evaluate(zmqrl.load_policy(tmp_path / "run"), episodes=1).mean == 200.0
    command = [
        sys.executable,
        "-c",
        "from zmqrl.cli.main import main; main()",
        "eval",
        str(tmp_path / "run"),
        "--episodes",
        "1",
    ]
    played = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "return 200.00" in played.stdout
