"""What a benchmark prints: JSON with the figures, the yardstick alongside them, versions, host and commit."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from zmqrl.errors import TrainingFailed
from zmqrl.run_files.environment import cpu_model

PACKAGES = ("zmqrl", "pyzmq", "msgpack", "msgspec", "numpy", "torch", "gymnasium", "stable-baselines3")
RUN_LIMIT_S = 900


@dataclass(frozen=True)
class Figure:
    """One measured quantity over the repeats of a run."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class BenchResult:
    """A benchmark's outcome; `ratio` compares pair by pair with the yardstick run in turn."""

    name: str
    figures: Sequence[Figure]
    settings: Mapping[str, Any] = field(default_factory=dict)
    ratios: Sequence[Figure] = ()

    def data(self) -> dict[str, Any]:
        """Result as JSON data."""
        rows = [*self.figures, *self.ratios]
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "figures": {f.name: {"unit": f.unit, "median": f.median, "values": list(f.values)} for f in rows},
            "machine": machine(),
        }

    def table(self) -> str:
        """Medians of the figures and ratios, a line each."""
        rows = [(row, ",.0f" if row.median >= 1000 else ".4g") for row in (*self.figures, *self.ratios)]
        text = (f"{self.name:6}{row.name:50}{format(row.median, form):>12} {row.unit}" for row, form in rows)
        return "\n".join(line.rstrip() for line in text)

    def print(self) -> None:
        """The JSON on stdout."""
        print(json.dumps(self.data(), indent=2))


def machine() -> dict[str, Any]:
    """Where and on what this was measured."""
    return {
        "host": platform.node(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": _commit(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


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
        summary: dict[str, Any] = json.loads(Path(folder, "run", "summary.json").read_text(encoding="utf-8"))
        return {**summary, "command_s": command_s}
