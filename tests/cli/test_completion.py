"""Shell completion: the scripts, and what bash completes with its script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.running import environment
from tests.support.waiting import WAIT_S

COMPLETE = (
    'eval "$(zmqrl completion bash)"; COMP_WORDS=({}); COMP_CWORD={}; _zmqrl_completion zmqrl; echo "${{COMPREPLY[@]}}"'
)


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """The command of this checkout as `zmqrl`."""
    command = tmp_path / "bin" / "zmqrl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from zmqrl.cli.main import main; main()" "$@"\n')
    command.chmod(0o755)
    return environment({"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"})


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (
            ["train", "pendulum-"],
            ["pendulum-ddpg", "pendulum-mpo", "pendulum-ppo", "pendulum-sac", "pendulum-td3", "pendulum-tqc"],
        ),
        (["train", "--env", "X", "--algo", "pp"], ["ppo", "ppo_gru"]),
        (["train", "--set", "run.max"], ["run.max_wall_s="]),
        (["con"], ["config"]),
    ],
)
@pytest.mark.whole
def test_in_bash(on_path: dict[str, str], words: list[str], completed: list[str]) -> None:
    script = COMPLETE.format(" ".join(["zmqrl", *words]), len(words))
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=WAIT_S, env=on_path, check=True
    )
    assert done.stdout.split() == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(zmqrl: Command, shell: str) -> None:
    ended = zmqrl("completion", shell)
    assert ended.code == 0
    assert f"_ZMQRL_COMPLETE={shell}_complete" in ended.out


def test_another_shell_is_exit_2(zmqrl: Command) -> None:
    assert zmqrl("completion", "tcsh").code == 2
