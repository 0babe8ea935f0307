"""A process that cannot be started leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.descriptor_limit import descriptor_limit
from tests.support.waiting import WAIT_S
from zmqrl.agent.child_process import ChildProcess
from zmqrl.agent.process_spawner import ProcessSpawner
from zmqrl.config.plan import Boot
from zmqrl.entry import PARENT_VARIABLE
from zmqrl.supervision.host_template import ForkedProcess, HostTemplate, TemplateLost
from zmqrl.supervision.restarts import ProcessSlot

SLEEP = ("sleep", "600")
MOST_NEEDED = 20
"""Descriptors that one start takes at the same time."""


def started(folder: Path, *command: str, template: HostTemplate | None = None) -> ChildProcess:
    spawner = ProcessSpawner(folder / "logs", PARENT_VARIABLE, lambda *_: command, template=template)
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


class KilledTemplate(HostTemplate):
    """It dies after it has forked a process, and before it answers."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def fork(self, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> ForkedProcess:
        """The process writes what it reads into the file."""
        with self._file.open("wb") as output:
            self.forked = subprocess.Popen(["cat"], stdin=descriptors[0], stdout=output)
        raise TemplateLost("killed")

    def end(self) -> None:
        pass


def test_a_process_that_a_lost_template_has_forked_takes_nothing_from_its_successor(tmp_path: Path) -> None:
    before, read, log = descriptors(), tmp_path / "read", tmp_path / "logs" / "far-worker-0.log"
    template = KilledTemplate(read)
    child = started(tmp_path, "cat", template=template)
    assert template.forked.wait(WAIT_S) == 0
    child.close_stdin()
    assert child.process.wait(WAIT_S) == 0
    child.close()
    assert (read.read_bytes(), log.read_bytes().count(b'"role":"worker"')) == (b"", 1)
    assert descriptors() == before
