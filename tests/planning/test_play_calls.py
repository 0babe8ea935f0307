"""Episodes of `zmqrl eval`, in the process of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.stored_runs import store_run
from zmqrl.config.codec import replace, to_json
from zmqrl.errors import EnvFault
from zmqrl.planning import play_calls

STEPS = 9


def test_an_episode_beyond_all_limits_is_a_fault_of_its_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"env__id": "tests.envs.odd_envs:Counting", "env__kwargs": {"length": STEPS}}
    config, *_ = store_run("cartpole-ppo", tmp_path / "run", **env)
    bounded = replace(config, env=replace(config.env, max_episode_steps=STEPS + 1))
    for most, own, is_fault in [(STEPS, config, False), (STEPS - 1, config, True), (STEPS - 1, bounded, False)]:
        monkeypatch.setattr(play_calls, "MOST_STEPS", most)
        stages = play_calls.scored(str(tmp_path / "run"), to_json(own), "last", 7, 2, None)
        if is_fault:
            with raises(EnvFault, subject="env 'tests.envs.odd_envs:Counting'"):
                list(stages)
        else:
            assert list(stages)[-1].name == "close"
