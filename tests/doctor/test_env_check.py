"""How long the env is walked: a loaded machine changes the duration, and not what is found."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection
from zmqrl.doctor import env_check
from zmqrl.envs.seeded import SeededVectorEnv

STEP_S, LIMIT_S = 0.05, 20.0
"""By the clock of a test."""
Clocks = Callable[[Callable[[], float], Callable[[], float]], None]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Set what the check takes for the time and for the processor time of its process."""

    def set_clocks(monotonic: Callable[[], float], process_time: Callable[[], float]) -> None:
        fake = SimpleNamespace(monotonic=monotonic, process_time=process_time, perf_counter=time.perf_counter)
        monkeypatch.setattr(env_check, "time", fake)

    return set_clocks


@pytest.mark.whole
def test_a_walk_on_a_loaded_machine_finds_what_it_finds_on_a_quiet_one(clocks: Clocks) -> None:
    """Each look at the clock is a second after the one before, as for a process that seldom has the processor."""
    seconds = itertools.count()
    clocks(lambda: float(next(seconds)), lambda: 0.0)
    *_, facts = env_check.examine_env(EnvSection(id="BipedalWalker-v3", num_envs=2), "sync", 1, 1e6)
    assert (facts.stage, facts.error, facts.repeats) == ("done", None, False)


def test_a_walk_of_an_env_that_waits_in_its_steps_ends(monkeypatch: pytest.MonkeyPatch, clocks: Clocks) -> None:
    """It needs no processor time; a quarter of the limit is 100 of its steps, and a successor repeats half of them."""
    walked = 0
    step = SeededVectorEnv.step

    def counted(self: SeededVectorEnv, actions: env_check.Array) -> object:
        nonlocal walked
        walked += 1
        return step(self, actions)

    monkeypatch.setattr(SeededVectorEnv, "step", counted)
    monkeypatch.setattr(env_check, "_steps_per_s", lambda *_: 1.0)
    clocks(lambda: STEP_S * walked, lambda: 0.0)
    section = EnvSection(id="tests.doctor.odd_env:Env", max_episode_steps=100)
    *_, facts = env_check.examine_env(section, "sync", 1, LIMIT_S)
    assert facts.repeats
    assert 145 <= walked <= 155


def test_agents_are_examined_by_the_checker_of_pettingzoo() -> None:
    section = EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6, max_episode_steps=11)
    *_, facts = env_check.examine_env(section, "sync", 1, WAIT_S)
    assert (facts.stage, facts.error, facts.repeats, facts.checker) == ("done", None, True, "")
    *_, facts = env_check.examine_env(replace(section, kwargs={"fault": "silent", "at": 9}), "sync", 1, WAIT_S)
    assert facts.checker or facts.error
