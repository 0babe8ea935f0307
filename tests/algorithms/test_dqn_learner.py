from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.algorithms.driver import CONTINUOUS, Driver, InfiniteHorizon, MatchTheObs, Toy, env_spec
from tests.support.raising import raises
from zmqrl.algorithms.base import LearnerContext, OffPolicyLearner, Progress
from zmqrl.algorithms.dqn import DQN, DQNConfig
from zmqrl.algorithms.q_learning.base import EpsilonSection, PrioritisedSection
from zmqrl.config.sections import NetworkSection, ReplaySection
from zmqrl.errors import ConfigError
from zmqrl.networks.initial import initial_weights
from zmqrl.replay.segment_replay import SegmentReplay, build_replay
from zmqrl.types import Array, SlotRef

STEPS, ENVS, SLOTS = 16, 4, 20


def make(obs_size: int = 3, **options: object) -> DQN:
    config = DQNConfig(**({"learning_rate": 0.01, "batch_size": 32, "target_update_every": 10} | options))
    return DQN(config, NetworkSection(hidden=(16,)), env_spec(obs_size=obs_size), STEPS, ENVS)


def learner_of(algorithm: DQN) -> OffPolicyLearner:
    return algorithm.learner(LearnerContext(initial_weights(algorithm.network(), 1), executor="manual"))


class Slots:
    """An arena's columns, and a replay over them that the driver fills."""

    def __init__(self, algorithm: DQN, toy: Toy) -> None:
        self.driver, self._columns, self._next = Driver(algorithm, toy), {}, 0
        self._algorithm = algorithm
        self.replay: SegmentReplay

    def add(self, weights: dict[str, Array], epsilon: float) -> float:
        batch = self.driver.segment(weights, epsilon)
        if not self._columns:
            self._columns = {name: np.zeros((SLOTS, *c.shape), c.dtype) for name, c in batch.columns.items()}
            self.replay = self._build()
        slot = self._next % SLOTS
        for name, column in batch.columns.items():
            self._columns[name][slot] = column
        (self._meta,) = batch.metas
        self.replay.add(SlotRef(slot, self._next), self._meta)
        self._next += 1
        return float(batch.columns["reward"][batch.columns["valid"]].mean())

    def successor_of_replay(self) -> SegmentReplay:
        """Another replay over the same segments, from the first one's state."""
        replay = self._build()
        replay.load_state(self.replay.state())
        for number in range(self._next - self.replay.segments, self._next):
            replay.add(SlotRef(number % SLOTS, number), self._meta)
        return replay

    def _build(self) -> SegmentReplay:
        return build_replay(self._columns, (SLOTS - 1) * STEPS * ENVS, 1, self._algorithm.replay())


def progress(updates: int, env_steps: int = 0) -> Progress:
    return Progress(1, env_steps, updates, 10_000)


def train(learner: OffPolicyLearner, slots: Slots, rounds: int, epsilon: float, start: int = 0) -> float:
    for i in range(rounds):
        reward = slots.add(learner.weights(), epsilon)
        learner.update(slots.replay, 20, progress(start + 20 * i))
    return reward


VARIANTS = [
    {"double": False, "loss": "mse"},
    {"n_step": 3, "dueling": True},
    {"prioritised": PrioritisedSection(uniform_mix=0.01), "target_tau": 0.5},
    {"optimiser": "adamw", "max_grad_norm": None},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.whole
def test_learns_to_match_the_observation(options: dict[str, object]) -> None:
    algorithm = make(gamma=0.5, **options)
    learner, slots = learner_of(algorithm), Slots(algorithm, MatchTheObs(ENVS))
    train(learner, slots, 40, epsilon=0.3)
    assert slots.add(learner.weights(), 0.0) > 0.9


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(("truncates", "states", "value"), [(True, 4, 10.0), (False, 9, (1 - 0.9**8) / 0.1)])
@pytest.mark.whole
def test_q_bootstraps_through_truncation_alone(truncates: bool, states: int, value: float, n_step: int) -> None:
    algorithm = make(obs_size=states, gamma=0.9, n_step=n_step, target_update_every=5, learning_rate=0.01)
    learner, slots = learner_of(algorithm), Slots(algorithm, InfiniteHorizon(ENVS, 8, truncates, states))
    train(learner, slots, 60, epsilon=1.0)
    start = learner._q.run(torch.eye(states)[:1])  # type: ignore[attr-defined]
    assert (start - value).abs().max() < 0.4


@pytest.mark.parametrize("options", VARIANTS)
def test_state_goes_on_bit_for_bit(options: dict[str, object]) -> None:
    algorithm = make(**options)
    straight, slots = learner_of(algorithm), Slots(algorithm, MatchTheObs(ENVS))
    train(straight, slots, 3, epsilon=0.5)
    resumed, replay = learner_of(algorithm), slots.successor_of_replay()
    resumed.load_state(straight.weights(), straight.state())
    assert straight.update(slots.replay, 15, progress(60)) == resumed.update(replay, 15, progress(60))
    for one, other in ((straight.weights(), resumed.weights()), (straight.state(), resumed.state())):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_target_network_follows_only_when_due() -> None:
    algorithm = make(target_update_every=10)
    learner, slots = learner_of(algorithm), Slots(algorithm, MatchTheObs(ENVS))
    slots.add(learner.weights(), 1.0)
    first = learner.state()["target.q.0.weight"]
    learner.update(slots.replay, 9, progress(0))
    np.testing.assert_array_equal(learner.state()["target.q.0.weight"], first)
    learner.update(slots.replay, 1, progress(9))
    np.testing.assert_array_equal(learner.state()["target.q.0.weight"], learner.weights()["q.0.weight"])
    assert not np.array_equal(learner.weights()["q.0.weight"], first)


def test_updates_in_one_call_or_several_are_the_same() -> None:
    algorithm = make()
    one, other, slots = learner_of(algorithm), learner_of(algorithm), Slots(algorithm, MatchTheObs(ENVS))
    slots.add(one.weights(), 1.0)
    one.update(slots.replay, 12, progress(0))
    for updates, done in ((5, 0), (7, 5)):
        other.update(slots.replay, updates, progress(done))
    assert all(np.array_equal(value, other.weights()[name]) for name, value in one.weights().items())


def test_epsilon_comes_down_over_its_share_of_the_horizon() -> None:
    algorithm = make(epsilon=EpsilonSection(1.0, 0.1, 0.5))
    epsilons = [algorithm.schedule(progress(0, steps))["epsilon"] for steps in (0, 2_500, 5_000, 20_000)]
    assert epsilons == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert EpsilonSection(1.0, 0.1, 0.0).at(0.0) == pytest.approx(0.1)


def test_what_does_not_go_together_is_a_config_error() -> None:
    section = NetworkSection()
    with raises(ConfigError, key=("algorithm", "kind"), what="dqn needs discrete actions, toy has continuous actions"):
        DQN(DQNConfig(), section, env_spec(CONTINUOUS), STEPS, ENVS)
    with raises(ConfigError, key=("algorithm", "batch_size"), value="32"):
        make().check("sync", 4, ReplaySection(capacity=16))
