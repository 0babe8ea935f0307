"""What /proc shows of a process that has named its command line itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S
from zmqrl.supervision.shown_command import show


def shown(words: Sequence[str], environment: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Files of a fork of this process that has called `show`."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            show(words, environment)
            for name in ("cmdline", "environ"):
                os.write(write, Path(f"/proc/{os.getpid()}/{name}").read_bytes() + b"\xff")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        command, environ, _ = told.read().split(b"\xff")
    os.waitpid(pid, 0)
    return command, environ


@pytest.mark.parametrize("length", [1, 10, 5_000])
def test_words_of_any_length_are_shown(length: int) -> None:
    words = ["python", "-m", "x" * length, "0"]
    assert shown(words, {b"A": b"1", b"B": b""}) == ("\0".join([*words, ""]).encode(), b"A=1\0B=\0")


def test_they_are_shown_until_the_end_of_the_process() -> None:
    """Also while the interpreter frees its modules."""
    code = (
        "import sys\nfrom zmqrl.supervision.shown_command import show\nshow(['x' * 100_000], {})\n"
        "del show, sys.modules['zmqrl.supervision.shown_command'], sys.modules['zmqrl.supervision'].shown_command\n"
        "other = [bytes([number]) * 100_032 for number in range(100)]\nprint(open('/proc/self/cmdline').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout == "x" * 100_000 + "\0\n"


def test_this_process_keeps_its_own() -> None:
    before = Path("/proc/self/cmdline").read_bytes()
    shown(["other"], {})
    assert Path("/proc/self/cmdline").read_bytes() == before
