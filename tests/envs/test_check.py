from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.envs.odd_envs import Counting
from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import from_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs import check
from zmqrl.envs.check import EPISODES, SETTLE_S, STEPS, check_env
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError
from zmqrl.messages.check import Stage
from zmqrl.types import EnvSpec

BREAKING = "tests.envs.odd_envs:Breaking"


class Recorded(Counting):
    """Writes what is done to it into a file; a step takes `step_s`."""

    def __init__(self, record: str, step_s: float = 0.0, length: int = 1000) -> None:
        super().__init__(length)
        self._record, self._step_s = record, step_s

    def _note(self, text: str) -> None:
        with open(self._record, "a") as file:
            file.write(text)

    def reset(self, **kwargs: Any) -> Any:
        self._note("r")
        return super().reset(**kwargs)

    def close(self) -> None:
        self._note("c")

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        self._note("s")
        return super().step(action)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for users: on a busy machine it is over before the steps are. No env is stepped again."""
    monkeypatch.setattr(check, "FURTHER_S", WAIT_S)
    monkeypatch.setattr(check, "QUICK_S", 0.0)


def _checked(section: EnvSection) -> list[Stage]:
    return list(check_env(section, 1))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset", "reset raised RuntimeError: no reset today"),
        ("raise", "step raised RuntimeError: the robot fell over"),
        ("nan", "the observation has NaN"),
        ("shape", "step returned an observation of shape (1,)"),
        ("nan_reward", "the reward is nan"),
    ],
)
@pytest.mark.parametrize("at", [1, 50])
def test_a_fault_of_the_first_steps_gives_one_message_with_the_user_traceback(fault: str, words: str, at: int) -> None:
    with pytest.raises(ConfigError) as caught:
        _checked(EnvSection(id=BREAKING, kwargs={"fault": fault, "at": at}))
    first, *further = str(caught.value).splitlines()
    assert first.startswith(f"env.id: env {BREAKING} (vector env 0, env slot 0, seed ") and words in first
    if "raised" in words:
        assert further[0] == "Traceback (most recent call last):" and "odd_envs.py" in further[1]
        assert further[-1] == words.partition("raised ")[2] and "zmqrl/envs" not in "\n".join(further)


@pytest.mark.parametrize(
    ("env", "name", "numbers", "fix"),
    [
        (
            "tests.envs.report_envs:Room",
            "comfrot",
            "coldest, comfort, cost, hottest, is_success",
            "did you mean 'comfort'?",
        ),
        (
            "tests.envs.report_envs:Room",
            "fuel",
            "coldest, comfort, cost, hottest, is_success",
            "return it in at least one step of each episode, or remove it",
        ),
        ("tests.envs.test_report:Scored", "owm", "own", "did you mean 'own'?"),
    ],
)
def test_a_name_of_env_report_that_an_episode_does_not_have(env: str, name: str, numbers: str, fix: str) -> None:
    what = f"no step of an episode of env {env} had info[{name!r}] (numbers of its info: {numbers})"
    with raises(ConfigError, key=("env", "report", name), what=what, fix=fix):
        _checked(EnvSection(id=env, num_envs=6, max_episode_steps=20, report={name: "last"}))


def test_a_call_that_the_env_does_not_accept_has_no_traceback() -> None:
    with raises(ConfigError, key=("env", "id")) as caught:
        _checked(EnvSection(id="tests.envs.gym_envs:ResetWithoutSeed"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "section",
    [
        EnvSection(),
        EnvSection(id="Pendulum-v1", frame_stack=2),
        EnvSection(id=BREAKING, kwargs={"fault": "raise", "at": STEPS}, max_episode_steps=STEPS - 1),
        EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6, max_episode_steps=5),
        EnvSection(id="tests.envs.report_envs:Room", max_episode_steps=20, report={"cost": "sum"}),
        EnvSection(id="tests.envs.test_report:Gauge", max_episode_steps=2 * STEPS, report={"late": "last"}),
    ],
)
def test_an_env_that_survives_its_first_steps_is_accepted(section: EnvSection) -> None:
    _checked(section)


@pytest.mark.parametrize(
    ("kwargs", "resets", "steps"),
    [
        ({}, 1, STEPS),
        ({"length": 7}, EPISODES, 7 * EPISODES),
    ],
)
def test_the_limits_of_the_first_steps(tmp_path: Path, kwargs: dict[str, Any], resets: int, steps: int) -> None:
    record = tmp_path / "record"
    _checked(EnvSection(id=f"{__name__}:Recorded", kwargs={"record": str(record), **kwargs}))
    done = record.read_text()
    assert (done.count("r"), done.count("s"), done.count("c")) == (resets, steps, 1)


def test_a_slow_env_is_stepped_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "FURTHER_S", 0.3)
    record = tmp_path / "record"
    _checked(EnvSection(id=f"{__name__}:Recorded", kwargs={"record": str(record), "step_s": 0.2}))
    assert record.read_text().count("s") <= 2, "a third one would end 0.4 s after the first"


def test_the_properties_are_known_before_further_steps() -> None:
    section = EnvSection()
    *_, further, last = _checked(section)
    assert (further.name, further.settle_s, last.settle_s) == ("further steps", SETTLE_S, None)
    assert from_json(EnvSpec, json.loads(further.known)) == probe(section)


def test_an_env_that_is_not_to_be_stepped_is_closed(tmp_path: Path) -> None:
    record = tmp_path / "record"
    section = EnvSection(id=f"{__name__}:Recorded", kwargs={"record": str(record)})
    assert [stage.name for stage in check_env(section, None)] == ["construction", "close"]
    assert record.read_text() == "c"
