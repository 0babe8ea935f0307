"""What C writes to standard output is hidden inside, also what it has buffered."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import pytest

from tests.envs.odd_envs import Counting
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.logs.standard_output import native_output_hidden


class Loud(Counting):
    """With banners, as those of ALE."""

    def __init__(self) -> None:
        ctypes.CDLL(None).puts(b"a banner")
        os.write(1, b"another\n")
        print("and Python's")
        super().__init__()


def test_native_output_is_hidden_and_what_follows_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    with native_output_hidden():
        ctypes.CDLL(None).puts(b"a banner")
        os.write(1, b"another\n")
    os.write(1, b"{}\n")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("{}\n", "")


def test_the_probe_of_an_env_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    probe(EnvSection(id="tests.logs.test_native_output:Loud"))
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


def test_the_output_of_other_threads_is_not_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    def write() -> Any:
        with native_output_hidden():
            os.write(1, b"of a thread\n")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert capfd.readouterr().out == "of a thread\n"
