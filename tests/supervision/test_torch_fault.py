"""What an agent learns of torch on a GPU: a python of the test in place of this one, which may hang or fail."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_gpu_meter import Held, write
from tests.support.waiting import WAIT_S
from zmqrl.supervision.gpus import torch_fault

Python = Callable[[str], None]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Python]:
    """Has a script of sh take the place of the python that imports torch."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(subprocess, "Popen", Held)
    Held.started = []
    yield lambda script: write(tmp_path / "python", script)
    for process in Held.started:
        process.release()


def test_its_last_line_is_the_fault(python: Python) -> None:
    python('test "$3 $CUDA_VISIBLE_DEVICES" = "cuda GPU-1" || exit 0; echo first >&2; echo "too old" >&2; exit 1')
    assert torch_fault("cuda", WAIT_S, "start_s", "GPU-1") == "too old"
    assert torch_fault("cuda:0", WAIT_S, "start_s", "GPU-1") is None


def test_an_answer_that_is_late_is_a_fault_and_nothing_waits_for_the_end_of_its_process(python: Python) -> None:
    """A process that the driver holds outlives its kill."""
    python("exec sleep 600")
    fault = torch_fault("cuda", 0.2, "half of limits.start_s (60 s)")
    assert fault == "torch did not respond within half of limits.start_s (60 s); check the GPU with nvidia-smi"
    assert Held.started[0].poll() is None


def test_a_process_that_cannot_be_started_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert torch_fault("cuda", WAIT_S, "start_s") == "torch cannot be started: [Errno 11] no process is left"


def test_who_is_to_end_waits_no_longer(python: Python) -> None:
    python("exec sleep 600")
    assert torch_fault("cuda", WAIT_S, "start_s", is_over=lambda: bool(Held.started)) is None, "not out of time"
    assert Held.started[0].poll() is None
