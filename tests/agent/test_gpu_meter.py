"""What the agent reports of the GPUs of its host: an nvidia-smi of the test, which may hang or fail."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.marks import at_once
from tests.support.waiting import until
from zmqrl.agent.gpu_meter import EVERY_S, GpuMeter
from zmqrl.supervision import gpus
from zmqrl.supervision.gpus import QUERY_S, has_nvidia_smi, query
from zmqrl.types import Gpu

ANSWERS = """\
case "$1" in
  --query-gpu*) echo "0, GPU-1, NVIDIA L4, 700, 23034, [N/A]" ;;
  --query-compute-apps*) echo "GPU-1, $PPID, 690" ;;
esac
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return path


def write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def sampled(meter: GpuMeter, now: float = 0.0) -> list[Gpu]:
    found: list[Gpu] = []

    def look() -> bool:
        found.extend(meter.sample(now) or ())
        return bool(found)

    until(look, "the answer of nvidia-smi")
    return found


def test_gpus_and_the_users_of_processes(nvidia_smi: Path) -> None:
    write(nvidia_smi, ANSWERS)
    meter = GpuMeter()
    (gpu,) = sampled(meter)
    assert (gpu.name, gpu.used_mib, [p.own for p in gpu.processes]) == ("NVIDIA L4", 700, [True])
    assert [meter.sample(EVERY_S - 1), meter._queries] == [None, []], "not yet again"
    assert sampled(meter, EVERY_S) == [gpu] == query()
    meter.close()


@pytest.mark.parametrize("script", ["echo 'NVIDIA-SMI has failed'; exit 9", "exec sleep 600"])
def test_one_that_fails_or_hangs_reports_nothing_and_ends(nvidia_smi: Path, script: str) -> None:
    write(nvidia_smi, script)
    meter = GpuMeter()
    assert meter.sample(0.0) is None
    started = meter._queries
    assert meter.sample(1.0) is None
    until(lambda: meter.sample(QUERY_S) is None and not meter._queries, "it to be ended")
    assert all(query.poll() is not None for query in started)


class Held(subprocess.Popen[Any]):
    """As a process that the driver holds in state D: SIGKILL does not end it."""

    started: list[Held]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Held.started.append(self)

    def kill(self) -> None:
        pass

    def release(self) -> None:
        """The driver answers."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()


@pytest.fixture
def held(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Held]]:
    """What is started of an nvidia-smi that the driver holds."""
    write(nvidia_smi, "exec sleep 600")
    Held.started = []
    monkeypatch.setattr(subprocess, "Popen", Held)
    yield Held.started
    for process in Held.started:
        process.release()


def test_while_the_driver_holds_a_query_no_other_is_started(held: list[Held]) -> None:
    meter = GpuMeter()
    for now in (0.0, QUERY_S, EVERY_S, 2 * EVERY_S, 3 * EVERY_S):
        assert meter.sample(now) is None
    assert len(held) == 2
    for process in held:
        process.release()
    assert meter.sample(4 * EVERY_S) is None
    assert meter.sample(5 * EVERY_S) is None
    assert len(held) == 4, "it is asked again"
    meter.close()


@at_once
def test_a_query_that_the_driver_holds_is_not_waited_for(held: list[Held], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "QUERY_S", 0.2)
    assert query() == []
    assert len(held) == 1


def test_a_second_query_that_cannot_be_started_ends_the_first(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nvidia_smi, ANSWERS)
    meter, popen, started = GpuMeter(), subprocess.Popen, list[subprocess.Popen[bytes]]()

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError("no process is left")
        started.append(popen(*args, **options))
        return started[0]

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        assert meter.sample(0.0) is None
    assert started[0].poll() is not None
    assert len(sampled(meter, EVERY_S)) == 1, "the limit has passed"
    meter.close()


def test_without_nvidia_smi_nothing_is_started(nvidia_smi: Path) -> None:
    if has_nvidia_smi():
        pytest.skip("this machine has one")
    meter = GpuMeter()
    assert (meter.sample(0.0), meter._queries, query()) == (None, [], [])
