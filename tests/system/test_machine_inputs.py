"""Commands on machines that others have set up: their processes, containers, files and mounts, by whole commands.

Each class has the inputs of public reports (`tests/machine_inputs`), and one that differs in more than names.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.commands import ENDLESS
from tests.running import environment
from tests.waiting import WAIT_S, until

pytestmark = pytest.mark.whole

FILES = Path(__file__).parents[1] / "machine_inputs"
ZMQRL = (sys.executable, "-m", "zmqrl")
DONE, REFUSED, INTERRUPTED = 0, 2, 130


def command(folder: Path, words: Sequence[str | Path], *before: str | Path) -> tuple[int, str]:
    """Exit code and output of `zmqrl WORDS` in `folder`, started by the command `before`."""
    done = subprocess.run(
        [*before, *ZMQRL, *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout


# The process that starts zmqrl


def inherit(kinds: str) -> Sequence[str | Path]:
    return sys.executable, FILES / "inherit.py", kinds


@pytest.mark.parametrize("kinds", ["sigchld", "ignore,block,umask,close012"])
def test_an_inherited_state_does_not_change_the_check_of_the_env(tmp_path: Path, kinds: str) -> None:
    code, output = command(tmp_path, ["train", "cartpole-ppo", "--dry-run"], *inherit(kinds))
    assert code == DONE, output


@pytest.mark.parametrize(
    ("kinds", "number", "code"), [("blockterm", signal.SIGUSR1, DONE), ("ignore,block", signal.SIGTERM, INTERRUPTED)]
)
def test_a_run_with_inherited_signals_ends_by_a_signal(tmp_path: Path, kinds: str, number: int, code: int) -> None:
    train = [*inherit(kinds), *ZMQRL, "train", "cartpole-ppo", *ENDLESS, "--plain", "--run-dir", "run"]
    with subprocess.Popen(train, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launcher:
        try:
            until((tmp_path / "run" / "status.json").exists, "status.json")
            launcher.send_signal(number)
            output, _ = launcher.communicate(timeout=WAIT_S)
        finally:
            launcher.kill()
    assert launcher.returncode == code, output
    assert "killed" not in output and "0 left" in output, "each process ended by SIGTERM"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_code"] == code


@pytest.mark.parametrize("kinds", ["gone", "moved"])
@pytest.mark.parametrize("words", [["status"], ["presets"]])
def test_a_working_directory_that_was_removed(tmp_path: Path, kinds: str, words: Sequence[str]) -> None:
    code, output = command(tmp_path, words, *inherit(kinds))
    assert code == REFUSED and len(output.splitlines()) == 1 and "working directory" in output, output
