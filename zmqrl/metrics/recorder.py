"""What a run measured, into `metrics.jsonl` and TensorBoard under the same names."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from zmqrl.metrics.jsonl import AppendFile, MetricsLog

FILE_VERSION = "brain.Event:2"
CRC32C = 0x82F63B78
"""The polynomial (Castagnoli), bits reversed."""
WORKERS_EVERY_S = 60.0
"""A row of a worker takes 230 bytes in both files: every 2 s, as workers report, that is 10 MB a day for each."""


class TensorBoardLog:
    """Event file of TensorBoard: of tensorboard, only the messages are imported, and not before the first value.

    Its `EventFileWriter` is not used: after a failed write its thread ends, and the next values wait for it forever.
    Its `RecordWriter` is not used: importing it takes most of a second, in which the launcher handles no event.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: AppendFile | None = None

    def write(self, wall_time: float, env_steps: int, values: Mapping[str, float]) -> None:
        """One scalar per value, at step `env_steps` and unix time `wall_time`. OSError: see `AppendFile.write`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        events = [Event(wall_time=wall_time, step=env_steps, summary=Summary(value=scalars))]
        if self._file is None:
            name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
            self._file = AppendFile(self._folder / name)
            events.insert(0, Event(wall_time=wall_time, file_version=FILE_VERSION))
        self._file.write(b"".join(_record(event.SerializeToString()) for event in events))

    def close(self) -> None:
        """Close the file. Safe to call twice. OSError: values that still waited are lost."""
        if self._file is not None:
            self._file.close()


def _record(data: bytes) -> bytes:
    """A TFRecord: length and data, each with its checksum (https://www.tensorflow.org/tutorials/load_data/tfrecord)."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated by 15 bits and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table_entry(remainder: int) -> int:
    for _ in range(8):
        remainder = remainder >> 1 ^ (CRC32C if remainder & 1 else 0)
    return remainder


TABLE = tuple(map(_table_entry, range(256)))


class Recorder:
    """Writes both. Values that are not numbers are left out."""

    def __init__(self, run_dir: Path, started_at: float, attempt: int) -> None:
        """`started_at`: unix time of the start of the command; `attempt`: its number."""
        self._started_at = started_at
        self._jsonl = MetricsLog(run_dir / "metrics.jsonl", attempt)
        self._tensorboard = TensorBoardLog(run_dir / "tensorboard")
        self._workers: dict[int, Mapping[str, float]] = {}
        """The newest values of each worker that are not recorded, by its index."""
        self._workers_at_s = WORKERS_EVERY_S

    def record(self, wall_s: float, env_steps: int, values: Mapping[str, object]) -> None:
        """One set of values, measured `wall_s` seconds after the start of the command, when `env_steps` were stored.

        Raises:
            OSError: Not all of it is written; later calls write it as well.
        """
        numbers = {name: float(v) for name, v in values.items() if isinstance(v, (int, float)) and name != "env_steps"}
        if not numbers:
            return
        try:
            self._jsonl.write(wall_s, env_steps, numbers)
        finally:
            self._tensorboard.write(self._started_at + wall_s, env_steps, numbers)

    def record_worker(self, wall_s: float, env_steps: int, index: int, values: Mapping[str, float]) -> None:
        """Values of worker `index`, named `worker_<index>_<name>`; the newest are recorded every `WORKERS_EVERY_S`.

        Raises:
            OSError: As `record`.
        """
        self._workers[index] = {f"worker_{index}_{name}": value for name, value in values.items()}
        if wall_s >= self._workers_at_s:
            self._workers_at_s = wall_s + WORKERS_EVERY_S
            self.record_workers(wall_s, env_steps)

    def record_workers(self, wall_s: float, env_steps: int) -> None:
        """A row for each worker whose newest values are not recorded yet, at the end of the run too.

        Raises:
            OSError: As `record`; workers without a row get one at the next call.
        """
        while self._workers:
            self.record(wall_s, env_steps, self._workers.pop(next(iter(self._workers))))

    def close(self) -> None:
        """Flush and close both. OSError: what still waited is lost."""
        try:
            self._jsonl.close()
        finally:
            self._tensorboard.close()
