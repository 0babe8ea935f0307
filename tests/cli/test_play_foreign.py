"""`eval` and `watch` of runs whose env does something to its process: named, with an exit code, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from tests.cli.commands import Command
from tests.envs.odd_envs import Counting
from tests.envs.rude_envs import daemon, hang
from tests.supervision.test_check_process import sleepers
from tests.support.raising import compare
from tests.support.running import environment
from tests.support.stored_runs import store_run
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.run_files.stored_config import stored_config
from zmqrl.supervision.served_call import CheckEnded

pytestmark = pytest.mark.usefixtures("check_processes")
QUIET = "tests.envs.rude_envs:Rude"


class Moving(CartPoleEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        os.chdir("/")


class Stuck(Counting):
    """It starts a process that outlives it, and its third step does not return."""

    def __init__(self) -> None:
        super().__init__(9)

    def step(self, action: Any) -> Any:
        found = super().step(action)
        if self._t == 3:
            daemon()
            hang()
        return found


def stored(env: str, limit_s: float = 60.0, before: str = "tests.envs.odd_envs:Counting", **kwargs: Any) -> Path:
    """A run whose env was harmless when it was trained."""
    overrides = {"env__id": before, "env__max_episode_steps": 5, "limits__start_s": limit_s}
    config, spec, _ = store_run("cartpole-ppo", Path("run"), **overrides)
    changed = replace(config, env=replace(config.env, id=env, kwargs=kwargs))
    Path("run/config.json").write_text(json.dumps(stored_config(changed, spec)))
    return Path("run").absolute()  # the template of check processes began in another folder


@pytest.mark.parametrize(("how", "where", "code", "words"), [
    ("os_exit", "init", 2, "construction: the user's code ended its process (exit code 0)"),
    ("os_exit", "reset", 2, "first reset: the user's code ended its process (exit code 0)"),
    ("os_exit", "step", 2, "episodes: the user's code ended its process (exit code 0)"),
    ("os_exit", "close", 2, "the user's code ended its process (exit code 0)"),
    ("crash", "step", 2, "SIGSEGV"),
    ("sys_exit", "init", 2, "SystemExit: 0"),
    ("sys_exit", "reset", 1, "reset called sys.exit(0)"),
    ("interrupt", "step", 1, "KeyboardInterrupt"),
])  # fmt: skip
def test_an_env_that_ends_its_process_is_a_failure(zmqrl: Command, how: str, where: str, code: int, words: str) -> None:
    ended = zmqrl("eval", stored(QUIET, how=how, where=where), "--episodes", "2")
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert words in ended.err and QUIET in ended.err


@pytest.mark.parametrize("where", ["reset", "close"])
def test_a_hang_is_refused_at_the_limit_with_its_place(zmqrl: Command, where: str) -> None:
    ended = zmqrl("eval", stored(QUIET, 2.0, how="hang", where=where), "--episodes", "2")
    assert (ended.code, ended.out) == (2, "")
    assert isinstance(ended.error, CheckEnded)
    compare(ended.error, cause="not finished within limits.start_s (2 s)", is_late=True)
    assert re.search(r"rude_envs\.py:\d+, in hang$", ended.error.place)


def test_what_an_env_starts_ends_with_the_command(zmqrl: Command) -> None:
    ended = zmqrl("eval", stored(QUIET, how="daemon", where="init"), "--episodes", "1")
    assert (ended.code, ended.err, sleepers()) == (0, "", [])


def test_a_video_is_written_where_the_command_was_called(zmqrl: Command) -> None:
    here = Path.cwd()
    ended = zmqrl("eval", stored(f"{__name__}:Moving", before="CartPole-v1"), "--episodes", "1", "--video", "out.gif")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1].startswith("out.gif: first episode, 6 frames, return 5.00")
    assert (here / "out.gif").exists() and Path.cwd() == here


@pytest.mark.whole
def test_a_step_that_hangs_is_named_and_an_interrupt_leaves_nothing() -> None:
    command = [sys.executable, "-m", "zmqrl", "eval", str(stored(f"{__name__}:Stuck")), "--episodes", "1"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        named = process.stderr.readline()
        assert "still waiting for 'tests.cli.test_play_foreign:Stuck': episodes (" in named and "in hang" in named
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        until(lambda: not sleepers(), "the end of what the env has started")
    finally:
        process.kill()
        process.communicate()
