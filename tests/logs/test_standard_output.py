from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zmqrl.logs.standard_output import lossy, lossy_output

SCRIPT = """
import sys
from zmqrl.logs.standard_output import lossy_output
with lossy_output():
    for _ in range(3):
        print("x" * 10_000, flush=True)
        print("y", file=sys.stderr, flush=True)
sys.exit(7)
"""


def test_a_full_disk_refuses_no_print_and_the_exit_code_stays() -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", SCRIPT], stdout=full, stderr=full, check=False).returncode == 7


def test_a_reader_that_is_gone_is_not_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert subprocess.run([sys.executable, "-c", SCRIPT], stdout=write, stderr=write, check=False).returncode == 7
    finally:
        os.close(write)


def test_what_can_be_written_is_written_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        file.write("before\n")
        stream = lossy(file)
        print("within", file=stream, flush=True)
        file.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nwithin\nafter\n"


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_a_stream_without_a_descriptor_stays(stream: io.StringIO | None) -> None:
    assert lossy(stream) is stream  # type: ignore[arg-type]


def test_a_process_without_standard_streams_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    with lossy_output():
        print("x")
