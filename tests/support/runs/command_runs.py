"""Whole commands in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.running import RUN_S

ROOT = Path(__file__).parents[3]
PLAIN = ("run.stop_at_return=null", "evaluator.episodes=0", "algorithm.kind=tests.stand_ins.tally:Tally")
"""No best version, whose choice depends on time: `eval` plays the last. Of cartpole-ppo, without torch."""


def zmqrl(*words: object, at: Path, code: int = 0) -> str:
    """A command that ends with `code`; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "zmqrl", *map(str, words)],
        cwd=at,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def resume(run_dir: Path, steps: int, *words: object, code: int = 0) -> str:
    flags = ("--set", f"run.total_env_steps={steps}", "--plain", *words)
    return zmqrl("train", "--resume", run_dir, *flags, at=run_dir.parent, code=code)


def summary(run_dir: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return loaded
