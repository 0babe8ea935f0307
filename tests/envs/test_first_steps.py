from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.envs.odd_envs import Counting
from tests.marks import at_once
from tests.waiting import WAIT_S, until
from zmqrl.config.sections import EnvSection
from zmqrl.envs import first_steps
from zmqrl.envs.first_steps import EPISODES, STEPS, check_first_steps
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError

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

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        self._note("s")
        return super().step(action)


class Ending(Counting):
    """An env that ends its process, after it has started another one, or hangs."""

    def __init__(self, how: str, child: str) -> None:
        super().__init__(1000)
        self._how, self._child = how, child

    def step(self, action: Any) -> Any:
        process = subprocess.Popen(["sleep", "600"])
        Path(self._child).write_text(str(process.pid))
        if self._how == "SIGSEGV":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._how == "exit":
            os._exit(7)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


class Slow(Counting):
    """An env whose reset takes longer than anybody waits."""

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(600)
        return super().reset(**kwargs)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are for users: on a busy machine they are over before the first steps are."""
    for name in ("LIMIT_S", "FURTHER_S"):
        monkeypatch.setattr(first_steps, name, WAIT_S)


def _checked(section: EnvSection) -> None:
    probe(section, partial(check_first_steps, seed=1))


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
    assert first.startswith(f"env.id: env {BREAKING} (vector env 0, env slot 0, seed ") and words in first
    if "raised" in words:
        assert further[0] == "Traceback (most recent call last):" and "odd_envs.py" in further[1]
        assert further[-1] == words.partition("raised ")[2] and "zmqrl/envs" not in "\n".join(further)


def test_a_call_that_the_env_does_not_accept_has_no_traceback() -> None:
    with pytest.raises(ConfigError, match="reset must accept seed and options") as caught:
        _checked(EnvSection(id="tests.envs.gym_envs:ResetWithoutSeed"))
    assert "\n" not in str(caught.value)


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
    ],
)
def test_the_limits_of_the_first_steps(tmp_path: Path, kwargs: dict[str, Any], resets: int, steps: int) -> None:
    record = tmp_path / "record"
    _checked(EnvSection(id=f"{__name__}:Recorded", kwargs={"record": str(record), **kwargs}))
    done = record.read_text()
    assert (done.count("r"), done.count("s")) == (resets, steps)


def test_a_slow_env_is_stepped_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_steps, "FURTHER_S", 0.3)
    record = tmp_path / "record"
    _checked(EnvSection(id=f"{__name__}:Recorded", kwargs={"record": str(record), "step_s": 0.2}))
    assert record.read_text().count("s") <= 2, "a third one would end 0.4 s after the first"


@at_once
def test_an_env_that_takes_longer_is_left_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_steps, "LIMIT_S", 0.1)
    _checked(EnvSection(id=f"{__name__}:Slow"))


@pytest.mark.parametrize(("how", "said"), [("SIGSEGV", "SIGSEGV"), ("exit", "exit code 7"), ("hang", "")])
def test_what_an_env_does_to_its_process_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    monkeypatch.setattr(first_steps, "LIMIT_S", 1.0)
    before, child = signal.getsignal(signal.SIGTERM), tmp_path / "child"
    section = EnvSection(id=f"{__name__}:Ending", kwargs={"how": how, "child": str(child)})
    with pytest.raises(ConfigError, match=f"ended its process in the first steps .{said}") if said else nullcontext():
        _checked(section)
    assert signal.getsignal(signal.SIGTERM) is before
    pid = int(child.read_text())
    until(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2], "its end"
    )


def test_another_thread_checks_too() -> None:
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
    assert len(found) == 1
