"""How the running episodes of an env are recovered is decided before the start, and said in one line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.directory_checks import check_resume
from zmqrl.run_files.stored_config import IMPLICIT_STATE, stored_config
from zmqrl.types import ModeName

FOREIGN, SAVED = "tests.envs.repeating_envs:Foreign", "tests.envs.repeating_envs:Saved"


def planned(folder: Path, mode: ModeName = "sync", resume: bool = False, **values: Any) -> RunPlan:
    flags = [f"{key.replace('__', '.')}={value}" for key, value in values.items()]
    loaded = load(None if resume else "cartpole-ppo", None, flags, mode, 1, stored=folder if resume else None)
    if resume:
        check_resume(folder, loaded.config)
    return checked_plan(loaded.config, folder, time.time(), resume, loaded.sources)


def stored(folder: Path, plan: RunPlan, format_version: int | None = None) -> None:
    """`format_version`: that of zmqrl 0.2, which did not store the env."""
    data = stored_config(plan.config, None if format_version else plan.env)
    data["format_version"] = format_version or data["format_version"]
    (folder / "config.json").write_text(json.dumps(data))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_methods_of_an_env_are_not_taken_for_ours(tmp_path: Path, mode: ModeName) -> None:
    plan = planned(tmp_path, mode, env__id=FOREIGN, env__max_episode_steps=50)
    notes = [note for note in plan.warnings if "get_state" in note]
    assert plan.env.state is None and plan.config.env.recovery == "exact"
    assert len(notes) == (1 if mode == "sync" else 0)
    assert all("actions are repeated after a restart" in note and "env.recovery: state" in note for note in notes)


def test_an_env_without_a_limit_starts_new_episodes_and_names_the_key(tmp_path: Path) -> None:
    """Of a preset as of `--env`."""
    plan = planned(tmp_path, env__id=FOREIGN)
    assert plan.config.env.recovery == "restart_episode"
    limit, pair = plan.warnings
    assert "set env.max_episode_steps to get the same weights after a restart" in limit
    assert "a truncation of its own in `step` does not count" in limit
    assert "episodes end after a restart" in pair and "env.recovery: state" in pair
    with raises(ConfigError, key=("env", "recovery"), value="'exact'", source="--set", others=(("env", "id"),)):
        planned(tmp_path, env__id=FOREIGN, env__recovery="exact")


def test_the_key_requires_the_pair(tmp_path: Path) -> None:
    plan = planned(tmp_path, env__id=SAVED, env__recovery="state")
    assert plan.env.state is not None and plan.warnings == ()
    what = f"env.id '{SAVED}': set_state restores only a part of the env: a new env in the state of step 1 has other "
    with raises(ConfigError, key=("env", "recovery"), what=f"{what}observations and rewards in the next steps"):
        planned(tmp_path, env__id=SAVED, env__recovery="state", env__kwargs="{without: generator}")


def test_a_run_from_before_the_key_keeps_its_states(tmp_path: Path) -> None:
    plan = planned(tmp_path, env__id=SAVED, env__max_episode_steps=50)
    stored(tmp_path, plan, IMPLICIT_STATE)
    assert planned(tmp_path, resume=True).config.env.recovery == "state"
    stored(tmp_path, plan)
    assert planned(tmp_path, resume=True).config.env.recovery == "exact"


def test_a_resume_may_give_up_states_and_not_repeat_actions(tmp_path: Path) -> None:
    stored(tmp_path, planned(tmp_path, env__id=SAVED, env__recovery="state", env__max_episode_steps=50))
    kept = f"the run in {tmp_path} has {{}}, and a resumed run must keep it"
    with raises(ConfigError, key=("env", "recovery"), value="'exact'", what=kept.format("'state'")):
        planned(tmp_path, resume=True, env__recovery="exact")
    assert planned(tmp_path, resume=True, env__recovery="restart_episode").env.state is None
    stored(tmp_path, planned(tmp_path, env__id=SAVED, env__max_episode_steps=50))
    with raises(ConfigError, key=("env", "recovery"), value="'state'", what=kept.format("'exact'")):
        planned(tmp_path, resume=True, env__recovery="state")


def test_statistics_over_episodes_are_named_at_the_start_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, env__wrappers='["gymnasium.wrappers:NormalizeObservation"]')
    (warning,) = plan.warnings
    assert "'CartPole-v1' with NormalizeObservation keeps state from episode to episode" in warning
