"""Videos of the evaluator: when they are written, and that a failure never costs the score."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import gymnasium as gym
import numpy as np
import pytest

from tests.evaluator.test_process import SPEC, weights
from tests.support.raising import fields, raises
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.config.sections import Config, EnvSection, EvaluatorSection, RunSection
from zmqrl.errors import ConfigError
from zmqrl.evaluator.videos import Videos
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport
from zmqrl.planning.plan_run import plan_run
from zmqrl.types import Notice, Version


class Blind(gym.Env[Any, Any]):
    """Takes a render mode and renders nothing."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, True, False, {}

    def render(self) -> None:
        return None


def _notice(env_steps: int) -> Notice:
    return Notice(Version(0, env_steps), "k", 1, "0" * 64, env_steps=env_steps)


def _videos(tmp_path: Path, env_id: str) -> tuple[Videos, Any, Path]:
    config = Config(
        run=RunSection(mode="single"),
        env=EnvSection(id=env_id, max_episode_steps=500),
        evaluator=EvaluatorSection(video_every=1000),
        algorithm={"kind": "ppo"},
    )
    plan = plan_run(config, tmp_path / "run", time.time(), False)
    events = create_autospec(EventPipe, instance=True)
    return Videos(plan, 1000, events), events, tmp_path / "run" / "videos"


@pytest.mark.whole
def test_a_video_is_written_after_each_multiple_and_none_that_was_abandoned(tmp_path: Path) -> None:
    videos, events, folder = _videos(tmp_path, "CartPole-v1")
    policy = make_policy(SPEC)
    policy.load(weights(-1.0), {})
    for env_steps in (0, 500, 1100, 1900, 2000):
        videos.add(policy, _notice(env_steps), lambda: False)
    videos.add(policy, _notice(3000), lambda: True)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["000000000-v0-0.mp4", "000001100-v0-1100.mp4", "000002000-v0-2000.mp4"]
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
    events.send.assert_not_called()


def test_a_video_that_fails_is_reported_once(tmp_path: Path) -> None:
    videos, events, folder = _videos(tmp_path, "tests.evaluator.test_rendering:Blind")
    policy = make_policy(SPEC)
    policy.load(weights(1.0), {})
    for env_steps in (0, 1000):
        videos.add(policy, _notice(env_steps), lambda: False)
    (report,) = (call.args[0] for call in events.send.call_args_list)
    assert isinstance(report, ProblemReport)
    assert "render() returned None" in report.cause
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("env", "evaluator", "fault"),
    [
        (
            "CartPole-v1",
            {"episodes": 0},
            fields(
                "evaluator.video_every", "1000", what="the evaluator writes the videos, and evaluator.episodes is 0"
            ),
        ),
        ("tests.envs.odd_envs:Walker", {}, fields("evaluator.video_every", "1000")),
    ],
)
def test_videos_that_cannot_be_are_refused_before_the_start(
    tmp_path: Path, env: str, evaluator: dict[str, int], fault: dict[str, Any]
) -> None:
    section = EvaluatorSection(video_every=1000, **evaluator)
    config = Config(run=RunSection(mode="single"), env=EnvSection(id=env), evaluator=section)
    with raises(ConfigError, **fault):
        plan_run(config, tmp_path / "run", time.time(), False)
