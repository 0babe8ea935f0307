"""TensorBoard event files, written without torch; the names are those of `metrics.jsonl`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from zmqrl.metrics.append_file import AppendFile

FILE_VERSION = "brain.Event:2"


class TensorBoardLog:
    """Imports tensorboard at the first value: that costs most of a second, and workers are starting before.

    Its `EventFileWriter` is not used: after a failed write its thread ends, and the next values wait for it forever.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: AppendFile | None = None

    def write(self, wall_time: float, env_steps: int, values: Mapping[str, float]) -> None:
        """One scalar per value, at step `env_steps` and unix time `wall_time`. OSError: see `AppendFile.write`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        events = [Event(wall_time=wall_time, step=env_steps, summary=Summary(value=scalars))]
        if self._file is None:
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
            self._file = AppendFile(self._folder / name)
            events.insert(0, Event(wall_time=wall_time, file_version=FILE_VERSION))
        whole = _Joined()
        for event in events:
            RecordWriter(whole).write(event.SerializeToString())
        self._file.write(bytes(whole.content))

    def close(self) -> None:
        """Close the file. Safe to call twice. OSError: values that still waited are lost."""
        if self._file is not None:
            self._file.close()


class _Joined:
    """What a `RecordWriter` writes to."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, record: bytes) -> None:
        self.content += record
