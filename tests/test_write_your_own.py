"""The algorithms of docs/algorithms/write-your-own.md run as they are, with the same bits in single, sync, a resume."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import zmqrl
from tests.support.marks import long
from tests.support.running import ROOT, RUN_S, environment
from zmqrl.testing import check_algorithm
from zmqrl.testing.probes import PROBES as ENVS

pytestmark = pytest.mark.whole
PAGE = ROOT / "docs" / "algorithms" / "write-your-own.md"
BLOCK = re.compile(r"^```\w+\n# (?P<name>\w*my_\w+\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 90
PROBES = tuple(env.__name__ for env in ENVS)
SMALL = ("replay.learning_starts=200", "evaluator.episodes=0", "run.schedule_env_steps=800")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the files of the page alone."""
    for block in BLOCK.finditer(PAGE.read_text()):
        (tmp_path / block["name"]).write_text(block["text"])
    return tmp_path


def train(folder: Path, *words: str, env_steps: int = 800) -> dict[str, object]:
    """By the command."""
    settings = [word for key in (*SMALL, f"run.total_env_steps={env_steps}") for word in ("--set", key)]
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


def module(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of the page, imported into this process."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_they_are_short_and_use_public_names(folder: Path) -> None:
    for path in folder.glob("my_*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= MOST_LINES
        assert not re.search(r"import .*\b_|\._[a-z]", text), "private names"


@pytest.mark.parametrize("name", ["my_sac", long("my_drqn"), long("my_hindsight")])
def test_single_sync_and_a_resume_have_the_same_bits(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launched in this process, which has torch."""
    module(folder, name, monkeypatch)
    monkeypatch.chdir(folder)
    given = {key: yaml.safe_load(value) for key, value in (pair.split("=") for pair in SMALL)}
    whole, half = ({**given, "run.total_env_steps": env_steps} for env_steps in (800, 400))
    single = zmqrl.train(f"{name}.yaml", run_dir="run-single", mode="single", **whole)
    zmqrl.train(f"{name}.yaml", run_dir="run-sync", mode="sync", workers=2, **half)
    sync = zmqrl.resume("run-sync", run__total_env_steps=800)
    assert single.updates == sync.updates and single.updates > 100
    assert single.weights_sha256 == sync.weights_sha256


@pytest.mark.long
def test_async(folder: Path) -> None:
    summary = train(folder, "my_sac.yaml", "--mode", "async", "--workers", "2", "--run-dir", "run-async")
    assert int(str(summary["updates"])) > 200


def test_the_checks_of_the_page_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module(folder, "my_sac", monkeypatch)
    module(folder, "test_my_sac", monkeypatch).test_my_sac()
    printed = "".join(capsys.readouterr())
    assert "passed   training_changes_the_network, continuous actions, a module as network" in printed
    assert "imports torch: yes" in printed and "InfiniteHorizon, continuous actions: learned" in printed


def test_the_on_policy_algorithm_passes_its_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = check_algorithm(module(folder, "my_a2c", monkeypatch).A2C)
    assert any(name.startswith("InfiniteHorizon, discrete actions: learned") for name in report.passed)


def test_the_algorithm_that_holds_batches_passes_its_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(folder, "my_a2c", monkeypatch)
    report = check_algorithm(module(folder, "my_phasic", monkeypatch).Phasic, skip=PROBES[1:])
    assert any(name.startswith("Identity, discrete actions: learned") for name in report.passed)


def test_normalised_observations_pass_the_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(folder, "my_a2c", monkeypatch)
    report = check_algorithm(module(folder, "my_normalised_a2c", monkeypatch).NormalisedA2C, skip=PROBES)
    assert "a_restored_learner_continues_bit_for_bit, discrete actions" in report.passed


@pytest.mark.long
def test_the_algorithm_with_memory_passes_its_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = check_algorithm(module(folder, "my_drqn", monkeypatch).DRQN)
    learned = {name.partition(",")[0] for name in report.passed if "learned within" in name}
    assert learned == {"Identity", "InfiniteHorizon", "Memory"}


@pytest.mark.parametrize(("burn_in", "length", "segment_steps"), [long(8, 16, 32), long(0, 8, 16)])
def test_memory_passes_the_checks_with_other_sequences(
    burn_in: int, length: int, segment_steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, probes = module(folder, "my_drqn", monkeypatch), [name for name in PROBES if name != "Identity"]
    config = made.DRQNConfig(burn_in=burn_in, length=length)
    report = check_algorithm(made.DRQN, config, segment_steps=segment_steps, skip=probes)
    assert any(name.startswith("Identity, discrete actions: learned") for name in report.passed)


@pytest.mark.long
def test_the_on_policy_algorithm_runs_in_async(folder: Path) -> None:
    words = ("--env", "CartPole-v1", "--algo", "my_a2c:A2C", "--mode", "async", "--workers", "1")
    assert int(str(train(folder, *words, "--run-dir", "run-a2c", env_steps=2000)["updates"])) > 0
