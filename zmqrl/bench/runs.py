"""Whole runs as a benchmark sees them: the command line in a separate process, and its summary."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zmqrl.errors import TrainingFailed

RUN_LIMIT_S = 900


def run_preset(
    preset: str, settings: Mapping[str, Any], mode: str | None = None, workers: int = 2, seed: int = 1
) -> dict[str, Any]:
    """`zmqrl train preset` in a temporary run directory; its summary, and `command_s`, the wall time of it all."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "zmqrl", "train", preset, "--run-dir", f"{folder}/run", "--plain"]
        command += ["--workers", str(workers), "--seed", str(seed)]
        command += ["--mode", mode] if mode else []
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
        command_s = time.monotonic() - begun
        if done.returncode != 0:
            raise TrainingFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        summary: dict[str, Any] = json.loads(Path(folder, "run", "summary.json").read_text())
        return {**summary, "command_s": command_s}
