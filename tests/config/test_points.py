"""Numbers by env steps: their values, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError
from zmqrl.learning import Progress, value_at
from zmqrl.planning.configure import load

ORDER = "points [[env step, value], ...] must be one or more, with rising env steps from 0 on"
POINTS = ((100, 1.0), (250, -3.5), (1_000, 2.0))


@pytest.mark.parametrize(
    ("env_steps", "value"),
    [
        (0, 1.0),
        (100, 1.0),
        (150, -0.5),
        (200, -2.0),
        (250, -3.5),
        (251, -3.5 + 5.5 / 750),
        (500, -3.5 + 5.5 / 3),
        (1_000, 2.0),
        (10**9, 2.0),
    ],
)
def test_it_is_linear_between_points_and_constant_outside(env_steps: int, value: float) -> None:
    found = [value_at(number, Progress(1, env_steps, 0, 1)) for number in (POINTS, 2, ((5, 7),))]
    assert found == [pytest.approx(value), 2.0, 7.0]
    assert all(type(number) is float for number in found)


def test_it_is_read_from_a_file_and_from_a_stored_configuration(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("env: {schedule: {gravity: 9.8, wind: [[0, 1], [1000, 2.5]]}}\n")
    config = load(hosts_file=file, overrides=["env.schedule.length=[[0, 0.5]]"]).config
    expected = {"gravity": 9.8, "wind": ((0, 1.0), (1000, 2.5)), "length": ((0, 0.5),)}
    assert config.env.schedule == expected
    assert from_json(Config, json.loads(json.dumps(to_json(config)))).env.schedule == expected
    assert load(hosts_file=file, overrides=["env.id=Acrobot-v1"]).config.env.schedule == {}, "of another env"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[]", ORDER),
        ("[[5, 1], [5, 2]]", ORDER),
        ("[[5, 1], [4, 2]]", ORDER),
        ("[[-1, 1]]", ORDER),
        ("1.0e+301", "a value must be at most 1e+300 in size"),
        ("[[0, -1.0e+301]]", "a value must be at most 1e+300 in size"),
        (".nan", "a number must be finite"),
        ("[[0, .inf]]", "a number must be finite"),
        ("fast", "must be a valid number, or a list"),
    ],
)
def test_what_is_refused_names_the_key(value: str, what: str) -> None:
    with raises(ConfigError, key=("env", "schedule", "wind"), what=what):
        load(overrides=[f"env.schedule.wind={value}"])


@pytest.mark.parametrize("value", ["[[0.5, 1]]", "[[0]]", "[[0, 1, 2]]", "[1, 2]", "true", "{a: 1}"])
def test_other_forms_are_refused(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=[f"env.schedule.wind={value}"])
    assert caught.value.key == ("env", "schedule", "wind")
