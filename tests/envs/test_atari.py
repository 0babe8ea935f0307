from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="ale_py is not installed")
pytest.importorskip("cv2", reason="opencv is not installed")

from zmqrl.acting.base import Policy
from zmqrl.config.sections import EnvSection
from zmqrl.envs.base import random_actions
from zmqrl.envs.make import make_single, probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.evaluator.evaluation import Evaluation


def section(game: str = "Breakout", **arguments: Any) -> EnvSection:
    made = {"frameskip": 1, "repeat_action_probability": 0.0}
    wrappers = ({"zmqrl.envs.atari:Atari": arguments},)
    return EnvSection(id=f"ALE/{game}-v5", num_envs=2, kwargs=made, wrappers=wrappers, max_episode_steps=500)


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


def test_the_loss_of_a_life_ends_an_episode_and_scores_are_of_whole_games() -> None:
    lives, whole = make_single(section(episodic_life=True)), make_single(section())
    lengths = [_length(lives, seed) for seed in (1, 1, 1, 1, 1)]
    assert sum(lengths[:-1]) < _length(whole, 1) * 1.5 and max(lengths) < _length(whole, 1)
    found = Evaluation(section(episodic_life=True), probe(section()), 2, 1)
    expected = Evaluation(section(clip_reward=False), probe(section()), 2, 1)
    assert found.play(Firing()) == expected.play(Firing())


class Firing(Policy):
    """Always action 1."""

    def load(self, weights: Any, schedule: Any) -> None:
        pass

    def act(self, *_: Any) -> Any:
        raise AssertionError

    def act_greedily(self, obs: Any) -> Any:
        return np.ones(len(obs), np.int64)


def _length(env: Any, seed: int) -> int:
    env.reset(seed=seed)
    for step in range(1, 600):
        _, reward, terminated, truncated, _ = env.step(1)
        assert reward in (-1.0, 0.0, 1.0)
        if terminated or truncated:
            return step
    raise AssertionError("no end")
