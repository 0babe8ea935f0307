from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from tests.support.waiting import WAIT_S
from zmqrl.metrics.recorder import TensorBoardLog

WRITE = """
import sys
from pathlib import Path
from zmqrl.metrics.recorder import TensorBoardLog
TensorBoardLog(Path(sys.argv[1])).write(1.0, 1, {"loss": 0.5})
sys.exit(any(name in sys.modules for name in ("numpy", "tensorboard.summary", "tensorboard.compat.tensorflow_stub")))
"""


def test_the_bytes_are_those_of_tensorboards_own_writer(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path / "ours")
    for step in range(300):  # of lengths with one and with two bytes
        log.write(step / 7, step, {"loss" * (step + 1): step / 3})
    log.close()
    (ours,) = (tmp_path / "ours").iterdir()
    first = Event(wall_time=0.0, file_version="brain.Event:2")
    theirs = tmp_path / "theirs"
    with theirs.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(first.SerializeToString())
        for step in range(300):
            event = Event(wall_time=step / 7, step=step)
            event.summary.value.add(tag="loss" * (step + 1), simple_value=step / 3)
            writer.write(event.SerializeToString())
    assert ours.read_bytes() == theirs.read_bytes()


def test_little_is_imported(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], timeout=WAIT_S).returncode == 0
