"""Two runs on two hosts with one store, and a resume on the other host: each keeps its own checkpoints."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Host, Lab, lab_or_skip
from tests.support.running import RUN_S
from tests.support.runs.command_runs import PLAIN, ROOT, summary, zmqrl


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_or_skip(2, isolated=True) as lab:
        yield lab


def train_on(host: Host, folder: Path, *words: object) -> str:
    """`zmqrl train` on a host, in a folder that all of them see; what it said."""
    command = shlex.join([sys.executable, "-m", "zmqrl", "train", *map(str, words), "--plain"])
    done = host.run("sh", "-c", f"cd {folder} && PYTHONPATH={ROOT} exec {command} 2>&1", timeout_s=RUN_S)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def owner_of(store: Path, run_dir: Path) -> dict[str, Any]:
    lineage = json.loads((run_dir / "run.json").read_text())["lineage"]
    loaded: dict[str, Any] = json.loads((store / lineage / "owner.json").read_text())
    return loaded


@pytest.mark.long
def test_two_runs_on_two_hosts_and_a_resume_on_the_other(lab: Lab) -> None:
    folder, (one, other) = lab.shared, lab.hosts
    sets = [word for pair in (f"store.path={folder}/store", *PLAIN) for word in ("--set", pair)]
    words = ("cartpole-ppo", "--mode", "single", *sets)
    train_on(one, folder, *words, "--run-dir", "a", "--seed", 1, "--set", "run.total_env_steps=6000")
    train_on(other, folder, *words, "--run-dir", "b", "--seed", 2, "--set", "run.total_env_steps=2500")
    before = {name: summary(folder / name) for name in "ab"}
    assert [owner_of(folder / "store", folder / name)["host"] for name in "ab"] == ["h0", "h1"]
    played = {name: zmqrl("eval", folder / name, "--episodes", 2, at=folder) for name in "ab"}
    train_on(other, folder, "--resume", "a", "--set", "run.total_env_steps=8000")
    owner, after = owner_of(folder / "store", folder / "a"), summary(folder / "a")
    assert (owner["host"], owner["attempt"]) == ("h1", 2)
    assert after["resumed_from"]["env_steps"] == before["a"]["env_steps"]
    assert after["env_steps"] == before["a"]["env_steps"] + after["ledger"]["stored"] >= 8000
    assert zmqrl("eval", folder / "b", "--episodes", 2, at=folder) == played["b"]
    assert zmqrl("eval", folder / "a", "--episodes", 2, at=folder) != played["a"]
    assert len([path for path in (folder / "store").iterdir() if path.is_dir()]) == 2
