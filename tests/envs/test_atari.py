from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="ale_py is not installed")
pytest.importorskip("cv2", reason="opencv is not installed")

from zmqrl.acting.base import NO_STATE, Policy, State
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import random_actions
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.evaluator.evaluation import EpisodePlayer
from zmqrl.planning.configure import load_config
from zmqrl.planning.plan_run import plan_run


def section(game: str = "Breakout", frame_stack: int = 1, **arguments: Any) -> EnvSection:
    made = {"frameskip": 1, "repeat_action_probability": 0.0}
    wrappers = ({"zmqrl.envs.atari:Atari": arguments},)
    return EnvSection(
        id=f"ALE/{game}-v5",
        num_envs=2,
        kwargs=made,
        wrappers=wrappers,
        frame_stack=frame_stack,
        max_episode_steps=500,
    )


def test_images_are_a_stack_and_the_same_seed_gives_the_same_bits() -> None:
    spec = probe(section())
    assert (spec.observation.shape, spec.observation.is_image, spec.action.n) == ((4, 84, 84), True, 4)
    rng = np.random.default_rng(0)
    actions = [random_actions(spec, 2, rng) for _ in range(120)]
    traces = []
    for _ in range(2):
        env = make_vector_env(section(), spec, "sync", 1, 0)
        traces.append(env.start().tobytes() + b"".join(part.tobytes() for row in actions for part in env.step(row)))
        env.close()
    assert traces[0] == traces[1]


def test_the_newest_frame_is_the_last() -> None:
    env = make_single(section())
    before = env.reset(seed=3)[0]
    assert (before[0] == before[3]).all()
    after = env.step(1)[0]
    assert (after[:3] == before[1:]).all() and (after[3] != before[3]).any()


@pytest.mark.parametrize("episodic_life", [False, True])
def test_frames_that_the_run_stacks_are_the_stack_of_the_wrapper(episodic_life: bool) -> None:
    stacked = section(episodic_life=episodic_life)
    single = section(frame_stack=4, stack=1, episodic_life=episodic_life)
    assert make_single(section(stack=1)).observation_space.shape == (84, 84)
    specs = [probe(each) for each in (stacked, single)]
    assert specs[0].observation == specs[1].observation and specs[1].observation.is_image
    envs = [make_vector_env(each, spec, "sync", 1, 0) for each, spec in zip((stacked, single), specs, strict=True)]
    assert (envs[0].start() == envs[1].start()).all()
    rng, ends = np.random.default_rng(0), 0
    for _ in range(300):
        actions = random_actions(specs[0], 2, rng)
        rows = [env.step(actions) for env in envs]
        assert all(one.tobytes() == other.tobytes() for one, other in zip(*rows, strict=True))
        ends += int((rows[0].terminated | rows[0].truncated).sum())
    assert ends > 2 or not episodic_life
    for env in envs:
        env.close()


def test_the_preset_stores_each_frame_once(tmp_path: Path) -> None:
    plan = plan_run(load_config("pong-ppo"), tmp_path / "run", time.time())
    assert plan.env.observation.shape == (4, 42, 42)
    assert next(column.shape for column in plan.columns if column.name == "obs") == (64 + 4, 4, 42, 42)


def test_the_loss_of_a_life_ends_an_episode_and_scores_are_of_whole_games() -> None:
    lives, whole = make_single(section(episodic_life=True)), make_single(section())
    lengths = [_length(lives, seed) for seed in (1, 1, 1, 1, 1)]
    assert sum(lengths[:-1]) < _length(whole, 1) * 1.5 and max(lengths) < _length(whole, 1)
    found = EpisodePlayer(section(episodic_life=True), probe(section()), 2, 1)
    expected = EpisodePlayer(section(clip_reward=False), probe(section()), 2, 1)
    assert found.play(Firing()) == expected.play(Firing())


class Firing(Policy):
    """Always action 1."""

    def load(self, weights: Any, schedule: Any) -> None:
        pass

    def act(self, *_: Any) -> Any:
        raise AssertionError

    def act_greedily(self, obs: Any, state: State = NO_STATE) -> Any:
        return np.ones(len(obs), np.int64)


def _length(env: Any, seed: int) -> int:
    env.reset(seed=seed)
    for step in range(1, 600):
        _, reward, terminated, truncated, _ = env.step(1)
        assert reward in (-1.0, 0.0, 1.0)
        if terminated or truncated:
            return step
    raise AssertionError("no end")
