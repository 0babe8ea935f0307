from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.envs.odd_envs import Counting
from zmqrl.config.sections import EnvSection
from zmqrl.envs import first_steps
from zmqrl.envs.first_steps import EPISODES, STEPS, check_first_steps
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError

BREAKING = "tests.envs.odd_envs:Breaking"


class Recorded(Counting):
    """Counts what is done to it; a step takes `step_s`."""

    resets = steps = 0

    def __init__(self, step_s: float = 0.0, length: int = 1000) -> None:
        super().__init__(length)
        self._step_s = step_s

    def reset(self, **kwargs: Any) -> Any:
        Recorded.resets += 1
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        Recorded.steps += 1
        return super().step(action)


class Slow(Counting):
    """An env whose reset takes longer than anybody waits."""

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(60)
        return super().reset(**kwargs)


def _checked(section: EnvSection) -> None:
    probe(section, partial(check_first_steps, seed=1))


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """What the caller's own handler received."""
    received: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: received.append(number))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.0)
    yield received
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *timer)


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
def test_a_fault_of_the_first_steps_is_one_message_with_the_traceback_of_the_user(
    fault: str, words: str, at: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        _checked(EnvSection(id=BREAKING, kwargs={"fault": fault, "at": at}))
    first, *further = str(caught.value).splitlines()
    assert first.startswith(f"env.id: env {BREAKING} (vector env 0, slot 0, seed ") and words in first
    if "raised" in words:
        assert further[0] == "Traceback (most recent call last):" and "odd_envs.py" in further[1]
        assert further[-1] == words.partition("raised ")[2] and "zmqrl/envs" not in "\n".join(further)


@pytest.mark.parametrize(
    "section",
    [
        EnvSection(),
        EnvSection(id="Pendulum-v1", frame_stack=2),
        EnvSection(id=BREAKING, kwargs={"fault": "raise", "at": STEPS}, max_episode_steps=STEPS - 1),
        EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6, max_episode_steps=5),
    ],
)
def test_an_env_that_survives_its_first_steps_is_accepted(section: EnvSection) -> None:
    _checked(section)


@pytest.mark.parametrize(
    ("kwargs", "resets", "steps"),
    [
        ({}, 1, STEPS),
        ({"length": 7}, EPISODES, 7 * EPISODES),
        ({"step_s": 0.2}, 1, 2),  # 0.2 s after the first step; another one would end after 0.4 s
    ],
)
def test_the_limits_of_the_first_steps(kwargs: dict[str, Any], resets: int, steps: int) -> None:
    Recorded.resets = Recorded.steps = 0
    _checked(EnvSection(id=f"{__name__}:Recorded", kwargs=kwargs))
    assert (Recorded.resets, Recorded.steps) == (resets, steps)


def test_an_env_that_takes_longer_is_left_to_the_workers(monkeypatch: pytest.MonkeyPatch, alarms: list[int]) -> None:
    monkeypatch.setattr(first_steps, "LIMIT_S", 0.1)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    begun = time.monotonic()
    _checked(EnvSection(id=f"{__name__}:Slow"))
    assert time.monotonic() - begun < 10
    time.sleep(0.3)
    assert alarms == [signal.SIGALRM], "the timer of the caller's program continues, with its handler"


def test_outside_of_the_main_thread_nothing_is_stepped() -> None:
    faulty = EnvSection(id=BREAKING, kwargs={"fault": "raise", "at": 1})
    found: list[BaseException] = []

    def check() -> None:
        try:
            _checked(faulty)
        except ConfigError as error:
            found.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert not found
