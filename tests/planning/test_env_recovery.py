"""Whether running episodes can be taken up again is known before the start, and what fits is named."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.errors import ConfigError
from zmqrl.planning import env_recovery
from zmqrl.planning.checked import checked_plan
from zmqrl.planning.configure import load
from zmqrl.planning.env_recovery import action_nbytes, check_recovery
from zmqrl.types import ModeName, SpaceSpec

WALKER = "tests.envs.odd_envs:Walker"

OF_SIZE = (("env", "max_episode_steps"), ("env", "vector_envs"), ("env", "num_envs"))
"""Further keys of the error for records that are too large."""


def planned(tmp_path: Path, mode: ModeName = "sync", **values: Any) -> RunPlan:
    flags = [f"{key.replace('__', '.')}={value}" for key, value in values.items()]
    loaded = load("cartpole-ppo", overrides=flags, mode=mode, workers=2)
    return checked_plan(loaded.config, tmp_path / "run", time.time(), sources=loaded.sources)


@pytest.mark.parametrize("mode", ["single", "sync"])
def test_an_env_without_a_limit_is_refused_with_three_ways_out(tmp_path: Path, mode: ModeName) -> None:
    with raises(
        ConfigError, key=("env", "recovery"), value="'exact'", source="--set", others=(("env", "id"),)
    ) as refused:
        planned(tmp_path, mode, env__id=WALKER, env__recovery="exact")
    sentences = str(refused.value).split(". ")
    assert sentences[0].endswith(f"needs a limit of steps per episode, and env.id '{WALKER}' has none")
    assert len(sentences) <= 4 and max(map(len, sentences)) <= 125
    for way in ("env.max_episode_steps: N", "env.recovery: state", "restart_episode"):
        assert way in sentences[2]
    assert mode in sentences[1]
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("mode", "values"), [
    ("async", {}),
    ("sync", {"env__max_episode_steps": 9}),
    ("sync", {"env__recovery": "restart_episode"}),
], ids=["async repeats nothing", "a limit", "restart_episode"])  # fmt: skip
def test_each_way_out_starts(tmp_path: Path, mode: ModeName, values: dict[str, Any]) -> None:
    plan = planned(tmp_path, mode, env__id=WALKER, **values)
    assert plan.env.max_episode_steps == values.get("env__max_episode_steps")


def test_the_limits_of_gymnasium_and_of_the_key_are_found(tmp_path: Path) -> None:
    assert planned(tmp_path).env.max_episode_steps == 500
    assert planned(tmp_path, env__max_episode_steps=40).env.max_episode_steps == 40
    assert planned(tmp_path, env__max_episode_steps=4000).env.max_episode_steps == 500


def test_what_does_not_fit_into_memory_is_refused_with_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, env__max_episode_steps=1000)
    monkeypatch.setattr(env_recovery, "available_bytes", lambda: env_recovery.KEEP_FREE + layout_bytes(plan) + 20_000)
    check_recovery(with_limit(plan, 400))
    with raises(ConfigError, key=("env", "recovery"), others=OF_SIZE) as refused:
        check_recovery(plan)
    fits = int(re.findall(r"env.max_episode_steps: (\d+)", str(refused.value))[0])
    check_recovery(with_limit(plan, fits))
    with pytest.raises(ConfigError):
        check_recovery(with_limit(plan, fits + 1))


def test_a_record_that_no_handover_has_is_refused(tmp_path: Path) -> None:
    plan = with_limit(planned(tmp_path), env_recovery.MOST_RECORD_BYTES // 2 + 1)
    with raises(ConfigError, key=("env", "recovery"), others=OF_SIZE) as refused:
        check_recovery(plan)
    assert re.findall(r"env.num_envs: (\d+) would fit", refused.value.what) == ["1"]


@pytest.mark.parametrize("limit", [None, env_recovery.MOST_RECORD_BYTES // 2 + 1])
def test_a_resume_reports_what_it_may_change(tmp_path: Path, limit: int | None) -> None:
    """It refuses every other key of env."""
    plan = replace(with_limit(planned(tmp_path), limit), resume=True)
    with pytest.raises(ConfigError) as refused:
        check_recovery(plan)
    output = str(refused.value)
    assert "env.recovery: restart_episode" in output
    assert "get_state" not in output and not re.search(r"env\.(max_episode_steps|num_envs): (N|\d)", output), output


def test_an_env_that_saves_its_state_needs_no_limit(tmp_path: Path) -> None:
    plan = with_limit(planned(tmp_path), None)
    with pytest.raises(ConfigError):
        check_recovery(plan)
    by_state = replace(plan.config, env=replace(plan.config.env, recovery="state"))
    check_recovery(replace(plan, config=by_state))


def test_the_bytes_of_an_action() -> None:
    assert action_nbytes(SpaceSpec("discrete", (), "int64", 256)) == 1
    assert action_nbytes(SpaceSpec("discrete", (), "int64", 257)) == 8
    assert action_nbytes(SpaceSpec("box", (17, 2), "float32")) == 136


def with_limit(plan: RunPlan, limit: int | None) -> RunPlan:
    return replace(plan, env=replace(plan.env, max_episode_steps=limit))


def layout_bytes(plan: RunPlan) -> int:
    return env_recovery.layout_of(plan).nbytes
