"""`breakpoint()` in the user's code of a run: pdb on a terminal in mode single, a line in the log elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import RUN_S, environment
from zmqrl import debugging

ENV = """
import time

import gymnasium as gym
import numpy as np

class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Env.steps += 1
        time.sleep(0.003)  # the view is drawn several times before the second stop
        if Env.steps in (2, 700):  # the first is in the check process too
            secret = "for" + "ty-two"
            breakpoint()
            after = 1
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""
COMMAND = (
    *("-m", "zmqrl", "train", "--env", "stopping:Env", "--set", "env.max_episode_steps=20", "--run-dir", "run"),
    *("--set", "run.total_env_steps=1500", "--set", "evaluator.episodes=0", "--set", "env.segment_steps=16"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stopping.py").write_text(ENV)
    return tmp_path


def on_terminal(folder: Path, *answers: str) -> tuple[int, str]:
    """Exit code and screen of a run in mode single whose prompts of pdb get these answers."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, *COMMAND, "--mode", "single"], environment())
    screen, given, until = b"", 0, time.monotonic() + RUN_S
    while time.monotonic() < until and select.select([terminal], [], [], RUN_S)[0]:
        try:
            screen += os.read(terminal, 65_536)
        except OSError:  # the end of the terminal
            break
        if given < len(answers) and screen.count(b"(Pdb) ") > given:
            os.write(terminal, f"{answers[given]}\n".encode())
            given += 1
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.decode(errors="replace")


@pytest.mark.whole
def test_in_mode_single_on_a_terminal_it_opens_pdb_until_q_ends_the_run(folder: Path) -> None:
    code, screen = on_terminal(folder, "p secret", "n", "p after", "c", "q")
    before, _, rest = screen.partition("p secret\r\n")
    assert "stopping.py(22)step()" in before, screen
    assert rest.startswith("'forty-two'\r\n(Pdb) n\r\n"), "no view is drawn while pdb has the terminal"
    assert "(Pdb) p after\r\n1\r\n(Pdb) c\r\n" in rest
    assert "single running" in rest.partition("(Pdb) c")[2], "the run continues, and the view is back"
    assert (code, screen.count("(Pdb) ")) == (2, 5), "it is not restarted"


@pytest.mark.long
@pytest.mark.whole
def test_in_other_modes_it_is_a_line_in_the_log(folder: Path) -> None:
    command = [sys.executable, *COMMAND, "--mode", "sync", "--plain", "--workers", "1"]
    subprocess.run(command, cwd=folder, env=environment(), timeout=RUN_S, check=True, capture_output=True)
    log = (folder / "run" / "logs" / "local-worker-0.log").read_text()
    assert log.count("stopping.py:21 is ignored: it needs --mode single on a terminal") == 1


@pytest.fixture
def terminal() -> Iterator[int]:
    ours, theirs = pty.openpty()
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_a_terminal_is_lent_while_another_process_holds_its_lock(terminal: int) -> None:
    assert not debugging.is_lent(terminal)
    other = os.open(os.ttyname(terminal), os.O_RDWR | os.O_NOCTTY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert debugging.is_lent(terminal)
    os.close(other)
    assert not debugging.is_lent(terminal)


def test_the_hook_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.setenv("PYTHONBREAKPOINT", "ipdb.set_trace")
    debugging.set_hook(True)
    assert sys.breakpointhook is sys.__breakpointhook__
