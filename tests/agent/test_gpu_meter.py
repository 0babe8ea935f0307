"""What the agent reports of the GPUs of its host: an nvidia-smi of the test, which may hang or fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.waiting import until
from zmqrl.agent.gpu_meter import EVERY_S, GpuMeter
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


@pytest.mark.parametrize("script", ["echo 'NVIDIA-SMI has failed'; exit 9", "exec sleep 60"])
def test_one_that_fails_or_hangs_reports_nothing_and_ends(nvidia_smi: Path, script: str) -> None:
    write(nvidia_smi, script)
    meter = GpuMeter()
    begun = time.monotonic()
    assert meter.sample(0.0) is None
    started = meter._queries
    assert meter.sample(1.0) is None
    until(lambda: meter.sample(QUERY_S) is None and not meter._queries, "it to be ended")
    assert time.monotonic() - begun < 5.0 and all(query.poll() is not None for query in started)


def test_without_nvidia_smi_nothing_is_started(nvidia_smi: Path) -> None:
    if has_nvidia_smi():
        pytest.skip("this machine has one")
    meter = GpuMeter()
    assert (meter.sample(0.0), meter._queries, query()) == (None, [], [])
