"""The commands of docs/results.md, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.stored_runs import store_run

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) for line in block.splitlines()
]


@pytest.fixture
def runs(tmp_path: Path) -> None:
    store_run("cartpole-ppo", tmp_path / "runs" / "cartpole", 4)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("command", COMMANDS)
def test_command(zmqrl: Command, command: str) -> None:
    name, *arguments = shlex.split(command)
    ended = zmqrl(*arguments)
    assert (name, ended.code) == ("zmqrl", 0), ended.err
