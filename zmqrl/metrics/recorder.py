"""What a run measured, into `metrics.jsonl` and TensorBoard under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zmqrl.metrics.jsonl import MetricsLog
from zmqrl.metrics.tensorboard import TensorBoardLog


class Recorder:
    """Writes both. Values that are not numbers are left out."""

    def __init__(self, run_dir: Path, started_at: float) -> None:
        """`started_at`: unix time that `wall_s` counts from."""
        self._started_at = started_at
        self._jsonl = MetricsLog(run_dir / "metrics.jsonl")
        self._tensorboard = TensorBoardLog(run_dir / "tensorboard")

    def record(self, wall_time: float, env_steps: int, values: Mapping[str, object]) -> None:
        """One set of values, measured at unix time `wall_time` when `env_steps` were stored.

        Raises:
            OSError: Not all of it is written; later calls write it as well.
        """
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, (int, float)) and name != "env_steps"}
        if not numbers:
            return
        try:
            self._jsonl.write(wall_time - self._started_at, env_steps, numbers)
        finally:
            self._tensorboard.write(wall_time, env_steps, numbers)

    def close(self) -> None:
        """Flush and close both. OSError: what still waited is lost."""
        try:
            self._jsonl.close()
        finally:
            self._tensorboard.close()
