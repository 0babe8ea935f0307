"""A process that cannot be started leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.descriptor_limit import descriptor_limit
from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.config.plan import Boot
from zmqrl.entry import PARENT_VARIABLE
from zmqrl.supervision.restarts import ProcessSlot

SLEEP = ("sleep", "600")
MOST_NEEDED = 20
"""Descriptors that one start takes at the same time."""


def started(folder: Path, *command: str) -> ChildProcess:
    spawner = ProcessSpawner(folder / "logs", PARENT_VARIABLE, lambda *_: command)
    boot = Boot("agent", 0, 0, "far", stand_in_plan(folder), workers=(0,))
    return spawner.start(boot, ProcessSlot("worker", 0), 0, {})


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def lowest_free() -> int:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_start_without_free_descriptors_leaves_none_open_and_no_process(tmp_path: Path) -> None:
    before, processes = descriptors(), children()
    failed = 0
    for limit in range(lowest_free(), max(map(int, before)) + MOST_NEEDED):
        try:
            with descriptor_limit(limit):
                child = started(tmp_path, *SLEEP)
        except OSError:
            failed += 1
            assert (descriptors(), children()) == (before, processes), limit
        else:
            child.process.kill()
            child.process.wait()
            child.close()
            break
    else:
        pytest.fail("it was never started")
    assert failed > 5
    assert descriptors() == before


def test_a_program_that_is_missing(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        started(tmp_path, str(tmp_path / "python"))
    assert descriptors() == before
