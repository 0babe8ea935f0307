"""Numbers that change over a run, alone and as the learning rate of every algorithm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contracts.test_algorithms import KINDS, MLP
from zmqrl.algorithms.base import Algorithm
from zmqrl.algorithms.ppo import PPO
from zmqrl.algorithms.q_learning.base import EpsilonSection
from zmqrl.algorithms.start.make import completed, make_algorithm
from zmqrl.config.codec import replace, to_json
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
    assert value_at(0.3, at(0.0)) == value_at(0.3, at(1.0)) == 0.3


@pytest.mark.parametrize("steps", [0, 1_000, 1_500, 2_000, 3_999, 4_000, 9_000])
def test_points_are_linear_in_between_and_constant_outside(steps: int) -> None:
    points = ((1_000, 0.4), (2_000, 0.8), (4_000, 0.0))
    expected = 0.4 if steps < 1_000 else 0.4 + 0.4 * (steps - 1_000) / 1_000
    expected = max(0.0, 0.8 * (4_000 - steps) / 2_000) if steps > 2_000 else expected
    assert value_at(points, replace(at(0.0), env_steps=steps)) == pytest.approx(expected)
    assert value_at(((7, 0.3),), replace(at(0.0), env_steps=steps)) == 0.3


@pytest.mark.parametrize("name", KINDS)
def test_every_algorithm_takes_points_and_keeps_them_in_its_run(name: str) -> None:
    algorithm = made(name, ((0, 1e-3), (5_000, 1e-4)))
    assert [algorithm.learning_rate(at(part)) for part in (0.0, 0.25, 1.0)] == pytest.approx([1e-3, 5.5e-4, 1e-4])
    stored = json.loads(json.dumps({"kind": name, **to_json(algorithm.config)}))
    assert completed(stored) == stored


def test_points_count_updates_in_a_run_without_env_steps() -> None:
    """Mode offline."""
    assert value_at(((0, 1.0), (100, 3.0)), Progress(1, 0, 50, 100, by_updates=True)) == 2.0


def test_other_numbers_take_points() -> None:
    epsilon = [[0, 1.0], [100, 0.1]]
    for preset, kind in (("cartpole-dqn", "dqn"), ("cartpole-qrdqn", "qrdqn"), ("cartpole-pqn", "pqn")):
        config = load_config(preset, overrides={"algorithm.epsilon": epsilon})
        assert config.algorithm["epsilon"] == epsilon
        own = make_algorithm(config, EnvSpec("toy", VECTOR, DISCRETE))
        assert own.schedule(replace(at(0.0), env_steps=50)) == pytest.approx({"epsilon": 0.55}), kind
    config = load_config("cartpole-ppo", overrides={"algorithm.clip": [[0, 0.2], [100, 0.1]]})
    found = make_algorithm(config, EnvSpec("toy", VECTOR, DISCRETE))
    assert isinstance(found, PPO) and found.clip(replace(at(0.0), env_steps=50)) == pytest.approx(0.15)


def test_an_exponential_one_has_ends_above_0() -> None:
    with pytest.raises(ValueError, match="from 1 to 0 cannot be exponential: set both above 0, or shape: linear"):
        Schedule(1.0, shape="exponential")


def at(fraction: float) -> Progress:
    return replace(progress_at(1), env_steps=int(10_000 * fraction))


def made(name: str, rate: Any = RATE) -> Algorithm:
    kind = load(name, "zmqrl.algorithms", Algorithm)
    action = CONTINUOUS if "discrete" not in kind.actions else DISCRETE
    return kind(kind.Config(learning_rate=rate), MLP, EnvSpec("toy", VECTOR, action), 16, 2)


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
            "algorithm.learning_rate: -1: must be greater than 0, or a list, or a mapping with the keys start, end, ",
        ),
        ("x", "algorithm.learning_rate: 'x': must be a valid number, or a list, or a mapping with the keys"),
        ({"start": -1}, "algorithm.learning_rate.start: -1: must be greater than 0"),
        ({"start": "x"}, "algorithm.learning_rate.start: 'x': must be a valid number"),
        ({"end": 0.1}, "algorithm.learning_rate.start: required key is missing"),
        ({"begin": 1}, "algorithm.learning_rate.begin: unknown key"),
        (
            [[0, 1e-3], [9, -1]],
            "learning_rate: [[0, 0.001], [9, -1]]: item 2 ([9, -1]) must be greater than or equal",
        ),
        (
            [[0, 1e-3], [9.5, 0]],
            "learning_rate: [[0, 0.001], [9.5, 0]]: item 2 ([9.5, 0]) must be a valid integer",
        ),
        ([[0, 1e-3], [9]], "algorithm.learning_rate: [[0, 0.001], [9]]: item 2 ([9]) must have more items"),
        ([[9, 1e-3], [9, 0]], "algorithm.learning_rate: [[9, 0.001], [9, 0]]: points [[env step, value], ...] must"),
        ([[0, 0], [9, 0]], "algorithm.learning_rate: [[0, 0], [9, 0]]: a learning rate must be above 0 somewhere"),
        ([[0, float("inf")]], "algorithm.learning_rate: [[0, inf]]: a number must be finite"),
        ([], "algorithm.learning_rate: []: "),
        ({"start": 1, "shape": "exponential"}, "algorithm.learning_rate: a schedule from 1 to 0 cannot be exponential"),
    ],
)
def test_a_bad_one_gives_one_message(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("cartpole-dqn", overrides={"algorithm.learning_rate": value})
    assert message in str(refused.value)
