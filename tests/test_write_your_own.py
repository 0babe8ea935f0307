"""The algorithm of docs/algorithms/write-your-own.md runs as it is, with the same bits in single, sync and a resume."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, environment

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]
PAGE = ROOT / "docs" / "algorithms" / "write-your-own.md"
BLOCK = re.compile(r"^```\w+\n# (?P<name>\w*my_(?:sac|a2c)\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_S = 250
MOST_LINES = 90
SMALL = ("replay.learning_starts=200", "evaluator.episodes=0", "run.schedule_env_steps=1200")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files of the page alone."""
    for block in BLOCK.finditer(PAGE.read_text()):
        (tmp_path / block["name"]).write_text(block["text"])
    return tmp_path


def train(folder: Path, *words: str, env_steps: int = 1200) -> dict[str, object]:
    settings = [word for key in (*SMALL, f"run.total_env_steps={env_steps}") for word in ("--set", key)]
    if "--resume" in words:
        settings = ["--set", f"run.total_env_steps={env_steps}"]
    run = subprocess.run(
        [sys.executable, "-m", "zmqrl", "train", *words, "--plain", *settings],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    name = next(word for word in reversed(words) if word.startswith("run-"))
    found: dict[str, object] = json.loads((folder / name / "summary.json").read_text())
    return found


def test_it_is_short_and_uses_public_names(folder: Path) -> None:
    text = (folder / "my_sac.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert not re.search(r"import .*\b_|\._[a-z]", text), "private names"


def test_single_sync_and_a_resume_have_the_same_bits(folder: Path) -> None:
    single = train(folder, "my_sac.yaml", "--mode", "single", "--run-dir", "run-single")
    train(folder, "my_sac.yaml", "--mode", "sync", "--workers", "2", "--run-dir", "run-sync", env_steps=600)
    sync = train(folder, "--resume", "run-sync")
    assert single["updates"] == sync["updates"] and int(str(single["updates"])) > 300
    assert single["weights_sha256"] == sync["weights_sha256"]


@pytest.mark.long
def test_async(folder: Path) -> None:
    summary = train(folder, "my_sac.yaml", "--mode", "async", "--workers", "2", "--run-dir", "run-async")
    assert int(str(summary["updates"])) > 300


def test_the_checks_of_the_page_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_my_sac.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed   training_changes_the_network, continuous actions, a module as network" in done.stdout
    assert "imports torch: yes" in done.stdout and "InfiniteHorizon, continuous actions: learned" in done.stdout


def test_the_on_policy_algorithm_passes_its_checks_and_runs_in_async(folder: Path) -> None:
    code = "from my_a2c import A2C; from zmqrl.testing import check_algorithm; print(check_algorithm(A2C))"
    command = [sys.executable, "-c", code]
    checked = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert checked.returncode == 0, checked.stderr
    words = ("--env", "CartPole-v1", "--algo", "my_a2c:A2C", "--mode", "async", "--workers", "1")
    assert int(str(train(folder, *words, "--run-dir", "run-a2c", env_steps=3000)["updates"])) > 0
