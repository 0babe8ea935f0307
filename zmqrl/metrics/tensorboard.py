"""TensorBoard event files, written without torch; the names are those of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardLog:
    """Imports tensorboard at the first value: that costs most of a second, and workers are starting before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, wall_time: float, env_steps: int, values: Mapping[str, float]) -> None:
        """One scalar per value, at step `env_steps` and unix time `wall_time`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=wall_time, step=env_steps, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Flush and end the writer's thread. Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
