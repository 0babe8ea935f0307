"""`metrics.jsonl`: one JSON object a line, `wall_s` and `env_steps` first, then the values by name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

TAIL_BYTES = 65_536
"""More than the longest row."""


class MetricsLog:
    """Appends rows; a resumed run goes on in the same file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, wall_s: float, env_steps: int, values: Mapping[str, float]) -> None:
        """One row, on disk as far as the kernel is concerned when this returns."""
        row = {"wall_s": round(wall_s, 3), "env_steps": env_steps, **values}
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()


def last_metrics(path: Path) -> dict[str, float] | None:
    """The last row that can be read; None when there is none. Only the end of the file is read: it may be large."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            return row
    return None


def read_metrics(path: Path) -> Iterator[dict[str, float]]:
    """The rows of a run; a last line that was cut off by a kill is left out."""
    with path.open() as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue
