"""An env that its author changed between two attempts: a resume and `eval` name the difference and start nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.envs.changing_envs import VARIANT
from tests.support.runs.command_runs import resume, summary, zmqrl
from zmqrl.run_files.trained_env import KEY
from zmqrl.supervision.owner_record import FOLDER as OWNERS

ENV = ("env.id=tests.envs.changing_envs:Changing", "env.max_episode_steps=20", "evaluator.episodes=0")
STEPS = 512


def contents(run_dir: Path) -> dict[str, bytes]:
    """All but who owned the directory last: a resume owns it before it looks at checkpoints."""
    found = (path for path in run_dir.rglob("*") if path.is_file() and path.parent.name != OWNERS)
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in found}


def refused(run_dir: Path, *words: str) -> None:
    before = contents(run_dir)
    output = resume(run_dir, 2 * STEPS, code=2)
    (line,) = output.splitlines()
    assert all(word in line for word in words), line
    assert contents(run_dir) == before


@pytest.mark.whole
def test_a_resume_in_a_changed_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    sets = [word for pair in (f"run.total_env_steps={STEPS}", *ENV) for word in ("--set", pair)]
    zmqrl("train", "cartpole-ppo", "--mode", "single", "--plain", "--run-dir", run_dir, *sets, at=tmp_path)
    path = run_dir / "config.json"
    stored = json.loads(path.read_text())
    monkeypatch.setenv(VARIANT, "sensor")
    shape = "env.id: observation shape: the run was trained with [3], the env now has [4]; restore the env, or start"
    refused(run_dir, "config.json", shape)
    assert shape in zmqrl("eval", run_dir, at=tmp_path, code=2)
    monkeypatch.setenv(VARIANT, "range")
    refused(run_dir, "observation high: the run was trained with [1.0], the env now has [2.0]")
    monkeypatch.setenv(VARIANT, "sensor")
    path.write_text(json.dumps({name: value for name, value in stored.items() if name != KEY}))  # as 0.2 wrote it
    refused(run_dir, "tensor actor.0.weight: expected shape [64, 4], found [64, 3]", "restore the env, network and")
    assert "expected shape [64, 4], found [64, 3]" in zmqrl("eval", run_dir, at=tmp_path, code=2)
    monkeypatch.delenv(VARIANT)
    resume(run_dir, 2 * STEPS)
    assert summary(run_dir)["env_steps"] >= 2 * STEPS
    assert json.loads(path.read_text())[KEY] == stored[KEY]
