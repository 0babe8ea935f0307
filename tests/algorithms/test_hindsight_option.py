"""Hindsight as an option of shipped kinds: what replay is told, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.stand_ins.bit_flip import BitFlip, reached, reward
from tests.support.raising import raises
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.r2d2 import R2D2, R2D2Config
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.config.sections import EnvSection, NetworkSection, ReplaySection
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load
from zmqrl.replay.base import ReplaySample
from zmqrl.replay.spec import Relabel
from zmqrl.spaces import view
from zmqrl.testing.algorithm import DISCRETE, VECTOR
from zmqrl.testing.rounds import Rounds
from zmqrl.types import EnvSpec

FLIPS = "tests.stand_ins.bit_flip"
RELABEL = Relabel(f"{FLIPS}:reward", terminated=f"{FLIPS}:reached")


@pytest.mark.parametrize("preset", ["cartpole-dqn", "cartpole-qrdqn", "pendulum-sac", "pendulum-td3", "pendulum-mpo"])
def test_the_field_is_that_of_the_replay_spec(preset: str) -> None:
    words = (f"algorithm.relabel.reward={FLIPS}:reward", "algorithm.relabel.share=0.5")
    config = load(preset, overrides=words).config
    made = make_algorithm(config, probe(config.env))
    assert made.replay().relabel == Relabel(f"{FLIPS}:reward", share=0.5)
    plain = load(preset).config
    assert make_algorithm(plain, probe(plain.env)).replay().relabel is None


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("algorithm.relabel.rewards=a:b", ("algorithm", "relabel", "rewards")),
        ("algorithm.relabel={share: 0.5}", ("algorithm", "relabel", "reward")),
    ],
)
def test_what_is_refused_has_its_key(word: str, key: tuple[str, ...]) -> None:
    with raises(ConfigError, key=key):
        load("cartpole-dqn", overrides=(word,))


def test_sequences_have_no_other_goals() -> None:
    kind = R2D2(R2D2Config(relabel=RELABEL), NetworkSection(), EnvSpec("toy", VECTOR, DISCRETE), 80, 2)
    with raises(ConfigError, key=("algorithm", "relabel")):
        kind.check("sync", 4, ReplaySection())


def test_a_batch_of_dqn_has_rewards_of_its_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    section = EnvSection(f"{FLIPS}:{BitFlip.__name__}", 2, 2, 8, max_episode_steps=20)
    env = probe(section)
    seen: list[ReplaySample] = []
    algorithm = DQN(DQNConfig(batch_size=64, relabel=RELABEL, gamma=1.0), NetworkSection(hidden=(8,)), env, 8, 2)
    replay = ReplaySection(capacity=2_000, learning_starts=100, ratio=0.2)
    rounds = Rounds(algorithm, section, 200, 1, replay)
    inner: Any = rounds._replay
    draw = inner.sample

    def sample(*args: Any) -> ReplaySample:
        seen.append(draw(*args))
        return seen[-1]

    monkeypatch.setattr(inner, "sample", sample)
    rounds.train(200)
    rounds.close()
    parts = {part.name: part for part in env.observation.parts}
    for drawn in seen:
        achieved = view(drawn.next_obs, env.observation, parts["achieved_goal"])
        desired = view(drawn.obs, env.observation, parts["desired_goal"])
        np.testing.assert_array_equal(drawn.n_step_return, reward(achieved, desired))
        np.testing.assert_array_equal(drawn.discount, ~reached(achieved, desired))
    share = np.mean([drawn.n_step_return.mean() for drawn in seen])
    assert share > -0.9, "few goals are achieved by chance"
