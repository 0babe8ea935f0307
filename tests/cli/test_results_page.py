"""The commands of docs/results.md, as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.support.stored_runs import store_run

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) for line in block.splitlines()
]


@pytest.fixture
def runs(tmp_path: Path) -> None:
    for name in ("cartpole", "lr-1e-3", "lr-3e-4"):
        folder = tmp_path / "runs" / name
        store_run("cartpole-ppo", folder, 4)
        rows = [
            {
                "wall_s": n,
                "env_steps": n,
                "train_return_mean_100": 2 * n,
                "entropy": 1 / n,
                "approx_kl": n,
                "episodes": n,
            }
            for n in (1, 2, 3)
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.whole
def test_command(zmqrl: Command, command: str) -> None:
    name, *arguments = shlex.split(command)
    ended = zmqrl(*arguments)
    assert (name, ended.code) == ("zmqrl", 0), ended.err
