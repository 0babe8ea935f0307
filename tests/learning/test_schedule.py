"""Numbers that change over a run, alone and as the learning rate of every algorithm."""

from __future__ import annotations

import pytest

from tests.contracts.test_algorithms import KINDS, MLP
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.dqn import EpsilonSection
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.learning import Progress, Schedule, value_at
from zmqrl.learning.schedule import RateSchedule
from zmqrl.planning.configure import load_config
from zmqrl.plugins import load
from zmqrl.testing.algorithm import CONTINUOUS, DISCRETE, VECTOR
from zmqrl.testing.experience import acted, context_of, learn, progress_at
from zmqrl.types import EnvSpec

RATE = RateSchedule(1e-3, 1e-4, 0.5, "exponential")


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Schedule(1.0), (1.0, 0.75, 0.0)),
        (Schedule(0.2, 1.0, 0.5), (0.2, 0.6, 1.0)),
        (Schedule(1.0, 0.1, 0.0), (0.1, 0.1, 0.1)),
        (Schedule(1.0, 0.01, 0.5, "exponential"), (1.0, 0.1, 0.01)),
        (EpsilonSection(), (1.0, 0.05, 0.05)),
    ],
)
def test_it_goes_from_start_to_end_and_stays(schedule: Schedule, values: tuple[float, ...]) -> None:
    assert [schedule.at(progress) for progress in (0.0, 0.25, 1.0)] == pytest.approx(values)


def test_a_constant_stays() -> None:
    assert value_at(0.3, 0.0) == value_at(0.3, 1.0) == 0.3


def test_an_exponential_one_has_ends_above_0() -> None:
    with pytest.raises(ValueError, match="from 1 to 0 cannot be exponential: set both above 0, or shape: linear"):
        Schedule(1.0, shape="exponential")


def at(fraction: float) -> Progress:
    return replace(progress_at(1), env_steps=int(10_000 * fraction))


def made(name: str) -> Algorithm:
    kind = load(name, "zmqrl.algorithms", Algorithm)
    action = CONTINUOUS if "discrete" not in kind.actions else DISCRETE
    return kind(kind.Config(learning_rate=RATE), MLP, EnvSpec("toy", VECTOR, action), 16, 2)


@pytest.mark.parametrize("name", KINDS)
def test_every_algorithm_has_it_as_its_learning_rate(name: str) -> None:
    algorithm = made(name)
    rates = [algorithm.learning_rate(at(fraction)) for fraction in (0.0, 0.25, 1.0)]
    assert rates == pytest.approx([1e-3, 10**-3.5, 1e-4])


@pytest.mark.parametrize("executor", ["manual", "eager"])
def test_a_learner_takes_the_steps_that_it_reports(executor: str) -> None:
    """Adam's first step is as long as the rate, whatever the gradient is."""
    moved = []
    for number in (0, 50):  # at 0 and 0.5 of the horizon
        algorithm = made("dqn")
        context = replace(context_of(algorithm), executor=executor)
        learner, slots = algorithm.learner(context), acted(algorithm, 1)
        before = learner.weights()
        learn(algorithm, learner, slots, number, updates=1)
        moved.append(max(abs(array - before[name]).max() for name, array in learner.weights().items()))
    assert moved == pytest.approx([1e-3, 1e-4], rel=1e-2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            -1,
            "algorithm.learning_rate: -1: must be greater than 0, or a mapping with the keys start, end, ",
        ),
        ("x", "algorithm.learning_rate: 'x': must be a valid number, or a mapping with the keys"),
        ({"start": -1}, "algorithm.learning_rate.start: -1: must be greater than 0"),
        ({"start": "x"}, "algorithm.learning_rate.start: 'x': must be a valid number"),
        ({"end": 0.1}, "algorithm.learning_rate.start: required key is missing"),
        ({"begin": 1}, "algorithm.learning_rate.begin: unknown key"),
        ({"start": 1, "shape": "exponential"}, "algorithm.learning_rate: a schedule from 1 to 0 cannot be exponential"),
    ],
)
def test_a_bad_one_gives_one_message(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("cartpole-dqn", overrides={"algorithm.learning_rate": value})
    assert message in str(refused.value)
